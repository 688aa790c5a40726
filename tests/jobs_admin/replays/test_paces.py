"""A pace is obeyed from the draft to the queue, and when it is changed on the way."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from jobs_admin import replays
from jobs_admin.core.refused import Refused
from jobs_admin.replays import sending
from tests.kit.people import ANN
from tests.kit.replays import rounds, sent_all, start_replay, until

pytestmark = pytest.mark.django_db

NIGHT = {"rate": 50, "window": {"from": "22:00", "to": "06:00"}}


def bucket(replay):
    """The place of the line that sends it."""
    return sending._senders["one", os.getpid()]._active[replay.pk].line.bucket


def test_over_is_a_rate_that_all_of_it_takes_so_long_at(shop, bury):
    replay = start_replay(bury(30), {"over": 60})
    assert (replay.rate, replay.pace["rate"]) == (0.5, 0.5) and "over" not in replay.pace
    assert replays.preview(ANN, selection=bury(30), pace={"over": 60}).duration_s == pytest.approx(60, rel=0.05)


def test_over_is_for_what_is_left_where_the_pace_is_changed_on_the_way(shop, bury):
    replay = start_replay(bury(20), {"style": "at_once", "queue_cap": 10})
    until(lambda: len(shop.queues["emails"]) == 10 and not (replay.refresh_from_db() or replay.planned > 10))
    assert replays.change_pace(ANN, replay, {"over": 100}).rate == 0.1


def test_a_cap_lets_in_as_many_as_are_taken_out(shop, bury):
    start_replay(bury(20), {"style": "at_once", "queue_cap": 5})
    until(lambda: len(shop.queues["emails"]) == 5)
    for _ in range(3):
        shop.fetch("emails")
    until(lambda: len(shop.queues["emails"]) == 5 and shop.queues["emails"][-1]["redrive"]["job_id"] == "j7")
    rounds()
    assert len(shop.queues["emails"]) == 5


def test_shuffled_each_goes_once_and_not_by_age(shop, bury):
    start_replay(bury(50), {"style": "at_once", "shuffle": True})
    sent_all()
    order = [int(job["redrive"]["job_id"][1:]) for job in shop.queues["emails"]]
    assert sorted(order) == list(range(50)) != order


def test_outside_its_hours_nothing_goes_and_within_them_it_does(shop, bury):
    noon, night = (datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (12, 23))
    replay = replays.start(ANN, replays.draft(ANN, selection=bury(1), pace=NIGHT), noon)
    rounds()
    assert replay.state == "waiting" and not shop.queues["emails"]
    replays.settle(night)
    until(lambda: len(shop.queues["emails"]) == 1)


def test_priority_and_jitter_are_those_of_the_pace_of_now(shop, bury):
    replay = start_replay(bury(40), {"rate": 20, "jitter": 0.5, "priority": 1})
    until(lambda: shop.queues["emails"])
    assert bucket(replay).jitter == 0.5
    replays.change_pace(ANN, replay, {"rate": 2_000, "priority": 9})
    rounds(1)
    assert bucket(replay).jitter == 0
    sent_all()
    assert [shop.queues["emails"][n]["priority"] for n in (0, -1)] == [1, 9]


@pytest.mark.parametrize(
    "pace, field",
    [
        ({"rate": 5, "shuffle": True}, "pace.shuffle"),
        ({"rate": 5, "per_key": {"key": "task", "rate": 1}}, "pace.per_key.key"),
    ],
)
def test_what_was_settled_at_the_start_cannot_be_changed_by_a_pace(shop, bury, pace, field):
    draft = replays.draft(
        ANN, selection=bury(2), reason="fixed", pace={"rate": 1, "per_key": {"key": "tenant", "rate": 1}}
    )
    assert replays.change_pace(ANN, draft, pace).pace.keys() >= pace.keys()  # nothing is settled before
    replay = start_replay(bury(2), {"rate": 1, "per_key": {"key": "tenant", "rate": 1}})
    assert replays.change_pace(ANN, replay, {"rate": 2, "per_key": {"key": "tenant", "rate": 3}}).rate == 2
    with pytest.raises(Refused, match="fixed when the replay started") as refused:
        replays.change_pace(ANN, replay, pace)
    assert (refused.value.code, refused.value.field) == ("bad_pace", field)
