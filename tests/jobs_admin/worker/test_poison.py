"""Poison pills in a real worker, under real kills."""

from __future__ import annotations

import json

import pytest

from tests.kit.policies import attempts, obeyed, policy
from tests.kit.streams import of_job

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("task", "how", "kind"), [("dies", "killed", "worker_lost"), ("hangs", "hard_limit", "hard_limit")]
)
def test_a_pill_starts_as_often_as_its_policy_allows_and_is_quarantined(worker, task, how, kind):
    url = worker.store_engine.url
    obeyed(worker, url, policy("pills", task, max_attempts=20, poison={"crashes": 2, "window_s": 300}))
    job = worker.send(task)
    quarantined = worker.wait(
        lambda: [one for one in of_job(worker.store_engine, job) if one.crashes], what="the quarantine"
    )
    assert (quarantined[0].kind, quarantined[0].reason) == (kind, "poison")
    assert [crash["how"] for crash in json.loads(quarantined[0].crashes)] == [how, how]
    assert len(attempts(worker, job)) == 2
    obeyed(worker, url)
