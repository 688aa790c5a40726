"""A job's queue is known, not guessed from its routing key: retries come back to it, and reports and policies name it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Exchange, Queue

from jobs_admin.worker.counts import MOST, OTHERS, Counts
from jobs_admin.worker.popped import Popped
from jobs_admin.worker.queues import MARK, Place, Queues, bound_in
from tests.jobs_admin.worker.conftest import of_job, reports
from tests.kit.celery import RealWorker
from tests.kit.policies import attempts, obeyed, policy, running
from tests.workers.routed_app import queues

APP = "tests.workers.routed_app:app"
WAYS = [  # exchange, routing key, the queue that a worker of ours takes it from
    ("shop", "order.1.created", "orders"),
    ("shop", "order.2.created", "orders"),
    ("media", "video", "media"),
    ("media", "image", "media"),
    ("paid", "paid", "billing"),
]


def send(worker: RealWorker, exchange: str, key: str, *args: Any, task: str = "try", **options: Any) -> str:
    through = Exchange(exchange, type="topic" if exchange == "shop" else "direct")
    sent = worker.app.send_task(task, args, exchange=exchange, routing_key=key, declare=[through], **options)
    return sent.id


def retries_come_back(worker: RealWorker, store: Any) -> None:
    """Each job fails once; the policy of its own queue brings it back there, and no other queue gets a copy."""
    names = ("orders", "billing", "media")
    version = obeyed(worker, store.url, *(policy(name, match={"task": "try", "queue": name}) for name in names))
    with Connection(worker.broker_url) as connection:
        mailing = next(one for one in queues() if one.name == "mailing")(connection.default_channel)
        mailing.queue_arguments = {"x-max-priority": 10}  # as the app declares its queues on RabbitMQ
        mailing.declare()
        jobs = [(send(worker, exchange, key, "down", 2), queue) for exchange, key, queue in WAYS]
        # Of a job's two reports the second may be there first.
        both = {"retry": len(jobs), "success": len(jobs)}
        worker.wait(lambda: Counter(one.kind for one in reports(store)) == both, what="all to end well")
        for job, queue in jobs:
            told = [(one.kind, one.queue) for one in of_job(store, job)]
            assert told == [("retry", queue), ("success", queue)]
            assert of_job(store, job)[0].policy == f"{queue}@{version}"
            assert [n for n, _ in attempts(worker, job)] == [1, 2]
        assert mailing.queue_declare(passive=True).message_count == 1
    worker.wait(lambda: sum(one["started"] for one in running(store.url)[0]["counts"].values()) == 10, what="counts")
    assert set(running(store.url)[0]["counts"]) == set(names)
    assert running(store.url)[0]["unplaced"] == 0


@pytest.mark.server
def test_on_redis_a_retry_comes_back_to_the_list_it_was_taken_from(start, own_store):
    worker = start(own_store.url, app=APP, queues="orders,billing,media", late_ack=True)
    retries_come_back(worker, own_store)
    with redis.Redis.from_url(worker.broker_url) as broker:
        assert [key for key in broker.scan_iter() if b"order." in key] == []
    # What Celery itself publishes anew has no trace of what was told to the pool.
    job = send(worker, "media", "image", 2, task="flaky")
    told = worker.wait(lambda: len(found := of_job(own_store, job)) == 3 and found, what="two retries and an end")
    assert [one.queue for one in told] == ["media"] * 3
    assert [MARK in json.loads(one.raw)["headers"] for one in told if one.raw] == [False, False]


@pytest.mark.server
def test_where_the_queue_is_not_sure_no_policy_decides_and_it_is_said_once(start, own_store, tmp_path):
    """A broker that tells only how a message was routed, and two queues that get the same."""
    worker = start(own_store.url, app=APP, queues="billing,mailing,media", broker_url=f"filesystem://{tmp_path}")
    version = obeyed(worker, own_store.url, policy("p"))
    sure = send(worker, "media", "video", "down", 2)
    # Whatever a message says of itself.
    unsure = [send(worker, "paid", "paid", "down", 2, headers={MARK: "billing"}) for _ in range(2)]
    worker.wait(lambda: [one.kind for one in of_job(own_store, sure)] == ["retry", "success"], what="the sure one")
    told = worker.wait(lambda: len(found := [one for job in unsure for one in of_job(own_store, job)]) == 4 and found)
    assert {(one.kind, one.policy, one.queue) for one in told} == {("exception", "", "billing")}
    assert of_job(own_store, sure)[0].policy == f"p@{version}"
    worker.wait(lambda: running(own_store.url)[0]["unplaced"] == 4, what="four that are told")
    assert worker.text().count("does not know for sure which queue") == 1


@dataclass
class Message:
    delivery_info: dict[str, Any]
    _raw: Any = None
    channel: Any = field(default=None)


def delivered(exchange: str, key: str, **more: Any) -> Message:
    return Message({"exchange": exchange, "routing_key": key, **more})


@pytest.fixture(scope="module")
def known() -> Queues:
    app = Celery("routed", broker="memory://", set_as_current=False)
    app.conf.task_queues = [
        *queues(),
        Queue("all", Exchange("logs", type="topic"), routing_key="*.error"),
        Queue("each", Exchange("news", type="fanout"), routing_key="all"),
        Queue("by-header", Exchange("odd", type="headers"), routing_key="x"),
    ]
    app.amqp.queues.select(["orders", "billing", "media", "all", "each", "by-header"])
    return Queues(lambda: bound_in(app), lambda: app.amqp.queues.consume_from)


@pytest.mark.parametrize(
    ("exchange", "key", "place"),
    [
        ("shop", "order.1.created", Place("orders", True)),
        ("shop", "order", Place("order", False)),  # of no queue that is known
        ("media", "image", Place("media", True)),
        ("paid", "paid", Place("billing", True)),  # nobody else here could have taken it
        ("logs", "a.error", Place("all", True)),
        ("logs", "a.b.error", Place("a.b.error", False)),
        ("logs", "aXerror", Place("aXerror", False)),
        ("news", "all", Place("each", False)),  # a copy for each worker
        ("odd", "x", Place("by-header", False)),
        ("", "emails", Place("emails", True)),
        ("", "emails\x06\x163", Place("emails", True)),
        ("", "", Place("", False)),
        ("elsewhere", "emails", Place("emails", False)),
    ],
)
def test_what_routing_tells(known, exchange, key, place):
    assert known.of(delivered(exchange, key)) == place


def test_a_list_of_redis_tells_more_than_the_routing(known):
    message = delivered("paid", "paid")
    message._raw = Popped()
    message._raw.element, message._raw.queue = b"{}", "mailing"
    assert known.of(message) == Place("mailing", True)


class Channel:
    """As much of one as tells RabbitMQ from others."""

    def basic_publish_confirm(self) -> None: ...


@dataclass
class Consumer:
    channel: Any
    _active_tags: dict[str, str]


def test_the_tag_of_a_consumer_tells_also_after_a_reconnection():
    asked = Queues()
    asked.connected(Consumer(Channel(), {"orders": "None1", "mailing": "None2"}))
    assert asked.of(delivered("paid", "paid", consumer_tag="None2")) == Place("mailing", True)
    asked.connected(Consumer(Channel(), {"orders": "None3", "mailing": "None4"}))
    assert asked.of(delivered("paid", "paid", consumer_tag="None4")) == Place("mailing", True)
    assert asked.of(delivered("shop", "order.1", consumer_tag="None1")) == Place("orders", True)
    assert not asked.of(delivered("paid", "paid", consumer_tag="None9")).is_sure


def test_elsewhere_a_tag_is_its_producers_word():
    asked = Queues()
    asked.connected(Consumer(object(), {"mailing": "None2"}))
    assert not asked.of(delivered("paid", "paid", consumer_tag="None2")).is_sure


def test_a_heartbeat_counts_so_many_queues_and_no_more():
    counts = Counts()
    for n in range(MOST + 20):
        counts.started(f"order.{n}", late_ack=True)
        counts.ended(f"order.{n}", "failed", 1.0)
    told = counts.snapshot()
    assert len(told) == MOST + 1 and told["order.0"]["started"] == 1
    assert (told[OTHERS]["started"], told[OTHERS]["failed"]) == (20, 20)
    assert counts.late_ack(OTHERS, set()) is True
