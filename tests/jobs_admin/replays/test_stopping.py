from __future__ import annotations

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import Failure, FrozenBatch, Replay
from jobs_admin.replays import stopping
from tests.kit.people import ANN, BOB
from tests.kit.replays import AT_ONCE, came_home, counts, sent_all, standing, start_replay
from tests.sources.contract import recalled

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture(autouse=True)
def forgotten():
    stopping._recalls.clear()


def test_what_no_one_has_fetched_is_taken_back_and_is_as_it_was(shop, bury):
    ids = bury(3)
    before = standing()
    replay = start_replay(ids)
    sent_all()
    shop.queues["emails"].pop(0)  # a worker has the first
    replays.cancel(ANN, replay)
    replays.settle()
    assert shop.queues["emails"] == []
    assert counts(replay) == {"sent": 1, "cancelled": 2}
    assert standing()[1:] == before[1:] and standing()[0][:2] == ("replaying", 2)
    assert replays.start(BOB, replays.draft(BOB, selection=ids, reason="again")).total == 2


def test_a_job_that_was_replayed_before_gets_the_id_of_its_last_run_back(shop, bury):
    (pk,) = bury()
    first = start_replay([pk])
    sent_all()
    second_run = first.items.get().job_id
    came_home(first.items.get(), "exception")
    replays.settle()
    second = start_replay([pk])
    sent_all()
    replays.cancel(ANN, second)
    replays.settle()
    assert standing() == [("dead", 2, second_run)]


def test_a_death_after_taking_back_is_made_good_by_the_next_round(shop, bury):
    replay = start_replay(bury(2))
    sent_all()
    replays.cancel(ANN, replay)
    recalled(shop, replay.key, ["emails"])  # … and the process died before it wrote anything
    replays.settle()
    assert counts(replay) == {"cancelled": 2} and {state for state, *_ in standing()} == {"dead"}


def test_an_unreachable_source_is_queried_again(shop, bury, monkeypatch):
    replay = start_replay(bury(2))
    sent_all()
    replays.cancel(ANN, replay)
    shop.reachable = False
    replays.settle()
    assert counts(replay) == {"sent": 2}
    shop.reachable = True
    monkeypatch.setattr(stopping, "_UNREACHABLE_S", 0.0)
    stopping._recalls.clear()  # the wait is over
    replays.settle()
    assert counts(replay) == {"cancelled": 2}


def test_news_that_came_before_it_was_taken_back_stand(shop, bury):
    replay = start_replay(bury(1))
    sent_all()
    replays.cancel(ANN, replay)
    Failure.objects.update(state="recovered")
    stopping.recall_sent(Replay.objects.get(pk=replay.pk), timezone.now())
    assert standing()[0][0] == "recovered"


def test_what_was_not_created_goes_with_a_cancel(shop, bury):
    replay = replays.start(ANN, replays.draft(ANN, selection=bury(450), pace=AT_ONCE, reason="fixed"))
    assert FrozenBatch.objects.count() == 1
    replays.cancel(ANN, replay)
    assert counts(replay) == {"cancelled": 450} and not FrozenBatch.objects.exists()
    assert not replays.create_items() and replay.items.count() == 200


def test_a_round_lets_go_of_so_many_and_the_next_ones_of_the_rest(shop, bury):
    replay = start_replay(bury(1_300))
    Replay.objects.filter(pk=replay.pk).update(state="cancelled")
    dropped = [stopping.drop_planned(replay, timezone.now(), most=500) for _ in range(4)]
    assert dropped == [500, 500, 300, 0] and counts(replay) == {"cancelled": 1_300}


def test_what_is_frozen_does_not_keep_what_is_created_from_being_let_go(shop, bury):
    replay = replays.start(ANN, replays.draft(ANN, selection=bury(1_300), pace=AT_ONCE, reason="fixed"))
    Replay.objects.filter(pk=replay.pk).update(state="cancelled")
    stopping.drop_planned(replay, timezone.now(), most=500)
    assert counts(replay) == {"cancelled": 1_300} and not FrozenBatch.objects.exists()


def test_a_huge_one_is_taken_back_bit_by_bit_while_others_are_settled(shop, bury):
    replay = start_replay(bury(350))
    sent_all()
    replays.cancel(ANN, replay)
    replay.refresh_from_db()
    left = []
    while stopping.recall_sent(replay, timezone.now(), within_s=0):
        left.append(counts(replay).get("sent", 0))
    assert left == [350, 250, 150, 50, 0] and shop.queues["emails"] == []


def test_a_write_that_fails_between_two_rounds_loses_nothing(shop, bury, monkeypatch):
    replay = start_replay(bury(250))
    sent_all()
    replays.cancel(ANN, replay)
    replay.refresh_from_db()
    assert [stopping.recall_sent(replay, timezone.now(), within_s=0) for _ in range(2)] == [True, True]
    with monkeypatch.context() as broken:
        broken.setattr(stopping, "_write_recalled", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stopping.recall_sent(replay, timezone.now())
    while stopping.recall_sent(Replay.objects.get(pk=replay.pk), timezone.now(), within_s=0):
        pass
    assert counts(replay) == {"cancelled": 250}
