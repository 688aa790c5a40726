"""Limits by pace and controller: how many may have gone, be under way, be of one customer, or wait in a queue."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from django.db.models import F
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.replays import sending
from tests.kit.people import ANN
from tests.kit.replays import rounds, until
from tests.sources.contract import recalled

pytestmark = pytest.mark.django_db


def start_replay(ids, keys=(), **pace):
    """Started as fast as can be; `keys` are those of the items, in their order, as laying them out finds them."""
    replay = replays.start(ANN, replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="fixed"))
    while replays.create_items():
        pass
    for item, key in zip(replay.items.order_by("n"), keys, strict=False):
        ReplayItem.objects.filter(pk=item.pk).update(key=key)
    Replay.objects.filter(pk=replay.pk).update(pace={"style": "at_once", **pace})
    return replay


def departed_by_key(replay):
    """Jobs that left the plan, by key."""
    return Counter(replay.items.exclude(state="planned").values_list("key", flat=True))


def waiting_reason(replay):
    replay.refresh_from_db()
    return replay.held_because


def ended(replay, count, **which):
    """`n` of the sent jobs succeeded."""
    pks = list(replay.items.filter(state="sent", **which).values_list("pk", flat=True)[:count])
    ReplayItem.objects.filter(pk__in=pks).update(state="succeeded", settled_at=timezone.now())
    Replay.objects.filter(pk=replay.pk).update(sent=F("sent") - len(pks), succeeded=F("succeeded") + len(pks))


def test_no_more_leave_the_plan_than_the_controller_allows(shop, bury):
    replay = start_replay(bury(30))
    Replay.objects.update(may_send=10)
    rounds()
    assert departed_by_key(replay).total() == 10
    ended(replay, 10)  # what has ended has left the plan too
    rounds()
    assert departed_by_key(replay).total() == 10
    Replay.objects.update(may_send=25)
    rounds()
    assert departed_by_key(replay).total() == 25 and len(shop.queues["emails"]) == 25


def test_a_replay_that_waits_for_outcomes_reports_it_until_it_moves(shop, bury):
    replay = start_replay(bury(10), in_flight=4)
    until(lambda: waiting_reason(replay) == "Waiting: 4 sent jobs have not ended (at most 4)")
    assert departed_by_key(replay).total() == 4
    ended(replay, 3)
    until(lambda: departed_by_key(replay).total() == 7)
    assert waiting_reason(replay) == ""


def test_one_customer_has_no_more_under_way_than_allowed_and_others_go_on(shop, bury):
    keys = ["cobalt"] * 20 + ["ann", "ann", "ann", "bob", ""]
    replay = start_replay(bury(25), keys, per_key={"key": "tenant", "concurrency": 2})
    until(lambda: "cobalt" in waiting_reason(replay))
    assert departed_by_key(replay) == {"cobalt": 2, "ann": 2, "bob": 1, "": 1}
    assert waiting_reason(replay) == "Waiting: 2 of 2 jobs of cobalt are running, and so for 1 more"
    ended(replay, 1, key="cobalt")
    ended(replay, 2, key="ann")
    until(lambda: departed_by_key(replay) == {"cobalt": 3, "ann": 3, "bob": 1, "": 1})
    assert [i.n for i in replay.items.filter(key="cobalt").exclude(state="planned").order_by("n")] == [1, 2, 3]


def test_all_jobs_of_a_limited_customer_go_in_the_end(shop, bury):
    replay = start_replay(bury(60), ["cobalt", "ann", "bob"] * 20, per_key={"key": "tenant", "concurrency": 3})
    for _ in range(100):
        rounds(1)
        most = Counter(replay.items.filter(state="sent").values_list("key", flat=True))
        assert all(n <= 3 for n in most.values())
        ended(replay, 100)
        if departed_by_key(replay).total() == 60:
            break
    assert departed_by_key(replay) == {"cobalt": 20, "ann": 20, "bob": 20}


def test_a_customer_with_thousands_of_waiting_jobs_is_passed_once(shop, bury):
    ids = bury(3_000)
    replay = start_replay(ids, per_key={"key": "tenant", "concurrency": 1})
    replay.items.filter(n__lte=2_990).update(key="cobalt")
    replay.items.filter(n__gt=2_990).update(key=F("n"))
    until(lambda: departed_by_key(replay).total() == 11)
    choice = sending._senders["one", os.getpid()]._active[replay.pk].choice
    assert choice.far == 3_000 and list(choice.waiting) == ["cobalt"]
    ended(replay, 1, key="cobalt")
    until(lambda: departed_by_key(replay)["cobalt"] == 2)


def test_a_customer_s_rate_holds_while_others_go(shop, bury):
    replay = start_replay(bury(30), ["cobalt"] * 20 + ["ann"] * 2, per_key={"key": "tenant", "rate": 10})
    begins = timezone.now()
    until(lambda: departed_by_key(replay)["cobalt"] >= 8)
    took = (timezone.now() - begins).total_seconds()
    assert departed_by_key(replay)["cobalt"] <= 1.05 * 10 * took + 3
    assert departed_by_key(replay)[""] == 8 and departed_by_key(replay)["ann"] == 2


def test_a_full_queue_takes_no_more_and_another_goes_on(shop, bury):
    full, other = bury(6), bury(3, queue="webhooks")
    shop.queues["emails"] = [{"id": f"own{n}", "sent_as": ("", 0)} for n in range(10_000)]
    replay = start_replay([*full, *other], queue_cap=10_002)
    until(lambda: waiting_reason(replay) == "emails holds 10,002 already (cap 10,002)")
    assert (len(shop.queues["emails"]), len(shop.queues["webhooks"])) == (10_002, 3)
    del shop.queues["emails"][:3]
    until(lambda: len(shop.queues["emails"]) == 10_002)
    assert departed_by_key(replay).total() == 8


def test_what_was_recalled_is_not_sent_and_its_failure_stays_dead(shop, bury):
    replay = start_replay(bury(3))
    recalled(shop, replay.key, ["emails"])
    rounds()
    replay.refresh_from_db()
    assert (replay.cancelled, replay.planned, shop.queues["emails"]) == (3, 0, [])
    assert set(replay.items.values_list("failure__state", "failure__run")) == {("dead", 1)}
