"""Jobs that a breaker holds, in a real Redis: released in turn, each once, and held or due whatever dies in between."""

from __future__ import annotations

import json
import random

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker.delays import Delays, Head, Hold
from jobs_admin.worker.next_message import HOLD, TICKET, NotCelerys, next_message

pytestmark = pytest.mark.server
TICKET_1 = "1:1790000000000"


def head(job: str, **more) -> Head:
    return Head(job, 2, "send", "emails", list="emails", **more)


def message(job: str) -> bytes:
    raw = {"headers": {"task": "send", "id": job}, "properties": {"delivery_tag": "t", "delivery_info": {}}, "body": ""}
    return next_message(json.dumps(raw).encode(), 1, hold=("partner", 1, 0))


def hold(delays: Delays, job: str, tenant: str = "", rank: int = 0, breaker: str = "partner", **more) -> None:
    assert delays.schedule(head(job, **more), message(job), 900, hold=Hold(breaker, 1, tenant, rank))


def released(delays: Delays, client: redis.Redis) -> list[str]:
    """In the order in which a worker takes them."""
    delays.promote()
    found = []
    while (element := client.rpop("emails")) is not None:
        headers = json.loads(element)["headers"]
        assert headers[HOLD] == "partner"
        found.append(headers["id"])
    return found


def test_released_jobs_go_in_their_order_each_with_the_ticket(delays, client):
    for n in range(250):
        hold(delays, str(n))
    assert delays.count_all_holds() == {"partner": 250} and delays.promote().jobs == 0
    assert delays.release("partner", 120, TICKET_1) == 120
    assert delays.count_holds("partner") == 130
    assert delays.promote().jobs == 100 and delays.promote().jobs == 20
    elements = client.lrange("emails", 0, -1)[::-1]
    assert [json.loads(one)["headers"]["id"] for one in elements] == [str(n) for n in range(120)]
    assert {json.loads(one)["headers"][TICKET] for one in elements} == {TICKET_1}


def test_tenants_take_turns_and_what_is_more_urgent_goes_first(delays, client):
    for n in range(4):
        hold(delays, f"a{n}", "a")
    assert delays.release("partner", 2, TICKET_1) == 2
    for n in range(3):
        hold(delays, f"b{n}", "b")
    hold(delays, "urgent-later", "c", rank=1)
    assert released(delays, client) == ["a0", "a1"]
    delays.release("partner", 5, TICKET_1)
    assert released(delays, client) == ["a2", "b0", "a3", "b1", "b2"]
    hold(delays, "soon", "a")
    delays.release("partner", 5, "")
    assert released(delays, client) == ["soon", "urgent-later"]
    assert delays.count_all_holds() == {} and not client.exists(f"{keys.holds('shop', 'partner')}:places")


def test_a_job_that_comes_back_by_its_time_or_was_claimed_is_held_no_more(delays, client):
    for job in ("due", "claimed", "left"):
        hold(delays, job)
    client.zadd(keys.due("shop"), {head("due").member: 0})
    assert delays.promote().jobs == 1 and delays.count_holds("partner") == 2
    client.zadd(keys.due("shop"), {head("claimed").member: 0})
    taken, _ = delays.claim()
    assert [one.head.breaker for one in taken] == ["partner"]
    assert delays.release("partner", 5, TICKET_1) == 1  # not the one that somebody is about to publish
    delays.give_back(taken)
    assert delays.count_holds("partner") == 1
    taken, _ = delays.claim()
    delays.finish(taken)
    assert delays.count_holds("partner") == 0
    delays.release("partner", 0, "")
    assert delays.count_all_holds() == {} and client.hlen(keys.due_jobs("shop")) == 0


def test_a_job_that_is_held_again_before_it_was_finished_waits_once_under_its_new_breaker(delays, client):
    """On a broker that is not this Redis a worker had it before its publisher had removed it."""
    hold(delays, "a")
    client.zadd(keys.due("shop"), {head("a").member: 0})
    taken, _ = delays.claim()
    hold(delays, "a", breaker="other")
    delays.finish(taken)
    assert delays.count_all_holds() == {"other": 1} and delays.count() == 1


def test_what_cannot_be_read_is_released_as_it_is_and_holds_up_no_one(delays, client):
    delays.schedule(head("odd"), b"no JSON", 900, hold=Hold("partner", 1))
    hold(delays, "a")
    client.zadd(keys.holds("shop", "partner"), {"stray": 0})
    client.zadd(keys.holds("shop", "partner"), {"bad": 0})
    client.hset(keys.due_jobs("shop"), "bad", b"\xff\n{}")
    assert delays.release("partner", 2, TICKET_1) in (0, 1, 2)
    delays.release("partner", 2, TICKET_1)
    assert delays.count_all_holds() == {}
    delays.promote()
    assert client.rpop("emails") == b"no JSON"
    with pytest.raises(NotCelerys):
        next_message(b"no JSON", 0)


def test_a_job_that_comes_back_by_its_time_and_is_held_again_has_its_place_again(delays, client):
    for job in ("first", "second", "third"):
        hold(delays, job)
    client.zadd(keys.due("shop"), {head("first").member: 0})
    delays.promote()
    client.delete("emails")
    hold(delays, "first")
    hold(delays, "failed", rank=256)
    hold(delays, "last")
    delays.release("partner", 5, TICKET_1)
    assert released(delays, client) == ["first", "second", "third", "last", "failed"]


def test_queues_take_turns_and_a_probe_goes_ahead_of_its_queue(delays, client):
    for n in range(3):
        hold(delays, f"a{n}")
    other = Head("b", 2, "send", "webhooks", list="webhooks")
    assert delays.schedule(other, message("b"), 900, hold=Hold("partner", 1))
    client.lpush("emails", message("waiting"))
    assert delays.release("partner", 1, TICKET_1, is_probe=True) == 1
    assert released(delays, client) == ["a0", "waiting"]
    delays.release("partner", 1, TICKET_1)
    assert released(delays, client) == [] and client.llen("webhooks") == 1


class Died(Exception):
    pass


def dying(client: redis.Redis, draw: random.Random) -> Delays:
    """Delays whose caller dies at one of its calls, before or after Redis ran it; or lives."""
    left, before = draw.randint(1, 6), draw.random() < 0.5
    if draw.random() < 0.5:
        return Delays(client, "shop")
    other = redis.Redis(connection_pool=client.connection_pool)

    def execute(*args, **options):
        nonlocal left
        left -= 1
        if left == 0 and before:
            raise Died
        answer = client.execute_command(*args, **options)
        if left == 0:
            raise Died
        return answer

    other.execute_command = execute
    return Delays(other, "shop")


@pytest.mark.parametrize("seed", range(1, 41))
def test_random_histories_with_deaths_lose_nothing_and_send_nothing_twice(client, seed):
    draw = random.Random(seed)
    alive = Delays(client, "shop")
    sent: list[str] = []
    jobs: dict[str, tuple[str, int]] = {}
    for _ in range(120):
        delays = dying(client, draw)
        act = draw.choice(["hold", "hold", "hold", "release", "release", "promote", "hasten", "claim", "pass"])
        breaker = draw.choice(["partner", "other"])
        try:
            if act == "hold":
                job = f"j{len(jobs)}"
                rank = draw.randint(0, 2)
                jobs[job] = (breaker, rank)
                for one in (delays, alive):  # repeated, as a worker does that got no answer
                    try:
                        one.schedule(head(job), message(job), 900, hold=Hold(breaker, 1, draw.choice("abc"), rank))
                    except Died:
                        continue
            elif act == "release":
                delays.release(breaker, draw.randint(0, 5), TICKET_1)
            elif act == "promote":
                delays.promote()
            elif act == "hasten" and draw.random() < 0.1:
                delays.hasten()
            elif act == "claim":
                claimed, _ = delays.claim(most=3, is_due=draw.random() < 0.8)
                if claimed and draw.random() < 0.5:
                    for one in claimed:
                        client.lpush("emails", one.message)
                    alive.finish(claimed)
                else:
                    alive.give_back(claimed)
            else:
                for member in client.zrange(keys.due("shop"), 0, -1):
                    client.zincrby(keys.due("shop"), -31_000, member)
        except Died:
            pass
        sent += [json.loads(one)["headers"]["id"] for one in client.lrange("emails", 0, -1)[::-1]]
        client.delete("emails")
        check(client, jobs, sent)
    for breaker in ("partner", "other"):
        alive.release(breaker, 1000, TICKET_1)
    for member in client.zrange(keys.due("shop"), 0, -1):
        client.zadd(keys.due("shop"), {member: 0})
    while alive.promote().jobs:
        pass
    sent += [json.loads(one)["headers"]["id"] for one in client.lrange("emails", 0, -1)]
    client.delete("emails")
    for breaker in ("partner", "other"):
        alive.release(breaker, 0, "")
    assert sorted(sent) == sorted(jobs)
    assert not client.keys("redrive:*")


def check(client: redis.Redis, jobs: dict[str, tuple[str, int]], sent: list[str]) -> None:
    """Each job is sent or waits; it is in the index of its breaker while its entry says so, and in no other."""
    entries = {member.decode().split(":")[0]: entry for member, entry in client.hgetall(keys.due_jobs("shop")).items()}
    due = {member.decode().split(":")[0] for member in client.zrange(keys.due("shop"), 0, -1)}
    assert due == set(entries) and not due & set(sent) and due | set(sent) == set(jobs) and len(sent) == len(set(sent))
    for breaker in ("partner", "other"):
        listed = client.zrange(keys.holds("shop", breaker), 0, -1, withscores=True)
        named = {job for job, entry in entries.items() if json.loads(entry.split(b"\n")[0]).get("breaker") == breaker}
        assert (
            {member.decode().split(":")[0] for member, _ in listed}
            == named
            <= {job for job, (one, _) in jobs.items() if one == breaker}
        )
        ranks = [jobs[member.decode().split(":")[0]][1] for member, _ in listed]
        assert ranks == sorted(ranks) and len({score for _, score in listed}) <= len(listed)
