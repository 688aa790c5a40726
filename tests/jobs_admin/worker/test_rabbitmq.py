"""Policies on a real RabbitMQ: retries wait in the store, come back confirmed and once, in the order of priorities."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis
from kombu import Connection

from dashboard.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.priority import LEVELS, RABBITMQ, level, number
from jobs_admin.worker.broker import Publisher
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.later import promote
from tests import rabbitmq
from tests.jobs_admin.worker.conftest import of_job, reports
from tests.jobs_admin.worker.policies import attempts, obeyed, policy, published
from tests.real_celery import RealWorker

pytestmark = pytest.mark.server

AT_REST = {"kind": "fixed", "first_delay_s": 600}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if rabbitmq.server() is None:
        pytest.skip(rabbitmq.HOW_TO_GET_IT)
    running = rabbitmq.Node(tmp_path_factory.mktemp("rabbitmq")).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shop(node, tmp_path_factory):
    """A prefork worker with two children on RabbitMQ, and a store of its own."""
    store = Engine(tmp_path_factory.mktemp("store")).start()
    running = RealWorker(node.url, store.url).start()
    running.store = store
    yield running
    running.stop()
    store.stop()


@pytest.fixture
def store(shop):
    with redis.Redis.from_url(shop.store.url) as client:
        yield client


def depth(node, queue: str) -> int:
    with Connection(node.url) as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def test_a_retry_waits_in_the_store_and_not_in_the_broker_and_runs_once(shop, store, node):
    version = obeyed(shop, shop.store.url, policy("p", max_attempts=2, backoff=AT_REST))
    job = shop.send("try", "down", 2, queue="emails", priority=6, headers={"redrive-test": "kept"})
    shop.wait(lambda: store.zcard(keys.due("shop")) == 1, what="one that waits")
    shop.wait(lambda: len(of_job(shop.store, job)) == 1, what="its report")
    assert depth(node, "emails") == 0
    Delays(store, "shop").hasten()
    shop.wait(lambda: len(of_job(shop.store, job)) == 2, what="its second attempt")
    retried, well = of_job(shop.store, job)
    assert (retried.kind, retried.policy, retried.priority, retried.queue) == ("retry", f"p@{version}", 6, "emails")
    assert (well.kind, well.attempt) == ("success", 2)
    assert [n for n, _ in attempts(shop, job)] == [1, 2]
    assert not store.exists(keys.due("shop"), keys.due_jobs("shop"), keys.due_claims("shop"))


def test_a_live_edit_decides_the_next_attempt(shop, store):
    old = obeyed(shop, shop.store.url, policy("p", max_attempts=50, backoff=AT_REST))
    job = shop.send("try")
    shop.wait(lambda: store.zcard(keys.due("shop")) == 1, what="one that waits")
    new = obeyed(shop, shop.store.url, policy("p", max_attempts=2))
    Delays(store, "shop").hasten()
    shop.wait(lambda: len(of_job(shop.store, job)) == 2, what="its last attempt")
    assert [(one.policy, one.max_attempts, one.reason) for one in of_job(shop.store, job)] == [
        (f"p@{old}", 50, ""),
        (f"p@{new}", 2, "exhausted"),
    ]


def test_jobs_that_wait_for_a_place_all_run_and_never_two_of_one_key(shop, store):
    """Each is published, and told to wait by the worker that gets it, again and again."""
    obeyed(shop, shop.store.url, policy("one", "noted", concurrency={"key": "kwargs.key", "limit": 1}))
    for n in range(5):
        shop.send("noted", n, kwargs={"seconds": 0.1, "key": "ann"})
    shop.wait(lambda: sum(line.startswith("end") for line in shop.marks("noted")) == 5, 30, "five that ran")
    noted = [line.split() for line in shop.marks("noted")]
    assert [what for what, *_ in noted] == ["start", "end"] * 5
    assert sorted(int(n) for what, _, n, *_ in noted if what == "start") == list(range(5))
    shop.wait(lambda: not store.exists(keys.due_jobs("shop"), keys.due_claims("shop")), what="nothing to wait")


def test_a_budget_that_is_spent_ends_the_retries_of_all(shop):
    obeyed(shop, shop.store.url, policy("b", max_attempts=9, budget={"per_minute": 1, "burst": 3}))
    jobs = [shop.send("try") for _ in range(2)]
    shop.wait(
        lambda: sum(one.reason == "budget" for job in jobs for one in of_job(shop.store, job)) == 2, what="two dead"
    )
    kinds = Counter(one.kind for job in jobs for one in of_job(shop.store, job))
    assert kinds == {"retry": 3, "exception": 2}


def test_a_pill_starts_as_often_as_the_policy_allows_and_good_jobs_run(shop):
    obeyed(shop, shop.store.url, policy("pill", "dies", max_attempts=9, poison={"crashes": 3, "window_s": 300}))
    good = [shop.send("ok", f"beside {n}") for n in range(10)]
    pill = shop.send("dies")
    found = shop.wait(lambda: len(told := of_job(shop.store, pill)) == 3 and told, what="its quarantine")
    assert [(one.kind, one.reason) for one in found] == [("retry", ""), ("retry", ""), ("worker_lost", "poison")]
    assert found[-1].crashes and len(attempts(shop, pill)) == 3
    shop.wait(lambda: sum("beside" in line for line in shop.marks("ok")) == len(good), what="the good jobs")


def test_what_the_broker_does_not_take_waits_on_and_holds_up_no_other(node, store):
    delays = Delays(store, "other")
    made = []
    publisher = Publisher(lambda: made.append(Connection(node.url)) or made[-1])
    message = b'{"body": "{}", "headers": {"task": "send"}, "properties": {}}'
    with Connection(node.url) as connection:
        connection.default_channel.queue_declare("there", durable=True)
    for job, queue in (("a", "gone"), ("b", "there")):
        delays.schedule(Head(job, 2, "send", queue), message, 0)
    promoted = promote(delays, publisher)
    assert promoted.jobs == 1 and "NO_ROUTE" in promoted.failed
    assert store.hkeys(keys.due_jobs("other")) == [b"a:2"]
    publisher.publish("there", message)
    # As after a restart of the broker, or an idle hour behind a firewall.
    made[-1].connection.transport.sock.shutdown(2)
    publisher.publish("there", message)
    assert depth(node, "there") == 3


def test_priorities_are_obeyed_and_a_kill_of_every_worker_loses_no_retry_and_doubles_none(node, own_store):
    published(own_store.url, policy("p", max_attempts=2, backoff=AT_REST))
    worker = RealWorker(node.url, own_store.url, concurrency=1, queues="ranked")
    asked = [one for one in LEVELS for _ in range(3)]
    random.Random(1).shuffle(asked)
    jobs = {worker.send("try", queue="ranked", priority=number(one, RABBITMQ)): one for one in asked}
    try:
        worker.start()
        worker.wait(lambda: len(reports(own_store)) == 12, what="twelve that wait")
        worker.kill()
        first = [line.split() for line in worker.marks("attempts")]
        with redis.Redis.from_url(own_store.url) as client:
            assert Delays(client, "shop").hasten() == 12
        worker.start()
        worker.wait(lambda: len(reports(own_store)) == 24, what="a second attempt of each")
    finally:
        worker.stop()
    assert [jobs[job] for job, _, _ in first] == [one for one in LEVELS for _ in range(3)]
    began = Counter(tuple(line.split()[:2]) for line in worker.marks("attempts"))
    assert began == Counter({(job, n): 1 for job in jobs for n in ("1", "2")})
    assert all(level(one.priority, RABBITMQ) == jobs[one.job_id] for one in reports(own_store))


def test_a_worker_that_dies_before_it_acknowledges_does_not_make_two_waits_of_one(node, own_store):
    """RabbitMQ delivers it again at once, beside the next attempt that waits already."""
    published(own_store.url, policy("p", max_attempts=2, backoff=AT_REST))
    dies = {"REAL_REQUEST": "1", "REAL_DIE_BEFORE_ACK": "1"}
    dying = RealWorker(node.url, own_store.url, concurrency=1, queues="dying", late_ack=True, environment=dies)
    living = RealWorker(node.url, own_store.url, concurrency=1, queues="dying", late_ack=True)
    job = dying.send("try", queue="dying")
    try:
        dying.start()
        dying.wait(lambda: dying.process.poll() is not None, what="its death", may_die=True)
        with redis.Redis.from_url(own_store.url) as client:
            delays = Delays(client, "shop")
            assert delays.count() == 1
            living.start()
            living.wait(lambda: len(of_job(own_store, job)) == 2, what="the second delivery")
            assert delays.count() == 1
            delays.hasten()
        living.wait(lambda: len(of_job(own_store, job)) == 3, what="the second attempt")
    finally:
        dying.kill()
        living.stop()
    assert [(one.attempt, one.kind) for one in of_job(own_store, job)] == [(1, "retry"), (1, "retry"), (2, "exception")]
    assert [n for n, _ in attempts(living, job)] == [1, 2]
