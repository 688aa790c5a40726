"""A replay as programs read it."""

from __future__ import annotations

import pytest

from dashboard.replays import api_shapes as replay_shapes
from jobs_admin.models import Replay


@pytest.mark.parametrize(("rate", "reported"), [(1.2100000000000002, 1.21), (50.0, 50.0), (0.25, 0.25), (None, None)])
def test_a_rate_has_no_digits_that_show_nothing(rate, reported):
    assert replay_shapes.replay(Replay(pace={}, rate=rate), "", 0.0, [], [])["rate"] == reported
