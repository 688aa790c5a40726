"""A job's queue is known, not guessed from its routing key: retries come back to it, and reports and policies name it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from jobs_admin.worker.guard import MOST_QUEUES, OTHERS, Counts
from jobs_admin.worker.queues import MARK, Place, Queues, bound_in
from jobs_admin.worker.raw_message import Popped
from tests.kit.policies import obeyed, policy, running
from tests.kit.routed import APP, retries_come_back, send
from tests.kit.streams import of_job
from tests.workers.routed_app import queues


@pytest.mark.server
def test_on_redis_a_retry_comes_back_to_the_list_it_was_taken_from(start, own_store):
    worker = start(own_store.url, app=APP, queues="orders,billing,media", late_ack=True)
    retries_come_back(worker, own_store)
    with redis.Redis.from_url(worker.broker_url) as broker:
        assert [key for key in broker.scan_iter() if b"order." in key] == []
    # What Celery itself publishes anew has no trace of what was told to the pool.
    job = send(worker, "media", "image", 2, task="flaky")
    reports = worker.wait(lambda: len(found := of_job(own_store, job)) == 3 and found, what="two retries and an end")
    assert [one.queue for one in reports] == ["media"] * 3
    assert [MARK in json.loads(one.raw)["headers"] for one in reports if one.raw] == [False, False]


@pytest.mark.server
def test_where_the_queue_is_not_sure_no_policy_decides_and_it_is_reported_once(start, own_store, tmp_path):
    """A broker that reports only how a message was routed, and two queues that get the same."""
    worker = start(own_store.url, app=APP, queues="billing,mailing,media", broker_url=f"filesystem://{tmp_path}")
    version = obeyed(worker, own_store.url, policy("p"))
    sure = send(worker, "media", "video", "down", 2)
    # Whatever a message says of itself.
    unsure = [send(worker, "paid", "paid", "down", 2, headers={MARK: "billing"}) for _ in range(2)]
    worker.wait(lambda: [one.kind for one in of_job(own_store, sure)] == ["retry", "success"], what="the sure one")
    reports = worker.wait(
        lambda: len(found := [one for job in unsure for one in of_job(own_store, job)]) == 4 and found
    )
    assert {(one.kind, one.policy, one.queue) for one in reports} == {("exception", "", "billing")}
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
def known_queues() -> Queues:
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
def test_what_routing_reports(known_queues, exchange, key, place):
    assert known_queues.find_place(delivered(exchange, key)) == place


def test_a_list_of_redis_reports_more_than_the_routing(known_queues):
    message = delivered("paid", "paid")
    message._raw = Popped()
    message._raw.element, message._raw.queue = b"{}", "mailing"
    assert known_queues.find_place(message) == Place("mailing", True)


class Channel:
    """The part of an app that shows that its broker is RabbitMQ."""

    def basic_publish_confirm(self) -> None: ...


@dataclass
class Consumer:
    channel: Any
    _active_tags: dict[str, str]


def test_the_tag_of_a_consumer_reports_also_after_a_reconnection():
    queues = Queues()
    queues.connected(Consumer(Channel(), {"orders": "None1", "mailing": "None2"}))
    assert queues.find_place(delivered("paid", "paid", consumer_tag="None2")) == Place("mailing", True)
    queues.connected(Consumer(Channel(), {"orders": "None3", "mailing": "None4"}))
    assert queues.find_place(delivered("paid", "paid", consumer_tag="None4")) == Place("mailing", True)
    assert queues.find_place(delivered("shop", "order.1", consumer_tag="None1")) == Place("orders", True)
    assert not queues.find_place(delivered("paid", "paid", consumer_tag="None9")).is_sure


def test_elsewhere_a_tag_is_its_producers_word():
    queues = Queues()
    queues.connected(Consumer(object(), {"mailing": "None2"}))
    assert not queues.find_place(delivered("paid", "paid", consumer_tag="None2")).is_sure


def test_a_heartbeat_counts_so_many_queues_and_no_more():
    counts = Counts()
    for n in range(MOST_QUEUES + 20):
        counts.started(f"order.{n}", late_ack=True)
        counts.ended(f"order.{n}", "failed", 1.0)
    counted = counts.snapshot()
    assert len(counted) == MOST_QUEUES + 1 and counted["order.0"]["started"] == 1
    assert (counted[OTHERS]["started"], counted[OTHERS]["failed"]) == (20, 20)
    assert counts.late_ack(OTHERS, set()) is True
