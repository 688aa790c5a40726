"""Breakers in real workers, on Redis and on RabbitMQ, with a partner that goes down and comes back: jobs wait without an attempt spent,
each runs once, and none is dead.
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from jobs_admin.core import keys
from jobs_admin.core.breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from jobs_admin.holds.pausing import OPENS_WITHIN
from tests.kit.endurance import crossed
from tests.kit.partner import Partner
from tests.kit.pausing import unique
from tests.kit.policies import obeyed, policy, published
from tests.kit.streams import reports
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server
USUAL = 40  # jobs that show the breaker what is usual
BEFORE = 60  # requests that may fail before it opens, also on a busy machine


@pytest.fixture
def partner():
    running = Partner()
    yield running
    running.stop()


def settle(shop, reached, what: str):
    """Wait while jobs end well. What else a worker prints is no progress: it goes on probing for ever."""
    return wait_until(
        reached,
        what,
        progress=lambda: len(ended(shop)),
        within_s=120,
        process=shop.worker.process,
        text=shop.worker.text,
    )


def breaker(shop) -> Breaker:
    return Breaker.parse("partner", shop.store.hget(keys.breakers("shop"), "partner"))


def with_breaker(mode: str = "enforce", task: str = "call*", **fields) -> dict:
    part = {"dependency": "partner", **fields.pop("breaker", {})}
    return {"name": "calls", "match": {"task": task}, "mode": mode, "retries": False, "breaker": part, **fields}


def retried() -> dict:
    return policy(
        "calls",
        "call*",
        max_attempts=3,
        backoff={"kind": "fixed", "first_delay_s": 1},
        breaker={"dependency": "partner"},
    )


def call(shop, partner, count: int, queue: str, task: str = "call", tenant: str = "", **options) -> range:
    numbers = range(shop.sent, shop.sent + count)
    shop.sent += count
    for n in numbers:
        shop.worker.send(task, partner.place, n, queue=queue, kwargs={"tenant": tenant}, **options)
        if partner.is_down and (n + 1) % max(5, count // 6) == 0:
            time.sleep(0.4)  # failures of one moment alone open no breaker
    return numbers


def ended(shop) -> list[int]:
    return [n for _, n in shop.read_notes("end")]


def dead(shop) -> list:
    return [one for one in reports(shop.engine) if one.kind not in ("success", "retry")]


def work(shop, partner, queue: str, *policies, workers: int = 1, tenant: str = "", **options) -> None:
    """Workers under the policies, whose breaker has seen what is usual."""
    for _ in range(workers):
        shop.work(queues=queue, **{"concurrency": 4, **options})
    obeyed(shop.worker, shop.store_url, *policies)
    jobs = call(shop, partner, USUAL, queue, tenant=tenant)
    settle(shop, lambda: {*jobs} <= {*ended(shop)}, "what is usual")
    settle(shop, lambda: breaker(shop).number > 0, "it to be written")


def go_down(shop, partner, queue: str, count: int, **options) -> range:
    """Until all jobs of the partner wait."""
    partner.is_down = True
    jobs = call(shop, partner, count, queue, **options)
    settle(shop, lambda: breaker(shop).state == OPEN, "it to open")
    settle(shop, lambda: shop.queued(queue) == 0, "all to be put aside")
    return jobs


def come_back(shop, partner, jobs) -> None:
    """Until all of them have succeeded, each once."""
    partner.is_down = False
    settle(shop, lambda: {*jobs} <= {*ended(shop)}, "all of them")
    settle(shop, lambda: breaker(shop).state == CLOSED, "it to close")
    runs = Counter(ended(shop))
    assert not [n for n in jobs if runs[n] > 1] and shop.due() == 0


@pytest.mark.contract
@pytest.mark.parametrize(
    "late_ack", [pytest.param(False, id="early", marks=pytest.mark.endurance), pytest.param(True, id="late")]
)
def test_jobs_of_a_partner_that_is_down_wait_and_come_back_once_each(shop, partner, late_ack):
    queue = unique("calls")
    work(shop, partner, queue, retried(), late_ack=late_ack)
    jobs = go_down(shop, partner, queue, 60)
    before = partner.count_failed()
    assert before <= BEFORE
    began = time.monotonic()
    settle(shop, lambda: partner.count_failed() > before and time.monotonic() - began > 8, "a probe")
    assert partner.count_failed() - before <= 1 + (time.monotonic() - began) / 4  # one each 4 s at most
    come_back(shop, partner, jobs)
    assert not dead(shop)
    assert [one["to"] for one in breaker(shop).history][-3:] == [OPEN, HALF_OPEN, CLOSED]
    assert json.loads(shop.store.hvals(keys.workers("shop"))[0])["breakers"] == ["partner"]


def test_a_burst_opens_it_though_no_other_job_follows(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, retried())
    partner.is_down, partner.delay_s = True, 0.05
    jobs = range(shop.sent, shop.sent + 40)
    shop.sent += len(jobs)
    for n in jobs:
        shop.worker.send("call", partner.place, n, queue=queue, kwargs={"tenant": ""})
    settle(shop, lambda: breaker(shop).state == OPEN, "it to open")
    come_back(shop, partner, jobs)
    assert not dead(shop)


@pytest.mark.parametrize("task", ["call_automatic", pytest.param("call_again", marks=pytest.mark.endurance)])
def test_retries_of_the_task_wait_too_and_none_is_spent(shop, partner, task):
    queue = unique("calls")
    work(shop, partner, queue, with_breaker())
    jobs = go_down(shop, partner, queue, 40, task=task)
    time.sleep(6)  # longer than all of its retries take
    assert partner.count_failed() <= BEFORE + 3
    come_back(shop, partner, jobs)
    assert not dead(shop)


def test_a_task_without_retries_loses_only_what_failed_before_it_opened(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, with_breaker())
    jobs = go_down(shop, partner, queue, 60)
    time.sleep(6)
    lost = len(dead(shop))
    assert lost <= BEFORE
    partner.is_down = False
    settle(shop, lambda: len({*ended(shop)} & {*jobs}) == len(jobs) - lost, "all others")
    assert len(dead(shop)) == lost


def test_one_tenant_that_is_down_waits_alone(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, retried(), tenant="well")
    partner.refused = {"broken"}
    waiting, well = [], []
    for _ in range(40):
        waiting += call(shop, partner, 1, queue, tenant="broken")
        well += call(shop, partner, 2, queue, tenant="well")
    settle(shop, lambda: {*well} <= {*ended(shop)}, "the others to run")
    settle(shop, lambda: breaker(shop).tenants == ["broken"], "it to open for the tenant")
    well = [*call(shop, partner, 10, queue, tenant="well")]
    settle(shop, lambda: {*well} <= {*ended(shop)}, "the others to run on")
    partner.refused = set()
    come_back(shop, partner, waiting)
    assert not dead(shop)


@pytest.mark.parametrize("way", ["withdrawn", pytest.param("observed", marks=pytest.mark.endurance), "drain"])
def test_what_is_on_hold_comes_back_without_its_breaker(shop, partner, way):
    queue = unique("calls")
    work(shop, partner, queue, retried())
    jobs = go_down(shop, partner, queue, 40)
    partner.is_down = False
    if way == "drain":
        shop.store.set(keys.switch(), "drain")
    else:
        published(shop.store_url, *([with_breaker("observe")] if way == "observed" else []))
    settle(shop, lambda: {*jobs} <= {*ended(shop)}, "all of them")
    settle(shop, lambda: shop.due() == 0, "none to be left")
    runs = Counter(ended(shop))
    assert not [n for n in jobs if runs[n] > 1]


def test_a_job_on_hold_that_expires_is_reported_and_one_that_was_held_for_long_enough_starts(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, with_breaker(breaker={"max_hold_s": 12}))
    go_down(shop, partner, queue, 40)
    [late] = call(shop, partner, 1, queue, expires=5)
    sent_at = time.monotonic()
    [long] = call(shop, partner, 1, queue)
    settle(shop, lambda: [one for one in reports(shop.engine) if one.kind == "expired"], "its end")
    settle(shop, lambda: long in shop.ran(), "the other to start anyway")
    assert min(at for at, n in shop.read_notes() if n == long) - sent_at > 11
    assert late not in shop.ran()


@pytest.mark.parametrize("mode", ["policy", "worker"])
def test_observed_it_counts_what_it_would_hold_and_holds_nothing(shop, partner, mode):
    queue = unique("calls")
    observing = {"environment": {"REDRIVE_MODE": "observe"}}
    work(shop, partner, queue, with_breaker("observe"), **({} if mode == "policy" else observing))
    if mode == "worker":
        obeyed(shop.worker, shop.store_url, with_breaker("enforce"))
    partner.is_down = True
    jobs = call(shop, partner, 80, queue)
    settle(shop, lambda: {*jobs} <= {*shop.ran()}, "all of them to run")
    settle(shop, lambda: breaker(shop).state == OPEN and breaker(shop).starts > 0, "it to tell")
    assert shop.due() == 0
    partner.is_down = False
    jobs = call(shop, partner, 20, queue)
    settle(shop, lambda: breaker(shop).state == CLOSED, "it to close by outcomes alone")
    assert "Would have held" in breaker(shop).history[-1]["why"]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("shop", "moment"),
    crossed(("redis", "amqp"), ("hold", "release"), few=("redis-hold", "amqp-release")),
    indirect=["shop"],
)
def test_workers_that_are_killed_lose_no_job_on_hold(shop, partner, moment):
    queue = unique("calls")
    options = {"late_ack": True, "environment": {"REAL_VISIBILITY": "3"}}
    work(shop, partner, queue, retried(), workers=2, **options)
    partner.is_down = True
    jobs = call(shop, partner, 80, queue)
    settle(shop, lambda: breaker(shop).state == OPEN, "it to open")
    settle(shop, lambda: shop.queued(queue) == 0, "all to be put aside")
    if moment == "release":
        partner.is_down = False
        settle(shop, lambda: breaker(shop).state == HALF_OPEN and breaker(shop).released_count > 5, "a release")
    victim = shop.workers[0]
    shop.kill(victim)
    died = Counter(int(line.split()[2]) for line in victim.marks("noted") if line.startswith("start"))
    shop.work(queues=queue, concurrency=4, **options)
    time.sleep(3)
    partner.is_down = False
    settle(shop, lambda: {*jobs} <= {*ended(shop)}, "all of them")
    settle(shop, lambda: breaker(shop).state == CLOSED and shop.due() == 0, "it to close")
    runs = Counter(ended(shop))
    # On RabbitMQ a job is published, then removed from the store: the one of a worker that dies in between goes twice.
    assert len([n for n in jobs if runs[n] > 1 + bool(died[n])]) <= (shop.broker_url is not None)
    assert not dead(shop)


def test_a_pause_that_is_resumed_carefully_sends_a_probe_and_not_a_herd(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, with_breaker())
    shop.pause(queues=[queue])
    partner.is_down = True
    jobs = range(shop.sent, shop.sent + 40)
    for n in jobs:
        shop.worker.send("call", partner.place, n, queue=queue)
    shop.sent += len(jobs)
    opening = breaker(shop)
    opening.open_to_release("sam", time.time())
    shop.store.hset(keys.breakers("shop"), "partner", opening.render())
    shop.publish(queues={queue: round((time.time() + OPENS_WITHIN.total_seconds()) * 1000)})
    before = partner.count_failed()
    shop.settle(lambda: partner.count_failed() > before and not shop.queued(queue), "a probe")
    time.sleep(4)
    assert partner.count_failed() - before <= 2 and not {*jobs} & {*ended(shop)}
    come_back(shop, partner, jobs)
    assert not dead(shop)


def test_a_store_that_is_killed_and_comes_back_loses_no_job_on_hold(shop, partner, own_store):
    queue = unique("calls")
    work(shop, partner, queue, retried())
    jobs = go_down(shop, partner, queue, 40)
    time.sleep(1.5)  # it writes to the disk each second
    own_store.kill()
    time.sleep(2)
    own_store.start()
    time.sleep(2)
    come_back(shop, partner, jobs)
    assert not dead(shop)


@pytest.mark.contract
def test_the_more_urgent_and_the_earlier_ones_are_released_first(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, retried(), concurrency=1)
    partner.is_down = True
    jobs = [*call(shop, partner, 15, queue, task="call")]
    settle(shop, lambda: breaker(shop).state == OPEN, "it to open")
    urgent, usual = (0, 6) if shop.broker_url is None else (9, 1)
    later = [*call(shop, partner, 10, queue, priority=usual), *call(shop, partner, 5, queue, priority=urgent)]
    # The queue is empty while the last of them is in a worker's hand.
    settle(shop, lambda: shop.on_hold("partner") == len(jobs) + len(later), "all to be on hold")
    come_back(shop, partner, [*jobs, *later])
    order = [n for n in ended(shop) if n in later]
    assert order[:5] == later[10:] and order[5:] == later[:10]


def test_a_worker_that_cannot_put_more_aside_stops_consuming_and_reports_it(shop, partner):
    queue = unique("calls")
    work(shop, partner, queue, retried(), environment={"REAL_MOST_WAITING": "30"})
    partner.is_down = True
    jobs = call(shop, partner, 60, queue)
    settle(shop, lambda: breaker(shop).state == OPEN, "it to open")

    def is_congested() -> bool:
        beats = [json.loads(one) for one in shop.store.hvals(keys.workers("shop"))]
        return [queue] in [beat["congested"] for beat in beats] and bool(breaker(shop).extra.get("at_bound"))

    settle(shop, is_congested, "it to say that its bound is reached")
    assert shop.queued(queue) > 0
    come_back(shop, partner, jobs)
    assert not dead(shop)
