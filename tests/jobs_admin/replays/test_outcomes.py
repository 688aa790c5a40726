"""Jobs that are sent to a source that cannot say how they end."""

from __future__ import annotations

import pytest

from jobs_admin import replays
from jobs_admin.models import Attempt, Failure
from jobs_admin.queues import rates
from tests.kit.people import ANN, BOB
from tests.kit.replays import came_home, counts, refusal, sent_all, standing, start_replay

pytestmark = pytest.mark.django_db


@pytest.fixture
def silent(shop, monkeypatch):
    monkeypatch.setattr(shop, "can", type(shop.can)(atomic_send=True, edit=True, recall=True), raising=False)
    return shop


@pytest.fixture
def done_replay(silent, bury):
    replay = start_replay(bury(2))
    sent_all()
    replays.settle()
    replay.refresh_from_db()
    return replay


def test_what_no_one_will_hear_of_is_gone_and_reports_why(done_replay):
    assert done_replay.state == "done" and counts(done_replay) == {"sent": 2}
    assert {f.state for f in Failure.objects.all()} == {"gone"}
    assert (
        Failure.objects.first().reason == f"sent in replay #{done_replay.pk}: its source does not report how a job ends"
    )


def test_it_is_not_counted_among_those_that_died_for_ever(done_replay):
    assert rates.count_unrecovered() == {}


def test_it_is_not_reported_to_be_under_way_and_blocks_no_one(done_replay, bury):
    ids = list(Failure.objects.values_list("pk", flat=True))
    seen = replays.preview(ANN, selection=[*ids, *bury(1)])
    assert seen.replayable == 1 and [(row["code"], row["count"]) for row in seen.blocked] == [("gone", 2)]
    assert refusal(replays.draft, BOB, selection=ids[:1]).code == "nothing_to_replay"


def test_a_person_who_knows_reports_it_and_a_lost_one_can_be_replayed(done_replay):
    ran, lost = done_replay.items.order_by("n")
    replays.resolve_item(BOB, done_replay, ran.n, "ran")
    replays.resolve_item(BOB, done_replay, lost.n, "lost")
    done_replay.refresh_from_db()
    assert counts(done_replay) == {"succeeded": 1, "failed_again": 1} and done_replay.state == "done"
    assert list(Failure.objects.order_by("pk").values_list("state", "reason")) == [("recovered", ""), ("dead", "")]
    assert replays.start(BOB, replays.draft(BOB, selection=[lost.failure_id])).total == 1
    assert refusal(replays.resolve_item, BOB, done_replay, ran.n, "lost").code == "wrong_state"


def test_where_a_source_reports_a_sent_job_is_nobodys_to_settle(shop, bury):
    replay = start_replay(bury(1))
    sent_all()
    assert refusal(replays.resolve_item, ANN, replay, 1, "ran").code == "wrong_state"


def test_a_further_report_of_its_source_counts(done_replay):
    came_home(done_replay.items.get(n=1), "exception")
    replays.settle()
    assert counts(done_replay) == {"sent": 1, "failed_again": 1}
    assert replays.start(BOB, replays.draft(BOB, selection=[done_replay.items.get(n=1).failure_id])).total == 1


def test_what_a_cancel_takes_back_is_as_it_was(silent, bury):
    ids = bury(2, reason="too old")
    for pk in ids:
        Attempt.objects.create(
            failure_id=pk, run=1, attempt=1, kind="exception", job_id=Failure.objects.get(pk=pk).job_id,
            reason="too old", ended_at="2026-01-01T00:00Z", received_at="2026-01-01T00:00Z",
        )  # fmt: skip
    before = standing()
    replay = start_replay(ids)
    sent_all()
    assert set(Failure.objects.values_list("state", flat=True)) == {"gone"}
    replays.cancel(ANN, replay)
    replays.settle()
    assert standing() == before and set(Failure.objects.values_list("reason", flat=True)) == {"too old"}
