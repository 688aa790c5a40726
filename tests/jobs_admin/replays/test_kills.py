"""Short runs of what `bench` runs at length: processes that are killed, and a worker that writes down what it ran."""

from __future__ import annotations

import pytest

from tests.rigs.replay_kills import Havoc
from tests.rigs.replay_starts import Starts, most_at_once

pytestmark = [pytest.mark.server, pytest.mark.sqlite, pytest.mark.django_db]


@pytest.mark.long("Runs workers and senders, and kills them.")
def test_sender_redis_and_web_are_killed_and_each_job_runs_once_or_is_uncertain(tmp_path):
    with Havoc(tmp_path, jobs=200, rate=60, outcome_within_s=15, seed=7) as havoc:
        found = havoc.run(kills=4)
    assert sum(found["kills"].values()) == 4
    assert (found["never_ran_and_not_uncertain"], found["ran_twice"]) == (0, 0), found
    assert found["ran_once"] + found["never_ran_and_uncertain"] + found["ran_again_by_the_broker"] == 200, found
    assert found["left_in_the_queue"] == found["replay"]["planned"] == 0, found


@pytest.mark.long("Runs workers and senders, and kills them.")
def test_no_customer_has_more_jobs_running_than_allowed(tmp_path, engine):
    starts = Starts(tmp_path / "desk", engine.url.removesuffix("/0") + "/5", concurrency=12, pool="threads")
    pace = {"style": "at_once", "per_key": {"key": "tenant", "concurrency": 2}}
    try:
        lines = starts.run(60, pace, seconds=0.05, tenant="lambda n: 'cobalt' if n < 30 else f'c{n % 6}'")
    finally:
        starts.stop()
    most = most_at_once(lines)
    assert len(lines) == 120 and len(most) == 7
    assert max(most.values()) == 2, most  # the limit was reached, by somebody, and not passed
    assert most_at_once([[*line[:3], "all", line[4]] for line in lines])["all"] > 2
