"""`n` at once for each customer, in a real worker: by the lines that its jobs write (long and under kills: `bench/limits.py`)."""

from __future__ import annotations

import pytest

from tests.kit.policies import attempts, gaps, obeyed, policy
from tests.kit.streams import of_job
from tests.rigs.limits import most_at_once

pytestmark = pytest.mark.server


def read_moments(worker, key: str) -> dict[str, list[float]]:
    """The moments at which each job of a customer started and ended, in order: number -> moments."""
    found: dict[str, list[float]] = {}
    for line in worker.marks("noted"):
        _, at, n, whose, _ = line.split()
        if whose == key:
            found.setdefault(n, []).append(float(at))
    return found


def test_no_more_of_a_customer_run_at_once_than_its_limit_and_those_who_wait_hold_no_process(worker):
    url = worker.store_engine.url
    obeyed(worker, url, policy("each", "noted", concurrency={"key": "args.2", "limit": 1}))
    for n in range(5):
        worker.send("noted", n, 0.5, "large")
    worker.send("noted", 9, 0.0, "small")
    worker.wait(
        lambda: [len(moments) for moments in read_moments(worker, "large").values()] == [2] * 5, what="all of them"
    )
    assert most_at_once(read_moments(worker, "large").values()) == 1
    assert read_moments(worker, "small")["9"][0] < max(start for start, _ in read_moments(worker, "large").values())
    obeyed(worker, url)


def test_the_place_of_a_job_whose_process_was_killed_is_free_long_before_its_lease_ends(worker):
    url = worker.store_engine.url
    obeyed(worker, url, policy("one", "dies", concurrency={"key": "task", "limit": 1}))
    job = worker.send("dies", 2)
    worker.wait(lambda: len(attempts(worker, job)) == 2, what="the second attempt")  # which needs the one place
    assert gaps(worker, job)[0] < 30  # of a lease
    obeyed(worker, url)


@pytest.mark.parametrize("limit", [{"concurrency": {"key": "task", "limit": 2}}, {"poison": {"crashes": 3}}])
def test_a_policy_for_a_limit_alone_leaves_retries_to_the_task(worker, limit):
    """A task without retries is dead at its first error, and one that retries does so as its own code says."""
    url = worker.store_engine.url
    limits = [{"name": name, "match": {"task": name}, "mode": "enforce", **limit} for name in ("try", "autoretries")]
    obeyed(worker, url, *limits)
    dead, again = worker.send("try"), worker.send("autoretries")
    (only,) = worker.wait(lambda: of_job(worker.store_engine, dead), what="the report of its end")
    (first,) = worker.wait(lambda: of_job(worker.store_engine, again), what="the report of its retry")
    assert (only.kind, only.max_attempts, only.policy) == ("exception", 1, "")
    assert (first.kind, first.policy) == ("retry", "") and first.due_at - first.at > 50
    obeyed(worker, url)
