"""Jobs that wait in a real Redis: each once, in time, whoever asks and whatever dies in between."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from random import Random

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker import delays as module
from jobs_admin.worker.delays import Delays, Head, TooManyWait
from tests.kit.endurance import times

pytestmark = pytest.mark.server


def head(job: str, attempt: int = 2, **more) -> Head:
    return Head(job, attempt, "send", "emails", list="emails", **more)


def pass_time(client, seconds: float) -> None:
    for member in client.zrange(keys.due("shop"), 0, -1):
        client.zincrby(keys.due("shop"), -seconds * 1000, member)


def test_a_job_goes_on_its_list_when_it_is_due_and_not_before(delays, client):
    delays.schedule(head("a"), b"a message\nof two lines \xff", 60)
    waits = delays.promote()
    assert waits.jobs == 0 and 0 < waits.next_s <= 60
    pass_time(client, 60)
    assert delays.promote().jobs == 1
    assert client.lrange("emails", 0, -1) == [b"a message\nof two lines \xff"]
    assert delays.count() == 0 and delays.promote().next_s is None
    assert client.hlen(keys.due_jobs("shop")) == 0


def test_the_same_attempt_waits_once_and_another_attempt_beside_it(delays):
    assert delays.schedule(head("a"), b"1", 10)
    assert not delays.schedule(head("a"), b"again", 0)
    assert delays.schedule(head("a", attempt=3), b"2", 10)
    assert delays.count() == 2


def test_jobs_that_were_given_the_same_id_wait_beside_each_other(delays):
    assert delays.schedule(head("sync", mark="0a"), b"monday", 10)
    assert delays.schedule(head("sync", mark="0b"), b"tuesday", 10)
    assert not delays.schedule(head("sync", mark="0a"), b"monday again", 0)
    assert delays.count() == 2


def test_what_was_due_first_runs_first(delays, client):
    for job, delay in (("c", 30), ("a", 10), ("b", 20)):
        delays.schedule(head(job), job.encode(), delay)
    pass_time(client, 60)
    delays.promote()
    assert [client.rpop("emails") for _ in range(3)] == [b"a", b"b", b"c"]


def test_many_promoters_bring_each_job_once(delays, client, broker):
    for n in range(500):
        delays.schedule(head(str(n)), str(n).encode(), 0)
    counts = []

    def promote():
        with redis.Redis.from_url(broker.url.removesuffix("/0") + "/2") as own:
            mine = Delays(own, "shop")
            while went := mine.promote().jobs:
                counts.append(went)

    threads = [threading.Thread(target=promote) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 500
    assert {int(message) for message in client.lrange("emails", 0, -1)} == set(range(500))


def test_the_delivery_whose_worker_died_before_it_acknowledged_does_not_come_again(delays, client):
    """kombu would put it back after the visibility timeout, beside the attempt that follows from it."""
    for tag in ("died", "lives"):
        client.hset("unacked", tag, json.dumps(["message", "", "emails"]))
        client.zadd("unacked_index", {tag: time.time()})
    delays.schedule(head("a", tag="died", unacked="unacked", unacked_index="unacked_index"), b"a", 0)
    delays.promote()
    assert client.hkeys("unacked") == [b"lives"] and client.zrange("unacked_index", 0, -1) == [b"lives"]


def test_a_key_that_is_no_queue_holds_up_no_one_and_loses_nothing(delays, client):
    client.set("emails", "somebody else's")
    delays.schedule(head("stuck"), b"stuck", 0)
    delays.schedule(Head("well", 2, "send", "webhooks", list="webhooks"), b"well", 0)
    assert delays.promote().jobs == 1
    assert client.lrange("webhooks", 0, -1) == [b"well"]
    assert delays.count() == 1


def test_a_redis_that_is_full_is_emptied(delays, client):
    delays.schedule(head("a"), b"x" * 1000, 0)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError):
            delays.schedule(head("b"), b"x", 0)
        assert delays.promote().jobs == 1
    finally:
        client.config_set("maxmemory", 0)
    assert client.llen("emails") == 1


def test_a_claimed_job_comes_back_unless_it_is_finished(delays, client):
    for job in ("a", "b"):
        delays.schedule(head(job, policy="p@1"), job.encode(), 0)
    claimed, _ = delays.claim()
    assert [(one.head.job_id, one.head.policy, one.message) for one in claimed] == [
        ("a", "p@1", b"a"),
        ("b", "p@1", b"b"),
    ]
    assert delays.claim()[0] == [] and delays.promote().jobs == 0
    delays.finish(claimed[:1])
    pass_time(client, module.LEASE_S)
    assert [one.head.job_id for one in delays.claim()[0]] == ["b"]


def test_what_was_claimed_and_given_back_is_due_at_once(delays, client):
    delays.schedule(head("a"), b"a", 0)
    claimed, _ = delays.claim()
    delays.give_back(claimed)
    assert len(delays.claim()[0]) == 1
    assert client.hlen(keys.due_claims("shop")) == 1


def test_a_job_that_waits_again_while_it_is_claimed_is_not_finished_with_its_forerunner(delays, client):
    """Published, and made to wait again by the worker that got it (no place was free), before its claim was finished."""
    delays.schedule(head("a"), b"first", 0)
    claimed, _ = delays.claim()
    assert delays.schedule(head("a"), b"anew", 0)
    delays.finish(claimed)
    assert [one.message for one in delays.claim()[0]] == [b"anew"]
    assert client.hlen(keys.due_jobs("shop")) == 1


def test_a_repeated_call_adds_nothing_while_the_job_waits_is_claimed_or_has_left(delays, client):
    message = head("a", idempotency_key="one")
    assert delays.schedule(message, b"a", 0) and not delays.schedule(message, b"a", 0)
    claimed, _ = delays.claim()
    assert not delays.schedule(message, b"a", 0)
    delays.give_back(claimed)
    claimed, _ = delays.claim()
    delays.finish(claimed)
    assert not delays.schedule(message, b"a", 0) and delays.count() == 0
    assert delays.schedule(head("a", idempotency_key="another"), b"a", 0)
    delays.finish(delays.claim()[0])
    assert sorted(client.zrange(keys.due_gone("shop"), 0, -1)) == [b"another", b"one"]
    client.zincrby(keys.due_gone("shop"), -121_000, "one")
    delays.finish(claimed)
    assert client.zrange(keys.due_gone("shop"), 0, -1) == [b"another"]
    assert 0 < client.pttl(keys.due_gone("shop")) <= 120_000


def test_a_job_runs_once_however_often_and_late_its_delivery_is_put_aside_again(delays):
    """Random histories: answers are lost, claims end or are given back, and what was published is put aside before its claim is finished."""
    for seed in range(times(40, 2_000)):
        random, runs, numbers = Random(seed), Counter(), itertools.count()
        hand = [
            (f"{seed}-{n}", f"{seed}:{next(numbers)}", False) for n in range(3)
        ]  # job, idempotency key, whether its put-aside was lost
        claims, published = [], []

        def put_aside(is_lost: bool, hand=hand, random=random) -> None:
            job, name, _ = hand.pop(random.randrange(len(hand)))
            delays.schedule(head(job, idempotency_key=name), b"", 0)
            if is_lost:
                hand.append((job, name, True))

        def publish(claim, seed=seed, hand=hand, numbers=numbers, published=published) -> None:
            hand += [(one.head.job_id, f"{seed}:{next(numbers)}", False) for one in claim]
            published.append(claim)

        for _ in range(random.randint(5, 60)):
            match random.choice(
                ("taken", "lost", "run", "claim", "claim", "publish", "publish", "finish", "back", "end")
            ):
                case "taken" | "lost" as act if hand:
                    put_aside(act == "lost")
                case "run" if new := [one for one in hand if not one[2]]:
                    hand.remove(new[0])
                    runs[new[0][0]] += 1
                case "claim":
                    claims.append(delays.claim(most=random.randint(1, 3))[0])
                case "publish" if claims:
                    publish(claims.pop(random.randrange(len(claims))))
                case "finish" if published:
                    delays.finish(published.pop(random.randrange(len(published))))
                case "back" if claims:
                    delays.give_back(claims.pop())
                case "end" if not published:  # a claim that ends after it was published is published twice
                    claims.clear()
                    pass_time(delays._client, module.LEASE_S)
        for claim in published:
            delays.finish(claim)
        for claim in claims:
            delays.give_back(claim)
        while hand or delays.count():
            for job, name, is_unanswered in [*hand]:
                hand.remove((job, name, is_unanswered))
                if is_unanswered:
                    delays.schedule(head(job, idempotency_key=name), b"", 0)
                else:
                    runs[job] += 1
            claim, _ = delays.claim()
            publish(claim)
            delays.finish(claim)
        assert runs == Counter({f"{seed}-{n}": 1 for n in range(3)}), seed


def test_whose_claim_ended_neither_finishes_nor_gives_back_what_another_has_claimed_since(delays, client):
    delays.schedule(head("a"), b"a", 0)
    slow, _ = delays.claim()
    pass_time(client, module.LEASE_S)
    quick, _ = delays.claim()
    delays.finish(slow)
    delays.give_back(slow)
    assert delays.count() == 1 and delays.claim()[0] == []
    delays.finish(quick)
    assert delays.count() == 0


def test_all_can_be_hastened_and_claimed_but_for_what_a_person_has(delays, client):
    for n in range(5):
        delays.schedule(head(str(n)), b"", 3600 + n)
    others, _ = delays.claim(most=2, is_due=False)
    assert delays.hasten() == 5
    assert [one.head.job_id for one in delays.claim(most=2, is_due=False)[0]] == ["2", "3"]
    assert delays.promote().jobs == 1
    delays.give_back(others)
    assert delays.promote().jobs == 2
    assert client.hkeys(keys.due_claims("shop")) == [b"2:2", b"3:2"]


UNREADABLE = [b"", b"{}", b"5\nx", b"null\nx", b"[]\nx", b"{\nx", b'{"list": 5}\nx', b'{"list": {}}\nx']


@pytest.mark.parametrize("entry", UNREADABLE)
def test_an_entry_that_cannot_be_read_holds_up_no_one_and_is_stored(delays, client, entry):
    client.hset(keys.due_jobs("shop"), "odd:3", entry)
    client.zadd(keys.due("shop"), {"odd:3": 0})
    delays.schedule(head("a"), b"a", 0)
    assert delays.promote().jobs == 1
    (odd,) = delays.claim(is_due=False)[0]
    assert (odd.head.job_id, odd.head.attempt, odd.head.queue, odd.message) == ("odd", 3, "", entry)


@pytest.mark.parametrize("tag", ["t1", 5, {"a": 1}])
@pytest.mark.parametrize("unacked", ["text", "", None])
def test_keys_that_are_not_what_kombu_calls_them_lose_no_job(delays, client, tag, unacked):
    client.set("text", "somebody else's")
    delays.schedule(head("a", tag=tag, unacked=unacked, unacked_index=unacked), b"a", 0)
    assert delays.promote().jobs == 1
    assert client.lrange("emails", 0, -1) == [b"a"]


def test_what_may_wait_is_bounded(delays, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    delays.schedule(head("a"), b"", 9)
    delays.schedule(head("b"), b"", 9)
    with pytest.raises(TooManyWait):
        delays.schedule(head("c"), b"", 9)
    assert not delays.schedule(head("a"), b"", 9)


def test_jobs_of_a_pause_leave_room_for_others(delays, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    for n in range(9):
        delays.schedule(head(str(n)), b"x", 60, is_paused=True)
    with pytest.raises(TooManyWait):
        delays.schedule(head("more"), b"x", 60, is_paused=True)
    assert delays.schedule(head("retry"), b"x", 60)


def test_a_job_of_a_pause_is_not_added_for_a_delivery_that_the_broker_took_back(delays, client):
    client.hset("unacked", "here", b"x")
    for tag, waits in (("here", True), ("gone", False)):
        one = head(tag, tag=tag, unacked="unacked", unacked_index="unacked_index")
        assert delays.schedule(one, b"x", 60, is_paused=True) is waits
    assert delays.count() == 1
    assert delays.schedule(one, b"x", 60)  # a retry: its delivery failed here
