"""A short run of `python -m bench.automations --kills`."""

from __future__ import annotations

import pytest

from tests.rigs.automation_kills import AutomationHavoc

pytestmark = [pytest.mark.server, pytest.mark.sqlite, pytest.mark.django_db]


@pytest.mark.long("Runs a worker and a watch, and kills the watch around each act.")
def test_a_watch_that_is_killed_acts_once_and_within_the_cap(tmp_path):
    with AutomationHavoc(tmp_path, 0, None, 30, seed=3) as havoc:
        found = havoc.run_automation(kills=2, rounds_after=1)
    assert found["kills"] == 2 and found["decisions"].get("done", 0) >= 2, found
    assert (found["twice"], found["beyond_cap"], found["replays_without_a_decision"], found["unfinished"]) == (
        0,
    ) * 4, found
