"""Fate of stored failures under a policy."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.core.policy import parse
from jobs_admin.models import Attempt, Group, GroupCounter, QueueCounter
from tests.kit.failures import bury
from tests.kit.people import ANN, LOU

pytestmark = pytest.mark.django_db

NOW = timezone.now()
BEGAN = NOW - timedelta(hours=2)


def failed(*attempts, group=None, **changes):
    """A job with these attempts: (seconds after the first, kind, error)."""
    (failure,) = bury(failed_at=BEGAN, group=group, **changes)
    for n, (after_s, kind, error) in enumerate(attempts, start=1):
        at = BEGAN + timedelta(seconds=after_s)
        times = {"ended_at": at, "received_at": at}
        Attempt.objects.create(failure=failure, run=1, attempt=n, kind=kind, job_id="j", error_type=error, **times)
    return failure


def judged(viewer=ANN, since=NOW - timedelta(days=1), **fields):
    policy = parse({"name": "draft", "backoff": {"kind": "fixed", "first_delay_s": 60}, **fields})
    return policies.backtest(viewer, policy, since, NOW)


def lasted(minutes, *, again_after=None):
    """A group that failed in each of that many minutes from the first on; again, that many minutes later."""
    group = Group.objects.create(fingerprint=f"v2-{minutes}", first_seen=BEGAN, last_seen=NOW)
    seen = [*range(minutes + 1), *([again_after] if again_after else [])]
    start = BEGAN.replace(second=0, microsecond=0)
    GroupCounter.objects.bulk_create(
        GroupCounter(group=group, step=60, at=start + timedelta(minutes=minute), failed=1) for minute in seen
    )
    return group


def test_a_permanent_error_is_dead_at_its_first_attempt_and_its_retries_are_saved():
    failed((0, "retry", "ValueError"), (5, "retry", "ValueError"), (9, "exception", "ValueError"))
    found = judged(classes=[{"error": "ValueError", "as": "permanent"}])
    assert (found.dead, found.retries_then, found.retries) == ({"permanent": 1}, 2, 0)


def test_a_job_that_died_in_seconds_outlives_an_outage_of_minutes():
    failed((0, "retry", "Timeout"), (10, "exception", "Timeout"), group=lasted(minutes=4))
    assert judged(max_attempts=6).outlive == 1
    assert judged(max_attempts=4).dead == {"exhausted": 1}


def test_an_error_that_comes_back_later_was_over_in_between():
    failed((0, "exception", "Timeout"), group=lasted(minutes=4, again_after=60))
    assert judged(max_attempts=8).outlive == 1


def test_of_an_error_that_is_still_seen_no_one_knows():
    failed((0, "exception", "Timeout"), group=lasted(minutes=119))
    assert judged(max_attempts=500).open == 1


def test_a_job_that_ran_well_in_the_end_is_lost_where_the_policy_gives_up_earlier():
    failed((0, "retry", "Timeout"), (600, "retry", "Timeout"), (1200, "success", ""), state="recovered")
    generous, lost = judged(max_attempts=20), judged(max_attempts=3)
    assert (generous.well, generous.lost) == (1, 0)
    assert (lost.dead, lost.lost) == ({"exhausted": 1}, 1)


def test_a_message_that_cannot_be_run_is_no_matter_of_a_policy():
    failed((0, "undecodable", ""))
    assert judged().unjudged == 1


def test_only_failures_that_this_policy_would_decide_about_are_judged(publish):
    failed((0, "exception", "Timeout"), task="shop.mail")
    failed((0, "exception", "Timeout"), task="shop.deliver")
    publish()  # for shop.mail, more particular than the draft
    assert judged().looked_at == 1


def test_failures_out_of_sight_and_of_before_are_not_judged():
    failed((0, "exception", "Timeout"), source="billing")
    assert judged(LOU).looked_at == 0
    assert judged(since=NOW - timedelta(hours=1)).looked_at == 0


def test_every_job_is_in_one_of_the_counts():
    failed((0, "exception", "ValueError"))
    failed((0, "exception", "Timeout"), group=lasted(minutes=3))
    failed((0, "undecodable", ""))
    failed((0, "exception", "Timeout"), group=lasted(minutes=119))
    failed((0, "retry", "Timeout"), (30, "success", ""))
    found = judged(max_attempts=200, classes=[{"error": "ValueError", "as": "permanent"}])
    counted = sum(found.dead.values()) + found.well + found.outlive + found.open + found.unjudged
    assert (counted, found.looked_at) == (5, 5)
    assert (found.well, found.outlive, found.open, found.unjudged) == (1, 1, 1, 1)


def test_more_failures_than_are_judged_are_reported(monkeypatch):
    monkeypatch.setattr("jobs_admin.policies.previewing.MOST_JUDGED", 2)
    bury(3)
    found = judged()
    assert (found.looked_at, found.is_cut) == (2, True)


def test_a_backtest_queries_as_much_of_the_database_for_many_jobs_as_for_one(django_assert_num_queries):
    bury(40, group=lasted(minutes=1))
    with django_assert_num_queries(5):
        judged()


class TestAGroupThatOtherSourcesShare:
    """The group failed for two hours in the bank, and for five minutes in the shop."""

    @pytest.fixture(autouse=True)
    def group(self):
        group = lasted(minutes=119)
        failed((0, "exception", "Timeout"), group=group)
        failed((0, "exception", "Timeout"), group=group, source="bank")
        start = BEGAN.replace(second=0, microsecond=0)
        for source, minutes in (("shop", 5), ("bank", 120)):
            QueueCounter.objects.bulk_create(
                QueueCounter(source=source, queue="q", step=60, at=start + timedelta(minutes=n), failed=1)
                for n in range(minutes)
            )

    def test_its_error_is_over_in_a_source_when_that_fails_no_more(self):
        found = judged(max_attempts=8, match={"source": "shop"})
        assert (found.outlive, found.open) == (1, 0)

    def test_and_goes_on_in_the_other(self):
        assert judged(max_attempts=500, match={"source": "bank"}).open == 1
