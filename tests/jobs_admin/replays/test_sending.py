from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core.pacing import Bucket
from jobs_admin.models import Failure, Payload, QueueCounter, Replay, ReplayItem
from jobs_admin.replays import claiming, progress, send_results, sending, setting_aside
from jobs_admin.replays.line import Line
from jobs_admin.replays.messages import Writer
from tests.kit.people import ANN
from tests.kit.replays import AT_ONCE, came_home, counts, dated_group, refusal, sent_all, start_replay

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def test_every_job_is_put_on_its_queue_once_and_in_order(shop, bury):
    replay = start_replay(bury(1_200))
    sent_all()
    assert counts(replay) == {"sent": 1_200}
    lineages = [job["redrive"] for job in shop.queues["emails"]]
    assert [x["item"] for x in lineages] == list(replay.items.order_by("n").values_list("pk", flat=True))


def test_a_sent_job_is_the_second_run_of_the_same_failure(shop, bury):
    replay = start_replay(bury())
    sent_all()
    (job,), item, failure = shop.queues["emails"], replay.items.get(), Failure.objects.get()
    assert (failure.state, failure.run, failure.job_id) == ("replaying", 2, job["id"])
    assert (item.state, item.job_id) == ("sent", job["id"])
    assert job["redrive"] == {
        "queue": "emails", "job_id": "j0", "run": 2, "item": item.pk, "replay": replay.key, "sent_as": job["id"]
    }  # fmt: skip


def test_sending_is_counted_in_its_queue_s_minute(shop, bury):
    start_replay(bury(3))
    sent_all()
    # All of a step: the first of them may have gone in the last moment of a minute.
    sums = QueueCounter.objects.order_by().values_list("step").annotate(Sum("sent"))
    assert dict(sums) == {60: 3, 900: 3, 3600: 3}


def test_what_ingest_heard_before_the_mark_stays(shop, bury):
    replay = start_replay(bury())
    item = replay.items.get()
    came_home(item, "success")
    send_results.mark_sent(replay, claims(replay), timezone.now())
    failure = Failure.objects.get()
    assert (failure.state, failure.run) == ("recovered", 2)
    replays.settle()
    assert counts(replay) == {"succeeded": 1}


def test_a_failure_that_recovered_meanwhile_is_not_sent(shop, bury):
    first, second = bury(2)
    replay = start_replay([first, second])
    Failure.objects.filter(pk=first).update(state="recovered")
    sent_all()
    assert counts(replay) == {"sent": 1, "cancelled": 1}
    assert "already recovered" in replay.items.get(failure=first).outcome
    assert len(shop.queues["emails"]) == 1


def test_a_message_that_is_refused_ends_its_item_and_no_other(shop, bury):
    good = bury(2)
    (bad,) = bury(raw=b"not json")
    replay = start_replay([*good, bad])
    sent_all()
    assert counts(replay) == {"sent": 2, "cancelled": 1}
    item = replay.items.get(failure=bad)
    assert item.outcome.startswith("shop refused it: The captured message is not JSON") and item.was_excluded
    assert Failure.objects.get(pk=bad).state == "dead"


def test_an_unreachable_source_is_reported_and_sending_goes_on_by_itself(shop, bury):
    replay = start_replay(bury(3))
    shop.reachable = False
    before = time.monotonic()
    replays.send("one")
    assert counts(replay) == {"planned": 3}
    assert "unplugged" in replay.held_because and replay.state == "running"
    shop.reachable = True
    sender = sending._senders["one", os.getpid()]
    assert sender._resting["shop"].until >= before + 0.5
    sender._resting.clear()
    sent_all()
    assert counts(replay) == {"sent": 3} and replay.held_because == ""


def test_one_unreachable_source_does_not_stop_another(shop, bury):
    ids = bury(2) + bury(2, source="web")
    replay = start_replay(ids)
    config.adapter("web").reachable = False
    for _ in range(4):
        replays.send("one")
    assert counts(replay) == {"planned": 2, "sent": 2}


def claims(replay, sender="dead"):
    """As a sender does before it dies."""
    now = timezone.now()
    assert claiming.take_lease(replay, sender, now - timedelta(seconds=60))
    epoch = config.adapter("shop").epoch(replay.key)
    items, writer = claiming.find_planned(replay, 0, 10), Writer(replay)
    for item in items:
        item.job_id = writer.job_id(item)
    return claiming.claim(replay, sender, items, {"shop": epoch}, now)


def wakes(replay, items):
    """The source's answers to a sender that stalled, and now sends what it had claimed."""
    writer = Writer(replay)
    return set(config.adapter("shop").send(replay.key, [writer.build(item) for item in items]).values())


def test_a_sender_that_stalled_until_after_a_cancel_sends_nothing(shop, bury):
    replay = start_replay(bury(3))
    items = claims(replay)
    replays.cancel(ANN, replay)
    assert counts(replay) == {"planned": 3}
    sent_all("another")
    assert counts(replay) == {"cancelled": 3}
    assert wakes(replay, items) == {"recalled"} and not shop.queues["emails"]


def test_what_a_stalled_sender_sent_before_it_was_looked_up_is_sent_and_taken_back(shop, bury):
    replay = start_replay(bury(3))
    items = claims(replay)
    replays.cancel(ANN, replay)
    assert wakes(replay, items) == {"sent"}
    sent_all("another")
    assert counts(replay) == {"sent": 3}
    replays.settle()
    assert counts(replay) == {"cancelled": 3} and not shop.queues["emails"]


@pytest.mark.parametrize("is_awake", [True, False])
def test_a_stalled_sender_that_was_looked_up_before_the_cancel_is_checked_again(shop, bury, is_awake):
    replay = start_replay(bury(3))
    items = claims(replay)
    replays.pause(ANN, replay)
    sent_all("another")
    assert counts(replay) == {"planned": 3} and not replay.items.exclude(claimed_at=None).exists()
    if is_awake:
        assert wakes(replay, items) == {"sent"}
    replays.cancel(ANN, replay)
    replays.settle()
    sent_all("a third")
    assert counts(replay) == ({"sent": 3} if is_awake else {"cancelled": 3})
    assert wakes(replay, items) == {"already" if is_awake else "recalled"}


def test_a_claim_that_is_looked_up_while_the_replay_is_cancelled_stays_until_the_source_withholds_it(shop, bury):
    replay = start_replay(bury(3))
    items = claims(replay)
    Replay.objects.filter(pk=replay.pk).update(state="cancelled")
    send_results.mark_unsent(replay, [item.pk for item in items], timezone.now(), may_go=True)
    assert counts(replay) == {"planned": 3} and not replay.items.filter(claimed_at=None).exists()


def stalled(bury):
    """A paused replay of five jobs, three of one group, and the claims of these: their sender stalled, and another looked them up."""
    group = dated_group("bad")
    bad = bury(3, tenant="acme", group=group)
    replay = start_replay(bad + bury(2, tenant="globex"))
    items = claims(replay)
    replays.pause(ANN, replay)
    sent_all("another")
    assert counts(replay) == {"planned": 5} and not replay.items.exclude(claimed_at=None).exists()
    return replay, [item for item in items if item.failure in bad], group


def set_aside(replay, group):
    replay.without_groups = [group.pk]
    replay.save(update_fields=["without_groups"])
    return setting_aside.apply(replay, None, timezone.now())


def test_a_stalled_sender_sends_no_job_that_is_excluded_by_a_search_meanwhile(shop, bury):
    replay, items, _ = stalled(bury)
    replays.resume(ANN, replay, without="tenant:acme")
    assert counts(replay) == {"planned": 2, "cancelled": 3}
    assert wakes(replay, items) == {"recalled"} and not shop.queues["emails"]
    sent_all("a third")
    assert counts(replay) == {"sent": 2, "cancelled": 3}


def test_a_stalled_sender_sends_no_job_whose_group_is_set_aside_meanwhile(shop, bury):
    replay, items, group = stalled(bury)
    set_aside(replay, group)
    assert counts(replay) == {"planned": 2, "cancelled": 3}
    assert wakes(replay, items) == {"recalled"} and not shop.queues["emails"]


def test_what_a_stalled_sender_sent_before_its_jobs_are_excluded_is_sent(shop, bury):
    replay, items, group = stalled(bury)
    assert wakes(replay, items[:1]) == {"sent"}
    set_aside(replay, group)
    assert counts(replay) == {"planned": 2, "sent": 1, "cancelled": 2}
    assert wakes(replay, items) == {"already", "recalled"} and len(shop.queues["emails"]) == 1


def test_jobs_are_not_excluded_while_their_source_cannot_withhold_them(shop, bury):
    replay, items, group = stalled(bury)
    shop.reachable = False
    refused = refusal(replays.resume, ANN, replay, without="tenant:acme")
    assert refused.code == "changed" and "Nothing was changed" in str(refused) and counts(replay) == {"planned": 5}
    done = set_aside(replay, group)
    assert counts(replay) == {"planned": 5}
    shop.reachable = True
    setting_aside.apply(replay, done, timezone.now())
    assert counts(replay) == {"planned": 2, "cancelled": 3} and wakes(replay, items) == {"recalled"}


def test_a_group_whose_jobs_were_withheld_is_sent_when_it_is_brought_back(shop, bury):
    replay, items, group = stalled(bury)
    set_aside(replay, group)
    assert setting_aside.plan_again(replay, [group.pk]) == 3
    replay.without_groups = []
    replay.save(update_fields=["without_groups"])
    replays.resume(ANN, replay)
    sent_all("a third")
    assert counts(replay) == {"sent": 5}
    assert wakes(replay, items) == {"recalled"} and len(shop.queues["emails"]) == 5


@pytest.mark.parametrize("is_awake", [True, False])
def test_a_stalled_sender_sends_no_job_that_is_cancelled_because_its_failure_changed(shop, bury, is_awake):
    replay, items, _ = stalled(bury)
    if is_awake:
        assert wakes(replay, items[:1]) == {"sent"}
    Failure.objects.filter(pk__in=[item.failure for item in items]).update(state="recovered")
    replays.resume(ANN, replay)
    sent_all("a third")
    assert counts(replay) == ({"sent": 3, "cancelled": 2} if is_awake else {"sent": 2, "cancelled": 3})
    outcomes = set(replay.items.filter(state="cancelled").values_list("outcome", flat=True))
    assert outcomes == {"not sent: the job is already recovered"}
    assert wakes(replay, items) == ({"already", "recalled"} if is_awake else {"recalled"})
    assert len(shop.queues["emails"]) == (3 if is_awake else 2)


@pytest.mark.parametrize("is_awake", [True, False])
def test_a_stalled_sender_sends_no_job_that_another_sender_could_not_build(shop, bury, is_awake):
    replay, items, _ = stalled(bury)
    if is_awake:
        assert wakes(replay, items[:1]) == {"sent"}
    Payload.objects.filter(failure__in=[item.failure for item in items]).delete()
    replays.resume(ANN, replay)
    sent_all("a third")
    assert counts(replay) == ({"sent": 3, "cancelled": 2} if is_awake else {"sent": 2, "cancelled": 3})
    outcomes = set(replay.items.filter(state="cancelled").values_list("outcome", flat=True))
    assert outcomes == {"no complete message is stored"}
    assert wakes(replay, items) == ({"already", "recalled"} if is_awake else {"recalled"})


def test_jobs_of_a_stalled_sender_are_not_cancelled_while_their_source_cannot_withhold_them(shop, bury):
    replay, items, _ = stalled(bury)
    Failure.objects.filter(pk__in=[item.failure for item in items]).update(state="recovered")
    replays.resume(ANN, replay)
    shop.reachable = False
    replays.send("a third")
    assert counts(replay) == {"planned": 5}
    shop.reachable = True
    sending._senders["a third", os.getpid()]._resting.clear()
    sent_all("a third")
    assert counts(replay) == {"sent": 2, "cancelled": 3} and wakes(replay, items) == {"recalled"}


def released(replay, act):
    """Another sender claims jobs of a replay whose sender stalled, and releases some of them unsent because of `act`."""
    replays.resume(ANN, replay)
    replays.change_pace(ANN, replay, {"rate": 10})
    with config.adapter("shop")._lock:  # its first call has no answer yet, so the others are not due
        replays.send("a third")
        assert replay.items.filter(state="planned").exclude(claimed_at=None).count() > 1
        act(ANN, replay)
        replays.send("a third")
    while replays.send("a third"):
        pass
    sending.Sender("a fourth").round(timezone.now() + timedelta(minutes=1))  # after the third's lease


def test_a_stalled_sender_sends_no_excluded_job_that_another_sender_released(shop, bury):
    replay, items, group = stalled(bury)
    released(replay, replays.pause)
    went = len(shop.queues["emails"])
    assert counts(replay) == {"planned": 5 - went, "sent": went}
    set_aside(replay, group)
    bad = replay.items.filter(pk__in=[item.pk for item in items])
    assert counts(replay)["cancelled"] == bad.exclude(state="sent").count() > 0
    assert "sent" not in wakes(replay, items) and len(shop.queues["emails"]) == went


def test_a_stalled_sender_sends_no_job_that_another_sender_released_because_of_a_cancel(shop, bury):
    replay, items, _ = stalled(bury)
    released(replay, replays.cancel)
    went = len(shop.queues["emails"])
    assert counts(replay) == {"cancelled": 5 - went, "sent": went}
    assert replay.items.filter(pk__in=[item.pk for item in items], state="cancelled").exists()
    assert "sent" not in wakes(replay, items) and len(shop.queues["emails"]) == went


def test_who_died_before_sending_leaves_nothing_unsent(shop, bury):
    replay = start_replay(bury(3))
    claims(replay)
    sent_all("two")
    assert counts(replay) == {"sent": 3} and len(shop.queues["emails"]) == 3


def test_who_died_after_sending_is_not_repeated(shop, bury):
    replay = start_replay(bury(3))
    items = claims(replay)
    writer = Writer(replay)
    shop.send(replay.key, [writer.build(item) for item in items[:2]])
    sent_all("two")
    assert counts(replay) == {"sent": 3}
    assert sorted(j["id"] for j in shop.queues["emails"]) == sorted(replay.items.values_list("job_id", flat=True))


def test_a_lost_ledger_makes_claims_uncertain_and_nothing_is_repeated(shop, bury):
    replay = start_replay(bury(3))
    claims(replay)
    shop.forget()
    sent_all("two")
    assert counts(replay) == {"uncertain": 3} and not shop.queues["emails"]
    assert set(Failure.objects.values_list("state", flat=True)) == {"replaying"}


def test_a_call_that_breaks_off_is_reported_and_no_job_goes_twice(shop, bury):
    replay = start_replay(bury(3))
    queues, shop.queues = shop.queues, None  # the ledger knows the first, and no queue has it
    with pytest.raises(TypeError):
        sent_all()
    shop.queues = queues
    sent_all()
    assert counts(replay) == {"sent": 3}
    assert len(shop.queues["emails"]) == 2


def test_only_one_sender_holds_a_replay(shop, bury):
    replay = start_replay(bury())
    now = timezone.now()
    assert claiming.take_lease(replay, "one", now)
    assert not claiming.take_lease(replay, "two", now + timedelta(seconds=4))
    assert claiming.take_lease(replay, "one", now + timedelta(seconds=4))
    assert claiming.take_lease(replay, "two", now + timedelta(seconds=10))


def test_a_claim_left_in_a_cancelled_replay_is_still_reported(shop, bury):
    replay = start_replay(bury(12))
    items = claims(replay)
    replays.cancel(ANN, replay)
    assert counts(replay) == {"planned": 10, "cancelled": 2}
    ReplayItem.objects.filter(pk__in=[i.pk for i in items]).update(claimed_at=timezone.now() - timedelta(minutes=1))
    replays.send("two")
    assert counts(replay) == {"cancelled": 12} and not shop.queues["emails"]


def test_a_steady_replay_keeps_its_rate(shop, bury):
    replay = start_replay(bury(30), {"rate": 50})
    started = timezone.now()
    sent_all()
    assert (timezone.now() - started).total_seconds() > 29 / 50 / 1.05
    assert counts(replay) == {"sent": 30}


def test_the_rate_of_now_is_what_was_really_sent(shop, bury):
    replay, now = start_replay(bury(30), {"rate": 50}), timezone.now()
    Replay.objects.update(started_at=now - timedelta(minutes=1))
    replay.items.filter(n__lte=20).update(state="sent", sent_at=now - timedelta(seconds=5))
    replay.items.filter(n__range=(21, 25)).update(state="sent", sent_at=now - timedelta(seconds=30))
    replay.refresh_from_db()
    assert progress.rates_now([replay], now) == {replay.pk: 2}
    Replay.objects.update(started_at=now - timedelta(seconds=5))
    replay.refresh_from_db()
    assert progress.rates_now([replay], now) == {replay.pk: 4}
    replays.pause(ANN, replay)
    assert progress.rates_now([replay], now) == {replay.pk: 0}


def test_a_slice_does_not_check_everything_that_is_planned(shop, bury):
    start_replay(bury(60), {"rate": 100})
    with CaptureQueriesContext(connection) as seen:
        for _ in range(4):
            replays.send("one")
    assert not any("DISTINCT" in query["sql"] or "COUNT" in query["sql"] for query in seen)
    assert all("LIMIT" in query["sql"] for query in seen if "LEFT JOIN" in query["sql"])


def test_two_replays_are_paced_side_by_side(shop, bury):
    # So slow that rounds which a machine holds up for seconds do not send all of them.
    one, two = start_replay(bury(40), {"rate": 5}), start_replay(bury(40), {"rate": 5})
    for _ in range(5):
        replays.send("one")
    assert 0 < counts(one)["sent"] < 40 and 0 < counts(two)["sent"] < 40
    for replay in (one, two):
        replays.change_pace(ANN, replay, {"rate": 100})
    sent_all()
    assert counts(one) == counts(two) == {"sent": 40}


def test_pausing_takes_effect_with_the_next_slice(shop, bury):
    replay = start_replay(bury(100), {"rate": 40})
    replays.send("one")
    replays.pause(ANN, replay)
    assert not replays.send("one")
    before = len(shop.queues["emails"])
    time.sleep(0.2)
    assert not replays.send("one")
    assert len(shop.queues["emails"]) == counts(replay)["sent"] == before < 30
    replays.resume(ANN, replay)
    replays.send("one")
    assert before < counts(replay)["sent"] < before + 30


def test_edited_arguments_are_sent_and_hidden_ones_stay_real(shop, bury):
    (pk,) = bury(
        raw=b'{"args": [1], "kwargs": {"to": "ann", "token": "s3cret"}}', kwargs='{"to": "ann", "token": "[redacted]"}'
    )
    start_replay([pk], edit={"kwargs": {"to": "bob", "token": "[redacted]"}})
    sent_all()
    assert shop.queues["emails"][0]["kwargs"] == {"to": "bob", "token": "s3cret"}
    assert "s3cret" not in str(Replay.objects.get().edit)


def test_edited_positional_arguments_are_sent_and_hidden_ones_stay_real(shop, bury):
    (pk,) = bury(
        raw=b'{"args": ["ann", {"token": "s3cret"}], "kwargs": {}}',
        args='["ann", {"token": "[redacted]"}]',
        kwargs="{}",
    )
    start_replay([pk], edit={"args": ["bob", {"token": "[redacted]"}]})
    sent_all()
    assert shop.queues["emails"][0]["args"] == ["bob", {"token": "s3cret"}]


def test_what_is_marked_late_was_sent_when_it_went(shop, bury):
    replay = start_replay(bury(2))
    writer = Writer(replay)
    active = sending._ActiveReplay(replay, writer, Line(replay.key, writer, Bucket(None, 0.0), lambda: None), 0.0)
    active.went.extend(claims(replay))
    for item, ago in zip(active.went, (60, 59), strict=True):
        item.went_at = time.monotonic() - ago
    sending.Sender("one")._mark_sent(active)
    assert counts(replay) == {"sent": 2} and not active.went
    assert all(at < timezone.now() - timedelta(seconds=59) for at in replay.items.values_list("sent_at", flat=True))


def test_what_went_before_a_pause_is_marked_though_marking_is_far_behind(shop, bury):
    replay = start_replay(bury(1_500))
    sender = sending.Sender("one")
    while not shop.queues["emails"]:
        sender.round()
    replays.pause(ANN, replay)
    while sender.round():
        pass
    assert counts(replay)["sent"] == len(shop.queues["emails"]) > 0
    assert not replay.items.filter(claimed_at__isnull=False, state="planned").exists()


def test_who_lost_the_lease_claims_nothing(shop, bury):
    replay, now = start_replay(bury(3)), timezone.now()
    epochs = {"shop": shop.epoch(replay.key)}
    assert claiming.take_lease(replay, "one", now)
    assert claiming.take_lease(replay, "two", now + timedelta(seconds=10))
    items = claiming.find_planned(replay, 0, 10)
    assert claiming.claim(replay, "one", items, epochs, now) == []
    assert len(claiming.claim(replay, "two", items, epochs, now)) == 3


def test_a_slow_replay_writes_nothing_between_its_jobs(shop, bury, django_assert_max_num_queries):
    replay = start_replay(bury(3), {"every": 600})
    replays.send("one")
    assert counts(replay) == {"planned": 2, "sent": 1}
    with django_assert_max_num_queries(2):  # which replays run, and which stopped ones left a claim
        assert replays.send("one")
    replays.change_pace(ANN, replay, AT_ONCE)
    sent_all()
    assert counts(replay) == {"sent": 3}
