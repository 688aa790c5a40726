"""Policies on a real RabbitMQ: retries wait in the store, come back confirmed and once, in the order of priorities."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import pytest
import redis
from kombu import Connection

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.priority import LEVELS, RABBITMQ, level, number
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.worker.broker import Publisher
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.later import promote
from tests.kit.celery import RealWorker
from tests.kit.ledger import list_stored, reap
from tests.kit.policies import attempts, obeyed, policy, published
from tests.kit.routed import APP as ROUTED
from tests.kit.routed import retries_come_back
from tests.kit.streams import of_job, reports

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

AT_REST = {"kind": "fixed", "first_delay_s": 600}


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
    # Whoever published it says so to the store a moment later: the job may have ended by then.
    names = keys.due("shop"), keys.due_jobs("shop"), keys.due_claims("shop")
    shop.wait(lambda: not store.exists(*names), what="nothing to wait")


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
    """Each is published, and made to wait by the worker that gets it, again and again."""
    obeyed(shop, shop.store.url, policy("one", "noted", concurrency={"key": "kwargs.key", "limit": 1}))
    for n in range(5):
        shop.send("noted", n, kwargs={"seconds": 0.1, "key": "ann"})
    shop.wait(lambda: sum(line.startswith("end") for line in shop.marks("noted")) == 5, what="five that ran")
    noted = [line.split() for line in shop.marks("noted")]
    assert [what for what, *_ in noted] == ["start", "end"] * 5
    assert sorted(int(n) for what, _, n, *_ in noted if what == "start") == list(range(5))
    shop.wait(lambda: not store.exists(keys.due_jobs("shop"), keys.due_claims("shop")), what="nothing to wait")


def test_a_budget_that_is_spent_ends_the_retries_of_all(shop):
    obeyed(shop, shop.store.url, policy("b", max_attempts=9, budget={"per_minute": 1, "burst": 3}))
    jobs = [shop.send("try") for _ in range(2)]
    reports = shop.wait(
        lambda: len(found := [one for job in jobs for one in of_job(shop.store, job)]) == 5 and found, what="two dead"
    )
    assert Counter((one.kind, one.reason) for one in reports) == {("retry", ""): 3, ("exception", "budget"): 2}


def test_a_pill_starts_as_often_as_the_policy_allows_and_good_jobs_run(shop):
    obeyed(shop, shop.store.url, policy("pill", "dies", max_attempts=9, poison={"crashes": 3, "window_s": 300}))
    good = [shop.send("ok", f"beside {n}") for n in range(10)]
    pill = shop.send("dies")

    def all_reports():
        """The job's report, once it has ended, and each attempt before it."""
        reports = of_job(shop.store, pill)
        return reports and reports[-1].kind != "retry" and len(reports) == reports[-1].attempt and reports

    *retried, last = shop.wait(all_reports, what="its end")
    assert {(one.kind, one.reason) for one in retried} == {("retry", "")}
    assert (last.kind, last.reason) == ("worker_lost", "poison")
    # A store that does not answer within 100 ms, on a busy machine, is not asked about that crash.
    assert last.crashes and 3 <= len(attempts(shop, pill)) == len(retried) + 1 <= 5
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


@pytest.mark.long("Starts workers on RabbitMQ and kills them.")
def test_priorities_are_obeyed_and_a_kill_of_every_worker_loses_no_retry_and_doubles_none(node, own_store):
    published(own_store.url, policy("p", max_attempts=2, backoff=AT_REST))
    worker = RealWorker(node.url, own_store.url, concurrency=1, queues="ranked")
    levels = [one for one in LEVELS for _ in range(3)]
    random.Random(1).shuffle(levels)
    jobs = {worker.send("try", queue="ranked", priority=number(one, RABBITMQ)): one for one in levels}
    try:
        worker.wait(lambda: depth(node, "ranked") == 12, what="twelve to choose from")
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


@pytest.mark.long("Starts workers on RabbitMQ and kills them.")
def test_a_worker_that_dies_before_it_acknowledges_does_not_make_two_waits_of_one(node, own_store):
    """RabbitMQ delivers it again at once, beside the next attempt that waits already."""
    published(own_store.url, policy("p", max_attempts=2, backoff=AT_REST))
    dies = {"REAL_REQUEST": "1", "REAL_DIE_BEFORE_ACK": "1"}
    dying = RealWorker(node.url, own_store.url, concurrency=1, queues="dying", late_ack=True, environment=dies)
    # What the one could tell the disk alone, the next one ships.
    spool = {"REDRIVE_SPOOL": dying.environment["REDRIVE_SPOOL"]}
    living = RealWorker(node.url, own_store.url, concurrency=1, queues="dying", late_ack=True, environment=spool)
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


class Replays:
    """Sends what the guard captured again, as the desk does."""

    def __init__(self, node, store):
        self.source = connect("shop", "celery", node.url, queues=["celery"], store=lambda: store)
        self.store = store

    def replay(self, report, token, copies=1, **changes):
        """Send `copies` copies of one message; return its new id. The ledger is lost between them, as nothing else could make two."""
        lineage = {"queue": report.queue, "job_id": report.job_id, "run": 2, "item": token, "replay": "r"}
        message = OutgoingMessage(token, report.raw, report.queue, f"{report.job_id}-{token}", lineage, **changes)
        for _ in range(copies):
            self.source.send("r", [message])
            self.store.delete(keys.ledger("shop", "r"))
        return message.job_id


@pytest.fixture
def replayed(node, store):
    made = Replays(node, store)
    yield made
    made.source.close()


def reported_by(store, name):
    """The highest count of that name in the workers' heartbeats."""
    return max((json.loads(beat).get(name, 0) for beat in store.hvals(keys.workers("shop"))), default=0)


def fails_once(shop, task="try", *args, **options):
    obeyed(shop, shop.store.url)
    job = shop.send(task, *args, **options)
    return shop.wait(lambda: of_job(shop.store, job), what="its failure")[0]


def test_of_the_copies_of_a_replayed_job_one_runs_and_the_others_are_acknowledged(shop, store, node, replayed):
    report = fails_once(shop)
    before, unasked = reported_by(store, "repeated"), reported_by(store, "unasked")
    job = replayed.replay(report, 1, copies=5)
    shop.wait(lambda: reported_by(store, "repeated") - before + len(attempts(shop, job)) == 5, what="all of them")
    # A store that does not answer within 100 ms, on a busy machine, lets a job run: that is counted.
    assert len(attempts(shop, job)) <= 1 + reported_by(store, "unasked") - unasked < 5
    assert "dropped a second copy" in shop.text()
    shop.send("ok", "afterwards")
    shop.wait(lambda: any("afterwards" in mark for mark in shop.marks("ok")), what="a job after them")
    assert depth(node, "celery") == 0
    shop.wait(lambda: len(of_job(shop.store, job)) == len(attempts(shop, job)), what="each attempt to be told")


def test_a_replayed_job_that_a_policy_tries_again_and_puts_off_runs_each_time(shop, store, replayed):
    (report, other) = fails_once(shop, "noted", 1, None), fails_once(shop)
    obeyed(
        shop,
        shop.store.url,
        policy("p", max_attempts=3, backoff={"kind": "fixed", "first_delay_s": 0.1}),
        policy("one", "noted", rate_limit={"max": 1, "per_s": 1}),
    )
    job = replayed.replay(other, 2)
    shop.wait(lambda: len(of_job(shop.store, job)) == 3, what="three attempts")
    assert [n for n, _ in attempts(shop, job)] == [1, 2, 3]
    waits = [
        replayed.replay(report, token, args=[token, 0]) for token in (3, 4, 5)
    ]  # two of them are put off, in the same attempt
    shop.wait(lambda: all(of_job(shop.store, one) for one in waits), what="those that waited for their turn")


def test_a_replayed_job_runs_on_by_celery_s_own_retries(shop, replayed):
    report = fails_once(shop, "autoretry", 99)
    assert report.kind == "retry"
    job = replayed.replay(report, 6)
    shop.wait(lambda: len(of_job(shop.store, job)) == 3, what="three attempts")
    assert [one.kind for one in of_job(shop.store, job)] == ["retry", "retry", "exception"]


@pytest.mark.long("Starts workers on RabbitMQ and kills them.")
def test_a_replayed_job_whose_worker_dies_before_it_acknowledges_runs_again(node, own_store, store):
    dies = {"REAL_REQUEST": "1", "REAL_DIE_BEFORE_ACK": "1"}
    dying = RealWorker(node.url, own_store.url, concurrency=1, queues="doomed", late_ack=True, environment=dies)
    spool = {"REDRIVE_SPOOL": dying.environment["REDRIVE_SPOOL"]}
    living = RealWorker(node.url, own_store.url, concurrency=1, queues="doomed", late_ack=True, environment=spool)
    job = dying.send("try", queue="doomed")
    try:
        living.start()
        (report,) = living.wait(lambda: of_job(own_store, job), what="its failure")
        living.stop()
        dying.start()
        with redis.Redis.from_url(own_store.url) as client:
            source = connect("shop", "celery", node.url, store=lambda: client)
            lineage = {"queue": "doomed", "job_id": job, "run": 2, "item": 1, "replay": "r"}
            source.send("r", [OutgoingMessage(1, report.raw, "doomed", "again", lineage)])
            source.close()
        dying.wait(lambda: dying.process.poll() is not None, what="its death", may_die=True)
        living.start()
        living.wait(lambda: len(of_job(own_store, "again")) == 2, what="its second delivery")
    finally:
        dying.kill()
        living.stop()
    assert len(attempts(dying, "again")) == len(attempts(living, "again")) == 1


@pytest.mark.long("Starts workers on RabbitMQ and kills them.")
def test_a_delayed_retry_of_celerys_own_comes_back_at_once_from_a_worker_that_is_killed(node, tmp_path):
    """A delayed retry is not acknowledged while it waits; the next worker waits on for its time."""
    store = Engine(tmp_path).start()
    first, second = (RealWorker(node.url, store.url, concurrency=1, queues="held") for _ in range(2))
    try:
        first.start()
        job = first.send("flaky", 1, 6, queue="held")
        first.wait(lambda: of_job(store, job), what="the retry")
        time.sleep(0.5)
        first.kill()
        second.start()
        second.wait(lambda: len(of_job(store, job)) == 2, what="its second attempt")
        retried, well = of_job(store, job)
        assert (retried.kind, well.kind, well.attempt) == ("retry", "success", 2)
        # Celery works its time out before the guard does: a moment, longer on a busy machine.
        assert well.at >= retried.due_at - 1 and second.text().count("succeeded") == 1
    finally:
        first.stop()
        second.stop()
        store.stop()


@pytest.mark.long("Starts workers on RabbitMQ and kills them.")
def test_what_runs_in_a_killed_worker_is_lost_and_what_it_had_fetched_comes_again(node, tmp_path):
    store = Engine(tmp_path).start()
    worker = RealWorker(node.url, store.url, concurrency=1, queues="kept")
    try:
        published(store.url, policy("keeping", "*", file_lost=True))
        worker.start()
        lost = worker.send("until", "never", queue="kept")
        with redis.Redis.from_url(store.url) as client:
            worker.wait(lambda: list_stored(client), what="one that runs")
            waiting = worker.send("ok", queue="kept")
            worker.wait(lambda: waiting in worker.text(), what="another that is fetched")
            worker.kill()
            reap(client, watches=2)
            (only,) = reports(store)
            assert client.xlen(keys.failures("shop")) == 1  # by one of the two watches
            assert (only.job_id, only.kind, only.queue) == (lost, "lost", "kept")
            assert json.loads(only.raw)["headers"]["id"] == lost and only.is_raw_complete
            worker.start()
            worker.wait(lambda: worker.marks("ok") and not list_stored(client), what="the other to have run")
            assert worker.marks("until") == ["never"]
            both = {(lost, "lost"), (waiting, "success")}
            worker.wait(lambda: {(one.job_id, one.kind) for one in reports(store)} == both, what="its word")
    finally:
        worker.stop()
        store.stop()


def test_a_retry_comes_back_to_the_queue_that_its_consumer_was_given_it_from(node, start, own_store):
    worker = start(own_store.url, app=ROUTED, queues="orders,billing,media", broker_url=node.url)
    retries_come_back(worker, own_store)
    # From now on the worker has both queues of one routing key: only the consumer tells them apart.
    # No other worker of this broker gets it: that would take its jobs, and report them to its own store.
    worker.app.control.add_consumer("mailing", destination=[worker.name], reply=True, timeout=60, limit=1)
    worker.wait(lambda: "consuming from mailing" in worker.text(), 60, "the other queue to be consumed")
    job = worker.app.send_task("try", ["down", 2], exchange="paid", routing_key="paid", declare=[]).id
    reports = worker.wait(lambda: len(found := of_job(own_store, job)) == 3 and found, what="both copies to end")
    assert sorted((one.queue, one.kind) for one in reports) == [
        ("billing", "retry"), ("billing", "success"), ("mailing", "exception"),
    ]  # fmt: skip
