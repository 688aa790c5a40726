"""Every vector of `cases/backoff.json`, and what holds at any attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.core import backoff
from jobs_admin.core.policy import parse

CASES = json.loads((Path(__file__).parent / "backoff.json").read_text())


@pytest.mark.parametrize("vector", CASES["vectors"], ids=lambda vector: vector["name"])
def test_a_published_formula_gives_its_published_delays(vector):
    policy = parse(vector["policy"])
    for published in vector["delays"]:
        found = backoff.bounds(policy, published["attempt"])
        assert (found.shortest_s, found.longest_s) == pytest.approx(
            (published["shortest_s"], published["longest_s"]), abs=1e-9
        )
