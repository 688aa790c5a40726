"""The end of a `lost` job, which no one saw, beside a worker's own word on the same attempt."""

from __future__ import annotations

import pytest

from jobs_admin.models import Attempt, Failure, Group, Payload, QueueCounter
from tests.kit.reports import file, misindexed, of_run, report

pytestmark = pytest.mark.django_db


def lost(**fields):
    return report(kind="lost", error_type="", message="The worker stopped.", trace="", reason="w1 stopped", **fields)


def standing():
    known = Failure.objects.values_list("state", "kind", "reason", "message", "attempts", "first_failed_at").get()
    counted = sorted(QueueCounter.objects.values_list("step", "failed", "retried", "recovered"))
    return known, sorted(Attempt.objects.values_list("run", "attempt", "kind")), counted


@pytest.mark.parametrize("kind", ["exception", "retry", "worker_lost", "rejected"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_lost_that_comes_after_a_workers_word_is_nothing(kind, at_once):
    file(report(kind=kind))
    before = standing()
    if at_once:
        Failure.objects.all().delete()
        QueueCounter.objects.all().delete()
        Group.objects.all().delete()
        file(report(kind=kind), lost(ago=30.0))
    else:
        file(lost(ago=30.0))
    assert standing() == before and not misindexed()


@pytest.mark.parametrize("kind", ["exception", "retry", "success"])
def test_a_loss_holds_until_a_worker_reports_otherwise(kind):
    file(lost(ago=30.0))
    assert Failure.objects.values_list("state", "kind", "reason").get() == ("dead", "lost", "w1 stopped")
    file(report(kind=kind, **({"reason": "it had been filed as lost"} if kind == "success" else {})))
    assert Failure.objects.get().kind == kind and not misindexed()


def test_a_success_that_ends_a_loss_is_news_also_where_the_loss_is_filed_later():
    file(report(kind="success", reason="it had been filed as lost"))
    file(lost())
    assert Failure.objects.values_list("state", "kind").get() == ("recovered", "success")
    assert Attempt.objects.get().kind == "success"


def test_the_message_of_a_lost_job_serves_where_the_worker_brought_none():
    file(report(raw=None, raw_size=0))
    file(lost())
    failure = Failure.objects.get()
    assert (failure.kind, failure.caveats) == ("exception", None)
    assert Payload.objects.get().is_whole


def test_a_lost_attempt_of_a_replay_is_dead_again_and_its_item_failed():
    file(report())
    Failure.objects.update(state="replaying", run=2, job_id="r2")
    file(of_run(2, "r2", "lost", error_type="", trace=""))
    failure = Failure.objects.get()
    assert (failure.state, failure.kind, failure.run, failure.attempts) == ("dead", "lost", 2, 1)
