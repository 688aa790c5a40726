"""The parts of a job that a replay preserves, with real workers on both brokers: it fails, is fixed, comes back through the adapter, and
its chain, callbacks and all that it was sent with are as they were."""

from __future__ import annotations

import base64
import json
import pickle

import pytest
import redis
from celery import chain, chord, group
from kombu import Exchange, Queue

from dashboard.setup.engine import Engine
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.sources.celery import message as celery_message
from tests.kit import rabbitmq
from tests.kit.celery import RealWorker
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server


class Shop:
    """A guarded worker, its broker, and the source that a replay goes through."""

    def __init__(self, broker_url, store, token=0):
        self.store = store
        backend = store.url.removesuffix("/0") + "/3"
        self.worker = RealWorker(broker_url, store.url, environment={"REAL_BACKEND": backend}, queues="emails,routed")
        self.app = self.worker.app
        self.app.conf.result_backend = backend
        self.client = redis.Redis.from_url(store.url)
        self.source = connect("shop", "celery", broker_url, queues=["emails", "routed"], store=lambda: self.client)
        self.token = token

    def fails(self, sent, count=1):
        """The reports of the next `count` failures of `traced`, in the order of their arguments. `sent`: what sends it."""
        before = {one.raw for one in reports(self.store)}
        self.worker.break_("partner")
        sent()

        def new_failures():
            found = [one for one in reports(self.store) if one.kind == "exception" and one.raw not in before]
            return sorted(found, key=lambda one: one.args) if len(found) == count else None

        return self.worker.wait(new_failures, what=f"{count} failures")

    def replays(self, report, **changes):
        """Sends it again; its new id."""
        self.token += 1
        lineage = {"queue": report.queue, "job_id": report.job_id, "run": 2, "item": self.token, "replay": "r"}
        job = f"again-{self.token}"
        message = OutgoingMessage(**{
            "token": self.token, "raw": report.raw, "queue": report.queue, "job_id": job, "lineage": lineage, **changes
        })  # fmt: skip
        assert self.source.send("r", [message]) == {self.token: "sent"}
        return job

    def succeeds(self, report, **changes):
        """Fix the job, replay it and wait until it succeeded; return its new id."""
        self.worker.fix("partner")
        job = self.replays(report, **changes)
        (well,) = self.worker.wait(lambda: of_job(self.store, job), what="its success")
        assert (well.kind, well.lineage.job_id) == ("success", report.job_id)
        return job

    def requests_seen(self, job):
        """The request that the task saw in each of its attempts."""
        return [one for one in map(json.loads, self.worker.marks("traced")) if one["id"] == job]


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def shop(request, tmp_path_factory):
    if request.param == "rabbitmq" and rabbitmq.server() is None:
        pytest.skip(rabbitmq.HOW_TO_GET_IT)
    made = rabbitmq.Node if request.param == "rabbitmq" else Engine
    store, broker = (one(tmp_path_factory.mktemp("shop")) for one in (Engine, made))
    try:
        store.start(), broker.start()
        running = Shop(broker.url, store)
        running.kind = request.param
        running.worker.start()
        yield running
    finally:
        running.worker.stop()
        # Else results that are thrown away later tell a backend that is no more, twenty times, that nobody waits for them.
        running.app.backend.result_consumer._pubsub = None
        running.source.close()
        broker.stop()
        store.stop()


def sig(shop, *args, **options):
    return shop.app.signature("traced", args, options.pop("kwargs", {}), queue="emails", **options)


def note(shop, text):
    return shop.app.signature("note", (text,), immutable=True, queue="emails")


def test_the_next_link_of_a_chain_runs_with_the_result(shop):
    (report,) = shop.fails(
        lambda: chain(sig(shop, "fruit"), shop.app.signature("ok", ("last",), queue="emails")).apply_async()
    )
    assert not any("fruit" in mark for mark in shop.worker.marks("ok"))
    job = shop.succeeds(report)
    shop.worker.wait(lambda: "('fruit', 'last')" in shop.worker.marks("ok"), what="the next link")
    assert [one["follow"] for one in shop.requests_seen(job)] == [[1, 0, 0, False]]


def test_a_member_of_a_group_comes_back_to_its_place(shop):
    _, second = shop.fails(lambda: group(sig(shop, "a"), sig(shop, "b")).apply_async(), count=2)
    job = shop.succeeds(second)
    (before,), (after,) = shop.requests_seen(second.job_id), shop.requests_seen(job)
    assert before["group"] and before["group_index"] == 1
    assert {k: after[k] for k in ("group", "group_index", "args")} == {
        k: before[k] for k in ("group", "group_index", "args")
    }


def test_a_member_of_a_chord_runs_and_the_chord_stays_ended(shop):
    """The text of the obstacle `chord`: the job runs, the chord's body does not."""
    body = note(shop, f"body {shop.kind}").on_error(note(shop, f"broken {shop.kind}"))
    header = [sig(shop, "part"), shop.app.signature("ok", ("other part",), queue="emails")]
    (report,) = shop.fails(lambda: chord(header, app=shop.app)(body))
    assert shop.source.is_chord_member(report.raw)
    shop.worker.wait(
        lambda: f"('broken {shop.kind}',)" in shop.worker.marks("notes"), what="the chord's error callback"
    )
    job = shop.succeeds(report)
    assert [one["follow"] for one in shop.requests_seen(job)] == [[0, 0, 0, True]]
    shop.worker.send("note", "after it", queue="emails")
    shop.worker.wait(lambda: "('after it',)" in shop.worker.marks("notes"), what="what was sent later")
    assert f"('body {shop.kind}',)" not in shop.worker.marks("notes")


def test_a_callback_runs_when_the_replay_succeeds_and_an_errback_each_time_it_fails(shop):
    good, bad = f"linked {shop.kind}", f"failed {shop.kind}"
    (report,) = shop.fails(lambda: sig(shop, "x").apply_async(link=note(shop, good), link_error=note(shop, bad)))

    def count_notes(text):
        return shop.worker.marks("notes").count(f"('{text}',)")

    shop.worker.wait(lambda: count_notes(bad) == 1, what="the error callback")
    again = shop.replays(report)
    shop.worker.wait(lambda: of_job(shop.store, again) and count_notes(bad) == 2, what="the error callback again")
    assert count_notes(good) == 0
    shop.succeeds(report)
    shop.worker.wait(lambda: count_notes(good) == 1, what="the callback")
    assert count_notes(bad) == 2


OPTIONS = {
    "headers": {"x-own": {"trace": ["00-abc", 1, None, True]}},
    "priority": 6,
    "time_limit": 120,
    "soft_time_limit": 90,
    "shadow": "traced-as-this",
    "root_id": "the-root",
    "parent_id": "the-parent",
    "reply_to": "somewhere",
    "ignore_result": True,
    "compression": "zlib",
}
OF_THE_RUN = {"id", "parent_id", "correlation_id", "redelivered"}


def test_all_that_a_job_was_sent_with_is_there_in_its_next_run(shop):
    stamped = sig(shop, 1, kwargs={"to": "ann"})
    stamped.stamp(customer="cobalt")
    (report,) = shop.fails(lambda: stamped.apply_async(**OPTIONS))
    job = shop.succeeds(report)
    (before,), (after,) = shop.requests_seen(report.job_id), shop.requests_seen(job)
    assert before["own"] == OPTIONS["headers"]["x-own"] and before["timelimit"] == [120, 90] and before["priority"] == 6
    assert before["stamps"] == {"customer": "cobalt"} and before["shadow"] == "traced-as-this"
    assert {name for name in before if before[name] != after[name]} <= OF_THE_RUN
    assert (after["id"], after["parent_id"], after["root_id"]) == (job, report.job_id, "the-root")


@pytest.mark.parametrize("serializer", ["json", "shop"])
def test_but_for_the_named_lists_the_message_of_the_next_run_is_the_same(shop, serializer):
    """Both captured by the guard: of the failure, and of its replay, which fails too."""
    kwargs = {"to": "ann", "more": "é" * 10}
    options = {**OPTIONS, "expires": 3600, "serializer": serializer}
    (report,) = shop.fails(lambda: sig(shop, 1, kwargs=kwargs).apply_async(**options))
    job = shop.replays(report)
    (again,) = shop.worker.wait(lambda: of_job(shop.store, job), what="its second failure")
    before, after = json.loads(report.raw), json.loads(again.raw)
    assert before["body"] == after["body"] and before.keys() == after.keys()
    assert changed(before["headers"], after["headers"]) <= {
        *celery_message.RENEWED_HEADERS,
        *celery_message.STRIPPED_HEADERS,
    }
    listed = {*celery_message.RENEWED_PROPERTIES, *celery_message.STRIPPED_PROPERTIES}
    assert changed(before["properties"], after["properties"]) <= listed
    assert "expiration" in before["properties"] and "expiration" not in after["properties"]
    assert {before[name] for name in ("content-type", "content-encoding")} == {
        after[name] for name in ("content-type", "content-encoding")
    }
    shop.succeeds(report)


def changed(before, after):
    return {name for name in before.keys() | after.keys() if before.get(name, "-") != after.get(name, "-")}


def test_a_job_that_came_by_an_exchange_goes_to_its_queue_and_to_no_other(shop):
    routed = Queue("routed", Exchange("shop", "direct"), routing_key="order.new")
    twin = Queue("twin", Exchange("shop", "direct"), routing_key="order.new")
    arguments = {"x-max-priority": 10} if shop.kind == "rabbitmq" else None
    with shop.app.connection_for_write() as connection:
        for queue in (routed, twin):
            queue.queue_arguments = arguments
            queue(connection.default_channel).declare()
        by_exchange = {"exchange": Exchange("shop", "direct"), "routing_key": "order.new"}
        (report,) = shop.fails(lambda: shop.app.send_task("traced", ["by exchange"], **by_exchange))
        waits = twin(connection.default_channel).queue_declare(passive=True).message_count
        job = shop.succeeds(report, queue="routed")
        assert twin(connection.default_channel).queue_declare(passive=True).message_count == waits == 1
    assert [one["args"] for one in shop.requests_seen(job)] == [["by exchange"]]


class Bomb:
    def __reduce__(self):
        return (open, ("/nonexistent/place", "w"))


@pytest.mark.parametrize(
    ("content_type", "encoding", "body"),
    [
        ("application/x-msgpack", "binary", bytes(range(256))),
        ("application/x-yaml", "utf-8", "- [1]\n- {ü: 2}\n".encode()),
        ("application/x-python-serialize", "binary", pickle.dumps(([Bomb()], {}, {}))),
        ("application/data", "binary", b""),
    ],
)
def test_a_body_that_is_not_json_is_sent_byte_for_byte_and_never_read(shop, content_type, encoding, body):
    raw = {
        "body": base64.b64encode(body).decode(), "content-type": content_type, "content-encoding": encoding,
        "headers": {"task": "traced", "id": "old", "own": "kept"},
        "properties": {"body_encoding": "base64", "delivery_mode": 2, "delivery_info": {}, "correlation_id": "old"},
    }  # fmt: skip
    shop.token += 1
    lineage = {"queue": "emails", "job_id": "old", "run": 2}
    with shop.app.connection_for_write() as connection:
        parked = Queue(f"parked{len(body)}", queue_arguments={})(connection.default_channel)
        parked.declare()
        shop.source.send("r", [OutgoingMessage(shop.token, json.dumps(raw).encode(), parked.name, "new", lineage)])
        message = parked.get(no_ack=True)
    found = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    assert (found, message.content_type, message.content_encoding) == (body, content_type, encoding)
    assert (message.headers["id"], message.headers["own"]) == ("new", "kept")
