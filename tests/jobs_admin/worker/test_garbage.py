"""Messages that no producer of Celery writes end no guarded worker, and are filed byte for byte with their queue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis
from kombu.message import Message

from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from jobs_admin.worker.consuming import Consuming
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.report import Origin
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.garbage import CORPUS, element
from tests.kit.streams import reports

pytestmark = pytest.mark.server

# What stock Celery runs in this pool, for it does not reckon with limits there.
UNTIMED = {"time limits of text"}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_garbage_is_filed_with_its_bytes_and_its_queue_and_good_jobs_run(start, own_store, pool):
    worker = start(own_store.url, pool=pool, later=True)
    sent = {name: element(name, n) for n, name in enumerate(CORPUS)}
    assert len(sent) >= 50
    with redis.Redis.from_url(worker.broker_url) as broker:
        for one in sent.values():
            broker.lpush("emails", one)
        good = [worker.send("ok", f"behind it {n}", queue="emails") for n in range(10)]
        worker.start()
        worker.wait(lambda: sum("behind it" in line for line in worker.marks("ok")) == len(good), what="the good jobs")
        wanted = {raw: CORPUS[name][1] for name, raw in sent.items() if CORPUS[name][1]}
        if pool != "prefork":
            wanted = {raw: kind for raw, kind in wanted.items() if raw not in {sent[name] for name in UNTIMED}}
        worker.wait(lambda: len(reports(own_store)) >= len(wanted), what="a report of each")
        reported = reports(own_store)
        assert {one.raw: one.kind for one in reported} == wanted
        assert len(reported) == len(wanted) == len({one.job_id for one in reported})
        assert {one.queue for one in reported} == {"emails"}
        worker.wait(lambda: not broker.hlen("unacked"), what="nothing to be held by the worker")
    assert worker.text().count(" ready.") == 1
    assert "Connection to broker lost" not in worker.text()
    with redis.Redis.from_url(own_store.url) as store:
        worker.wait(lambda: store.hgetall(keys.workers("shop")), what="a heartbeat")


def test_switched_off_the_guard_leaves_garbage_to_celery(start, own_store):
    with redis.Redis.from_url(own_store.url) as store:
        store.set(keys.switch(), "off")
    worker = start(own_store.url, pool="solo")
    worker.wait(lambda: "guard was switched off" in worker.text(), what="the guard to be off")
    with redis.Redis.from_url(worker.broker_url) as broker:
        broker.lpush("emails", b"hello")
    worker.wait(lambda: worker.process.poll() is not None, what="its end, as without us", may_die=True)
    assert reports(own_store) == []


def test_a_message_is_reported_before_celery_forgets_it_and_its_users_consumer_still_runs(start, own_store):
    worker = start(own_store.url, pool="solo", environment={"REAL_DYING_CONSUMER": "1"})
    job = worker.send("never.heard.of", queue="emails")
    worker.wait(lambda: worker.process.poll() is not None, what="its death", may_die=True)
    assert worker.marks("dying_consumer") == [job]
    durable = reports(own_store)
    # A worker that had no line to the store yet has told the disk.
    Spool(worker.spool).drain(lambda batch: durable.extend(map(decode, batch)))
    assert [(one.job_id, one.kind, one.task) for one in durable] == [(job, "unknown_task", "never.heard.of")]
    with redis.Redis.from_url(worker.broker_url) as broker:
        assert broker.hlen("unacked") == 1  # the broker has it still


class Unreadable(Message):
    """A job about which nothing can be reported."""

    @property
    def delivery_tag(self):
        raise RuntimeError("no tag")

    @delivery_tag.setter
    def delivery_tag(self, tag):
        pass


def test_a_message_that_cannot_be_reported_is_counted_and_celery_goes_on(tmp_path):
    guard = Guard(Origin("shop", "", ()), Store("redis://127.0.0.1:1/0", "shop", Spool(tmp_path / "spool", 10**6)))
    called = []
    hooks = ("on_unknown_task", "on_invalid_task", "on_unknown_message", "on_decode_error", "create_task_handler")
    consumer = SimpleNamespace(**dict.fromkeys(hooks, called.append))
    consumer.on_unknown_message = lambda body, message: called.append(message)
    Consuming(guard, consumer, "w1@a").wrap()
    message = Unreadable(body=b"x", headers={})
    consumer.on_unknown_message(None, message)
    assert (guard.broken, called) == (1, [message])
