from __future__ import annotations

import hashlib
import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import replays, watch
from jobs_admin.models import Failure, FrozenBatch, Group, Replay, ReplayItem
from jobs_admin.replays import freezing, setting_aside
from jobs_admin.replays.freezing import BATCH, FIRST
from tests.kit.groups import group
from tests.kit.people import ANN, BOB
from tests.kit.replays import AT_ONCE, came_home, sent_all

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
CHUNK = FIRST + BATCH


def started(ids=(), who=ANN, query="", **pace):
    draft = replays.draft(who, query=query, selection=ids, pace=AT_ONCE | pace, reason="fixed")
    return replays.start(who, draft)


def create_all_items(replay):
    while replays.create_items():
        pass
    replay.refresh_from_db()
    return replay


def test_a_start_lays_out_the_first_and_the_step_the_rest_in_their_order(shop, bury):
    ids = bury(2 * CHUNK + 7)
    replay = started(ids)
    assert (replay.total, replay.planned, replay.items.count()) == (len(ids), len(ids), FIRST)
    assert create_all_items(replay).planned == len(ids) and not FrozenBatch.objects.exists()
    assert list(replay.items.order_by("n").values_list("n", "failure", "run")) == [
        (n, pk, 2) for n, pk in enumerate(ids, 1)
    ]


def test_the_step_is_one_of_watch():
    assert "lay" in watch.steps()


def test_a_small_replay_needs_no_step(shop, bury):
    replay = started(bury(FIRST))
    assert replay.items.count() == FIRST and not replays.create_items()


def test_what_another_took_meanwhile_is_reported_with_its_number(shop, bury):
    ids = bury(FIRST + 300)
    one = started(ids)
    two = started(ids[FIRST:], BOB)  # what one froze is still free
    assert two.total == 300 and two.planned == 300
    create_all_items(one)
    mine, theirs = Replay.objects.get(pk=one.pk), Replay.objects.get(pk=two.pk)
    assert (mine.total, mine.planned, mine.taken) == (len(ids) - FIRST, len(ids) - FIRST, FIRST)
    assert (theirs.total, theirs.planned, theirs.taken) == (FIRST, FIRST, 300 - FIRST)
    obstacle = {
        "code": "taken",
        "reason": f"claimed by replay #{two.pk} of bob in the meantime",
        "count": FIRST,
        "replay": two.pk,
    }
    assert obstacle in mine.blocked


def test_what_another_replay_sent_meanwhile_is_not_sent_again_though_it_died_again(shop, bury):
    ids = bury(FIRST + 2)
    slow = started(ids)
    replays.pause(ANN, slow)
    quick = started(ids[FIRST:], BOB)
    sent_all()
    for item in quick.items.all():
        came_home(item, "exception")
    while replays.settle():
        pass
    assert create_all_items(slow).total == FIRST and slow.taken == 2


def test_what_was_sent_by_a_clock_that_was_set_back_since_is_replayed_again(shop, bury):
    ids = bury(2)
    before = started(ids)
    sent_all()
    for item in before.items.all():
        came_home(item, "exception")
    while replays.settle():
        pass
    draft = replays.draft(ANN, selection=ids, pace=AT_ONCE, reason="an hour earlier")
    again = replays.start(ANN, draft, now=timezone.now() - timedelta(hours=1))
    assert (again.total, again.planned, again.taken) == (2, 2, 0)


def test_a_replay_all_of_which_others_took_is_over(shop, bury):
    ids = bury(FIRST + 2)
    replay = started(ids)
    Replay.objects.filter(pk=replay.pk).update(total=2, planned=2)
    replay.items.all().delete()
    started(ids[FIRST:], BOB)
    create_all_items(replay)
    replays.settle()
    replay.refresh_from_db()
    assert (replay.state, replay.total, replay.taken) == ("done", 0, 2)


def test_who_froze_fewer_than_the_draft_promised_is_reported_whose_they_are(shop, bury):
    ids = bury(10)
    late = replays.draft(BOB, selection=ids, reason="me too")
    first = started(ids[:4])
    late = replays.start(BOB, late)
    assert (late.total, late.taken) == (6, 4)
    assert [(row["replay"], row["count"]) for row in late.blocked] == [(first.pk, 4)]


def test_a_batch_is_created_once_however_many_take_it(shop, bury):
    replay = started(bury(FIRST + 50))
    (batch,) = FrozenBatch.objects.select_related("replay")
    freezing._create_batch_items(batch)
    freezing._create_batch_items(batch)
    replay.refresh_from_db()
    assert replay.items.count() == replay.planned == replay.total == FIRST + 50 and replay.taken == 0


def test_jobs_without_an_item_are_of_other_groups_only_if_one_of_them_is(shop, bury):
    replay = started(bury(FIRST + 50, group=group("one")))
    of_one = [Group.objects.get().pk]
    assert not setting_aside.has_others(replay, of_one) and setting_aside.has_others(replay, [])
    Failure.objects.filter(pk=Failure.objects.latest("pk").pk).update(group=group("two"))
    assert setting_aside.has_others(replay, of_one)


def test_what_is_left_out_while_its_batch_is_being_created_stays_out(shop, bury):
    bury(FIRST + 20)
    bury(10, queue="other")
    replay = started(query="source:shop")
    (batch,) = FrozenBatch.objects.select_related("replay")  # as `lay` has read it
    replays.pause(ANN, replay)
    replays.resume(ANN, replay, without="queue:other")
    freezing._create_batch_items(batch)
    replay = create_all_items(replay)
    assert (replay.planned, replay.cancelled) == (FIRST + 20, 10)
    assert replay.items.filter(state="planned").count() == FIRST + 20
    assert not replay.items.filter(state="planned", failure__queue="other").exists()


def test_what_was_pruned_meanwhile_counts_as_cancelled(shop, bury):
    ids = bury(FIRST + 5)
    replay = started(ids)
    Failure.objects.filter(pk__in=ids[-2:]).delete()
    assert (create_all_items(replay).total, replay.planned, replay.cancelled) == (FIRST + 5, FIRST + 3, 2)


@pytest.mark.parametrize("state, lays", [("paused", True), ("held", True), ("cancelled", False), ("draft", False)])
def test_only_what_has_begun_is_created(shop, bury, state, lays):
    replay = started(bury(FIRST + 5))
    Replay.objects.filter(pk=replay.pk).update(state=state)
    assert replays.create_items() is lays
    assert (replay.items.count() > FIRST) is lays


def test_a_batch_costs_the_same_statements_however_many_it_has(shop, bury):
    counts = []
    for count in (5, CHUNK):
        started(bury(FIRST + count))
        with CaptureQueriesContext(
            connection,
        ) as captured:
            replays.create_items()
        counts.append(len(captured))
    assert counts[0] == counts[1] < 15


@pytest.mark.parametrize(
    "key, values, found",
    [
        ("tenant", {"tenant": "acme"}, "acme"),
        ("task", {"task": "shop.send"}, "shop.send"),
        ("kwargs.customer", {"kwargs": json.dumps({"customer": 42})}, "42"),
        ("args.0.id", {"args": json.dumps([{"id": "x"}])}, "x"),
        ("kwargs.customer", {"kwargs": json.dumps({"customer": "[redacted]"})}, ""),
        ("kwargs.customer", {"kwargs": json.dumps({"customer": {"id": 1}})}, ""),
        ("kwargs.customer", {"kwargs": "{not json"}, ""),
        ("kwargs.customer", {"kwargs": r'{"customer": "a\u0000b"}'}, "a␀b"),
        ("kwargs.customer", {"kwargs": r'{"customer": "\ud800"}'}, r"\ud800"),
        ("kwargs.__class__", {"kwargs": '{"customer": 42}'}, ""),
        ("kwargs.customer", {"kwargs": json.dumps({"customer": "y" * 65})}, hashlib.sha256(b"y" * 65).hexdigest()),
    ],
)  # fmt: skip
def test_an_item_keeps_what_the_pace_counts_it_under(shop, bury, key, values, found):
    replay = started(bury(1, **values), per_key={"key": key, "concurrency": 5})
    assert replay.items.get().key == found


def test_a_scope_of_batches_is_written_as_few_rows(shop, bury):
    ids = bury(FIRST + 3 * CHUNK)
    replay = Replay.objects.create(actor="ann", scope_max_id=ids[-1], started_at=timezone.now())
    freezing.write_batches(replay, freezing.freeze([(pk, "", "shop") for pk in ids]), with_first=True)
    batches = list(FrozenBatch.objects.order_by("first_n"))
    assert [pk for batch in batches for pk in freezing.unpack_ids(batch)] == ids
    assert [batch.first_n for batch in batches][:2] == [1, FIRST + 1] and len(batches) <= 5
    assert not ReplayItem.objects.exists()


def test_one_that_cannot_be_created_reports_it_and_stops_no_other(shop, bury):
    odd, well = started(bury(CHUNK)), started(bury(CHUNK))
    batch = FrozenBatch.objects.get(replay=odd)
    ids = bytes(batch.ids)
    FrozenBatch.objects.filter(pk=batch.pk).update(ids=b"torn")
    while replays.create_items():
        pass
    odd.refresh_from_db()
    assert well.items.count() == CHUNK and odd.items.count() == FIRST
    assert (
        odd.held_because.startswith("Items of some of its jobs cannot be created: error: ") and odd.state == "running"
    )
    FrozenBatch.objects.filter(pk=batch.pk).update(ids=ids)
    assert create_all_items(odd).items.count() == CHUNK and odd.held_because == ""
