from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.db import audit
from jobs_admin.models import Attempt, AuditEvent, DepthSample, Failure, Group, Replay
from jobs_admin.models.access import Viewer
from jobs_admin.replays import settling
from tests.kit.people import ANN
from tests.kit.replays import came_home, counts, sent_all, start_replay

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture
def replay(shop, bury):
    replay = start_replay(bury(3))
    sent_all()
    return replay


def test_a_replay_ends_when_every_job_has_ended(replay):
    one, two, three = replay.items.order_by("n")
    came_home(one, "success")
    came_home(two, "exception")
    replays.settle()
    assert counts(replay) == {"sent": 1, "succeeded": 1, "failed_again": 1} and replay.state == "running"
    came_home(three, "success")
    replays.settle()
    assert counts(replay) == {"succeeded": 2, "failed_again": 1}
    assert replay.state == "done" and replay.ended_at


def test_a_retry_means_that_it_runs_still(replay):
    item = replay.items.get(n=1)
    came_home(item, "retry")
    replays.settle()
    assert counts(replay) == {"sent": 2, "running": 1}
    assert not replays.settle()
    came_home(item, "exception", attempt=2)
    replays.settle()
    assert counts(replay) == {"sent": 2, "failed_again": 1}


def test_what_failed_again_reports_with_what_and_in_which_group(replay):
    now = timezone.now()
    group = Group.objects.create(fingerprint="v1-b", error_type="E", message="m", first_seen=now, last_seen=now)
    came_home(replay.items.get(n=1), "exception", error_type="KeyError", message="'x'", group=group)
    replays.settle()
    assert replay.items.get(n=1).outcome == "KeyError: 'x'"
    assert [(one.group, one.count) for one in replays.failed_again_groups(ANN, replay)] == [(group, 1)]


def test_of_several_attempts_the_last_counts_whatever_came_first(replay):
    item = replay.items.get(n=1)
    came_home(item, "success", attempt=3)
    came_home(item, "retry", attempt=1)
    came_home(item, "retry", attempt=2)
    replays.settle()
    assert counts(replay) == {"sent": 2, "succeeded": 1}


def firsts(replay):
    return list(replay.items.order_by("n").values_list("first_ok", "first_group"))


def test_the_first_attempt_is_stored_beside_the_outcome_and_a_retry_is_not_well(replay):
    now = timezone.now()
    group = Group.objects.create(fingerprint="v1-b", error_type="E", message="m", first_seen=now, last_seen=now)
    one, two, _ = replay.items.order_by("n")
    came_home(one, "success"), came_home(two, "retry", group=group)
    replays.settle(now)
    assert firsts(replay) == [(True, None), (False, group.pk), (None, None)]
    came_home(two, "success", attempt=2)
    replays.settle(now + timedelta(seconds=9))
    assert firsts(replay)[1] == (False, group.pk) and replay.items.get(n=2).first_at == now
    assert counts(replay) == {"sent": 1, "succeeded": 2}


def test_a_later_attempt_that_overtakes_the_first_reports_that_the_first_was_not_well(replay):
    came_home(replay.items.get(n=1), "success", attempt=2)
    replays.settle()
    assert firsts(replay)[0] == (False, None)


def test_of_a_run_that_keeps_its_attempts_the_lowest_number_is_the_first(replay):
    Replay.objects.update(attempts="kept")
    came_home(replay.items.get(n=1), "success", attempt=3)
    replays.settle()
    assert firsts(replay)[0] == (True, None)


def test_late_news_of_an_uncertain_job_reports_its_first_attempt_too(replay):
    replays.settle(timezone.now() + timedelta(seconds=3601))
    came_home(replay.items.get(n=2), "exception")
    replays.settle()
    assert firsts(replay) == [(None, None), (False, None), (None, None)]


def test_first_news_are_dated_one_after_the_other_whatever_the_clock_reports(replay):
    now = timezone.now()
    one, two, three = replay.items.order_by("n")
    came_home(one, "success")
    replays.settle(now)
    came_home(two, "success")
    replays.settle(now - timedelta(seconds=5))
    came_home(three, "success")
    replays.settle(now + timedelta(seconds=5))
    first, second, third = replay.items.order_by("n").values_list("first_at", flat=True)
    assert (first, third) == (now, now + timedelta(seconds=5)) and first < second < third


def test_attempts_of_an_earlier_run_report_nothing(replay):
    item, now = replay.items.get(n=1), timezone.now()
    Attempt.objects.create(
        failure_id=item.failure_id, run=1, attempt=1, kind="exception", ended_at=now, received_at=now
    )
    assert not replays.settle() and counts(replay) == {"sent": 3}


def test_an_attempt_found_lost_settles_without_naming_the_item(replay):
    item, now = replay.items.get(n=1), timezone.now()
    Attempt.objects.create(failure_id=item.failure_id, run=2, attempt=1, kind="lost", ended_at=now, received_at=now)
    replays.settle()
    assert counts(replay) == {"sent": 2, "failed_again": 1}


@pytest.fixture
def sampled(replay):
    """The replay was accepted onto a queue with an unguarded worker, and that queue was looked at since."""

    def settle_at(waiting=0, active=0, guarded=1, accepted=("unguarded",), seconds=120):
        now = timezone.now() + timedelta(seconds=seconds)
        Replay.objects.update(accepted=list(accepted))
        DepthSample.objects.bulk_create(
            DepthSample(
                source="shop", queue="emails", at=now - timedelta(seconds=10 * n), step=10, waiting=waiting if n == 1 else 0,
                active=active if n == 1 else 0, workers=2, guarded_workers=guarded,
            )
            for n in range(4)
        )  # fmt: skip
        replays.settle(now + timedelta(seconds=1))
        return counts(replay)

    return settle_at


def test_what_an_unguarded_worker_took_is_uncertain_once_its_queue_is_empty(replay, sampled):
    assert sampled() == {"uncertain": 3}
    replay.refresh_from_db()
    assert replay.state == "done" and "without the guard" in replay.items.first().outcome
    came_home(replay.items.get(n=2), "success")
    replays.settle()
    assert counts(replay) == {"uncertain": 2, "succeeded": 1}


@pytest.mark.parametrize(
    "otherwise", [{"waiting": 1}, {"active": 1}, {"active": None}, {"guarded": 2}, {"accepted": ()}, {"seconds": 100}]
)
def test_what_may_still_report_is_waited_for(sampled, otherwise):
    assert sampled(**otherwise) == {"sent": 3}


@pytest.fixture
def switched(replay):
    """The guard was switched off a second after the jobs were sent, and on again at a time."""

    def switch(on_after_s=None):
        sent_at = replay.items.order_by("sent_at").last().sent_at
        for act, seconds in (("off", 1), ("on", on_after_s)):
            if seconds is not None:
                audit.record(Viewer("manage.py"), f"guard.{act}", "guard", after=act)
                AuditEvent.objects.filter(act=f"guard.{act}").update(at=sent_at + timedelta(seconds=seconds))

    return switch


@pytest.mark.parametrize("on_after_s", [None, 60])
def test_what_was_taken_while_the_guard_was_off_is_uncertain_once_its_queue_is_empty(
    replay, sampled, switched, on_after_s
):
    switched(on_after_s)
    assert sampled(accepted=(), guarded=2, seconds=200) == {"uncertain": 3}
    replay.refresh_from_db()
    outcome = replay.items.first().outcome
    assert replay.state == "done" and "UTC; the queue is empty and no outcome was reported." in outcome
    assert ("The guard was off from" if on_after_s else "The guard has been off since") in outcome
    came_home(replay.items.get(n=2), "success")
    replays.settle()
    assert counts(replay) == {"uncertain": 2, "succeeded": 1}
    replays.resolve_item(ANN, replay, 1, "lost")
    assert counts(replay) == {"uncertain": 1, "succeeded": 1, "failed_again": 1}


@pytest.mark.parametrize("otherwise", [{"waiting": 1}, {"active": 1}, {"active": None}, {"seconds": 100}])
def test_what_may_still_run_after_the_guard_was_off_is_waited_for(sampled, switched, otherwise):
    switched(on_after_s=60)
    assert sampled(**{"accepted": (), "guarded": 2, "seconds": 200} | otherwise) == {"sent": 3}


def test_what_was_sent_after_the_guard_was_off_is_waited_for(sampled, switched):
    switched(on_after_s=-60)
    AuditEvent.objects.filter(act="guard.off").update(at=timezone.now() - timedelta(minutes=5))
    assert sampled(accepted=(), guarded=2, seconds=200) == {"sent": 3}


def test_silence_becomes_uncertain_and_late_news_still_settles(replay):
    later = timezone.now() + timedelta(seconds=3601)
    replays.settle(later - timedelta(seconds=60))
    assert counts(replay) == {"sent": 3}
    replays.settle(later)
    assert counts(replay) == {"uncertain": 3} and replay.state == "done"
    came_home(replay.items.get(n=2), "success")
    replays.settle(later)
    assert counts(replay) == {"uncertain": 2, "succeeded": 1}


def test_sent_jobs_of_a_cancelled_replay_still_report_how_they_ended(replay, shop):
    shop.queues["emails"].clear()  # workers have them
    replays.cancel(ANN, replay)
    came_home(replay.items.get(n=1), "success")
    replays.settle()
    assert counts(replay) == {"sent": 2, "succeeded": 1} and replay.state == "cancelled"


def test_settling_twice_counts_once(replay):
    came_home(replay.items.get(n=1), "success")
    replays.settle()
    assert not replays.settle()
    assert counts(replay) == {"sent": 2, "succeeded": 1}


def test_a_replay_that_fails_in_full_leaves_the_depth_as_it_was(replay):
    for item in replay.items.all():
        came_home(item, "exception")
    replays.settle()
    assert Failure.objects.filter(state="dead").count() == 3
    assert counts(replay) == {"failed_again": 3} and replay.state == "done"


def updates_of(statements, table):
    return [q["sql"] for q in statements if q["sql"].startswith(f'UPDATE "{table}"') or f"UPDATE {table} " in q["sql"]]


def test_much_news_is_written_in_short_transactions_of_three_statements(shop, bury):
    replay, now = start_replay(bury(700)), timezone.now()
    sent_all()
    Attempt.objects.bulk_create(
        Attempt(failure_id=i.failure_id, run=2, attempt=1, kind="success", ended_at=now, received_at=now)
        for i in replay.items.all()
    )
    with CaptureQueriesContext(connection) as seen:
        replays.settle()
    assert counts(replay) == {"succeeded": 700} and settling._BATCH <= 300
    assert len(updates_of(seen, "jobs_admin_replayitem")) == 6  # how they ended, and when first news of them came
    assert len(updates_of(seen, "jobs_admin_replay")) == 4  # a count for each batch, and the end


def test_with_very_many_out_only_what_was_filed_since_is_checked_and_nothing_is_missed(replay, monkeypatch):
    monkeypatch.setattr(settling, "_MANY", 0)
    monkeypatch.setattr(settling, "_settled_until", settling._SettledUntil())
    one, two, three = replay.items.order_by("n")
    came_home(one, "success")
    replays.settle()
    with CaptureQueriesContext(connection) as seen:
        assert not replays.settle()
    assert not [q for q in seen if "EXISTS" in q["sql"]]
    late = Attempt.objects.latest("pk").pk - 1  # written by another process, seen by us only now
    came_home(two, "success")
    replays.settle()
    assert counts(replay) == {"sent": 1, "succeeded": 2}
    came_home(three, "success")
    Attempt.objects.filter(failure=three.failure_id, run=2).update(id=late)
    replays.settle()
    assert counts(replay) == {"sent": 1, "succeeded": 2}
    settling._settled_until.complete_at -= settling._COMPLETE_EVERY_S
    replays.settle()
    assert counts(replay) == {"succeeded": 3}


def test_news_of_every_kind_is_written_in_one_statement(replay):
    now = timezone.now()
    group = Group.objects.create(fingerprint="v1-b", error_type="E", message="m", first_seen=now, last_seen=now)
    one, two, three = replay.items.order_by("n")
    came_home(one, "success"), came_home(two, "retry"), came_home(three, "exception", group=group)
    replays.settle(now)
    assert counts(replay) == {"running": 1, "succeeded": 1, "failed_again": 1}
    assert list(replay.items.order_by("n").values_list("state", "settled_at", "failed_group")) == [
        ("succeeded", now, None),
        ("running", None, None),
        ("failed_again", now, group.pk),
    ]


def test_an_item_that_was_settled_meanwhile_is_not_counted_again(replay):
    ends = [
        settling._ItemEnd(item.pk, "sent", "succeeded", "", None, True, None) for item in replay.items.order_by("n")
    ]
    replay.items.filter(n=1).update(state="uncertain")
    settling._write_ends(replay, ends, timezone.now())
    assert counts(replay) == {"sent": 1, "succeeded": 2}
    assert replay.items.get(n=1).state == "uncertain"


def test_a_cancel_that_was_broken_off_is_finished(shop, bury):
    ids = bury(3)
    replay = start_replay(ids)
    Replay.objects.filter(pk=replay.pk).update(state="cancelled")  # and then the canceller died
    assert replays.settle()
    assert counts(replay) == {"cancelled": 3}
    assert not replays.settle() and start_replay(ids).total == 3


def test_an_uncertain_job_is_not_settled(replay):
    replays.settle(timezone.now() + timedelta(seconds=3601))
    came_home(replay.items.get(n=2), "success")
    replays.settle()
    assert counts(replay) == {"uncertain": 2, "succeeded": 1}
    assert (replay.settled, replay.settled_percent) == (1, 33.3)
