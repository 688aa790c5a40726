from __future__ import annotations

import pytest

from jobs_admin.core.pacing import estimate, parse


def test_the_estimate_counts_the_gaps_between_jobs():
    assert estimate(101, parse({"rate": 10})).duration_s == 10
    assert estimate(1, parse({"rate": 10})).duration_s == 0
    assert estimate(0, parse(None)).peak_per_second == 0
    assert estimate(45_000, parse({"rate": 50})).peak_per_second == 50
    assert estimate(600, parse({"over": 60})).duration_s == pytest.approx(60, rel=0.01)


def test_a_careful_replay_takes_its_canary_and_its_ramp_longer():
    careful = estimate(45_000, parse({"style": "careful", "rate": 300}))
    assert 150 + 10 < careful.duration_s < 250 and careful.peak_per_second == 300
