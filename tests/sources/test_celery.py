from __future__ import annotations

import base64
import json
import os
import signal
import time
from datetime import UTC, datetime

import pytest
import redis
from celery import Celery, chain, chord, group

from jobs_admin.sources import connect
from jobs_admin.sources.base import SourceError, SourceRefused, SourceUnreachable
from jobs_admin.sources.celery import message as celery_message
from tests.kit.celery import RealWorker
from tests.sources.contract import RecallContract, SourceContract, recalled

pytestmark = pytest.mark.server


@pytest.fixture
def broker(engine):
    client = redis.Redis.from_url(engine.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def app(engine, broker):
    app = Celery("shop", broker=engine.url)
    app.conf.task_default_queue = "emails"
    yield app
    app.close()


@pytest.fixture
def source(engine, broker):
    source = connect("shop", "celery", engine.url)
    yield source
    source.close()


def captured(broker, queue="emails"):
    """The message that waits, taken from its queue as a worker would."""
    return broker.rpop(queue)


def publish(app, broker, *args, queue="emails", **options):
    app.send_task("shop.send", args, {"to": "ann"}, queue=queue, **options)
    return captured(broker, queue)


def body(message):
    return json.loads(base64.b64decode(message["body"]))


class TestCeleryOnRedis(RecallContract):
    @pytest.fixture(autouse=True)
    def set_up_broker(self, app, broker):
        self.broker = broker
        self.raw = publish(app, broker, 1)

    def waiting(self, queue):
        return [json.loads(m)["headers"]["id"] for m in reversed(self.broker.lrange(queue, 0, -1))]

    def fetch(self, queue):
        raw = self.broker.rpop(queue)
        return raw and json.loads(raw)["headers"]["id"]

    def lose_everything(self):
        self.broker.flushall()

    def unplug(self, source):
        source._client.connection_pool.disconnect()
        source._client.connection_pool.connection_kwargs["port"] = 1


def outgoing_message(raw, **changes):
    return SourceContract().outgoing_message.__func__(type("C", (), {"queue": "emails", "raw": raw})(), **changes)


def test_a_new_run_changes_only_what_names_the_run(source, app, broker):
    before = json.loads(
        publish(app, broker, "é", expires=60, countdown=5, priority=4) or captured(broker, "emails\x06\x163")
    )
    before["headers"]["redelivered"] = True
    before["headers"]["retries"] = 3
    source.send("r", [outgoing_message(json.dumps(before).encode(), job_id="new")])
    after = json.loads(captured(broker, "emails\x06\x163"))
    changed = {k for k in after["headers"] | before["headers"] if after["headers"].get(k) != before["headers"].get(k)}
    assert changed == {"id", "parent_id", "retries", "eta", "expires", "redrive", "redelivered"}
    assert (after["headers"]["id"], after["headers"]["parent_id"]) == ("new", before["headers"]["id"])
    assert (after["headers"]["root_id"], after["headers"]["retries"]) == (before["headers"]["id"], 0)
    assert after["properties"]["correlation_id"] == "new"
    assert after["properties"]["delivery_tag"] != before["properties"]["delivery_tag"]
    assert after["body"] == before["body"]


@pytest.mark.parametrize(
    "priority, key", [(0, "emails"), (2, "emails"), (3, "emails\x06\x163"), (9, "emails\x06\x169")]
)
def test_a_priority_goes_to_its_own_list(source, app, broker, priority, key):
    app.send_task("shop.send", queue="emails", priority=priority)
    raw = captured(broker, key)
    source.send("r", [outgoing_message(raw)])
    assert broker.llen(key) == 1
    (depth,) = source.depths()
    assert (depth.queue, depth.waiting) == ("emails", 1)


def test_a_message_may_report_its_priority(source, app, broker):
    source.send(
        "r",
        [
            outgoing_message(publish(app, broker, 1), priority=9),
            outgoing_message(publish(app, broker, 2), token=2, priority=4),
        ],
    )
    assert json.loads(captured(broker, "emails\x06\x169"))["properties"]["priority"] == 9
    assert json.loads(captured(broker, "emails\x06\x163"))["properties"]["priority"] == 4


@pytest.mark.parametrize("retries, comes_to", [(0, 0), (2, 2), (None, 3)])
def test_a_message_reports_how_many_retries_count_as_made(source, app, broker, retries, comes_to):
    raw = publish(app, broker, 1, retries=3)
    source.send("r", [outgoing_message(raw, retries=retries)])
    assert json.loads(captured(broker))["headers"]["retries"] == comes_to


@pytest.mark.parametrize("parent", [None, "its-parent"])
def test_a_job_under_its_own_id_is_not_its_own_parent(source, app, broker, parent):
    raw = publish(app, broker, 1, task_id="same", parent_id=parent, root_id=parent)
    source.send("r", [outgoing_message(raw, job_id="same")])
    before, after = json.loads(raw), json.loads(captured(broker))
    assert (after["headers"]["id"], after["headers"]["parent_id"]) == ("same", parent)
    assert after["headers"]["root_id"] == (parent or "same")
    assert after["properties"]["delivery_tag"] != before["properties"]["delivery_tag"]


def test_the_same_message_renews_to_the_same_message(app, broker):
    one = outgoing_message(publish(app, broker, 1))
    assert celery_message.renew(one, "r") == celery_message.renew(one, "r") != celery_message.renew(one, "s")


ROUTED = b'"exchange": "shop", "routing_key": "order.new"'


def test_a_message_for_its_own_queue_keeps_the_address_that_its_message_has(source, app, broker):
    raw = publish(app, broker, 1).replace(b'"exchange": "", "routing_key": "emails"', ROUTED)
    source.send("r", [outgoing_message(raw)])
    again = captured(broker)
    assert json.loads(again)["properties"]["delivery_info"] == {"exchange": "shop", "routing_key": "order.new"}


def test_a_message_for_another_queue_is_addressed_to_it_and_back_again(source, app, broker):
    raw = publish(app, broker, 1).replace(b'"exchange": "", "routing_key": "emails"', ROUTED)
    source.send("r", [outgoing_message(raw, queue="slow")])
    there = captured(broker, "slow")
    assert json.loads(there)["properties"]["delivery_info"] == {"exchange": "", "routing_key": "slow"}
    source.send("s", [outgoing_message(there, queue="emails")])
    assert json.loads(captured(broker))["properties"]["delivery_info"] == {"exchange": "", "routing_key": "emails"}


def test_waiting_counts_the_lists_of_all_priorities(source, app, broker):
    for priority in (0, 3, 5, 9):
        app.send_task("shop.send", queue="emails", priority=priority)
    broker.set("taken", "no list")
    assert source.waiting(["emails", "taken"]) == {"emails": 4, "taken": 0}


def test_a_recall_checks_the_lists_of_all_priorities(source, app, broker):
    raw = publish(app, broker, 1)
    source.send("r", [outgoing_message(raw, token=n, priority=n % 10) for n in range(1, 2_001)])
    source.send("s", [outgoing_message(raw, token=n, priority=n % 10, job_id=f"other-{n}") for n in range(1, 41)])
    ran = [
        json.loads(broker.rpop(key))["headers"]["redrive"] for key in ("emails", "emails\x06\x169") for _ in range(9)
    ]
    assert len(ran) == 18
    back = recalled(source, "r", ["emails"])
    left = [json.loads(m)["headers"]["id"] for m in reversed(broker.lrange("emails\x06\x163", 0, -1))]
    assert len(back) == 2_000 - 18 and left == [f"other-{n}" for n in range(1, 41) if n % 10 in (3, 4, 5)]
    assert source.waiting(["emails"]) == {"emails": 40}


def test_what_a_worker_had_and_what_celery_tries_again_is_left_to_run(source, app, broker):
    raw = publish(app, broker, 1)
    source.send("r", [outgoing_message(raw, token=n) for n in (1, 2, 3)])
    with app.connection_for_read() as connection, connection.SimpleQueue("emails") as queue:
        fetched = queue.get(timeout=60)
        assert recalled(source, "r", ["emails"]) == {2, 3}
        fetched.requeue()
    assert recalled(source, "r", ["emails"]) == {2, 3} and source.waiting(["emails"]) == {"emails": 1}
    assert json.loads(captured(broker))["headers"]["redelivered"] is True


def test_a_recall_of_a_key_that_is_no_queue_takes_nothing(source, broker):
    broker.set("taken", "a string")
    assert recalled(source, "r", ["taken", "not-there"]) == set()
    assert broker.get("taken") == b"a string"


def test_a_broker_that_is_full_takes_no_more_and_gives_back(source, app, broker):
    raw = publish(app, broker, 1)
    source.epoch("r")
    source.send("r", [outgoing_message(raw, token=n) for n in range(1, 301)])
    try:
        broker.config_set("maxmemory", "1mb")
        with pytest.raises(SourceUnreachable, match="maxmemory"):
            source.send("r", [outgoing_message(raw, token=301)])
        assert recalled(source, "r", ["emails"]) == set(range(1, 301))
    finally:
        broker.config_set("maxmemory", "0")
    assert broker.llen("emails") == 0 and source.was_sent("r", [1, 301]) == set()


def test_what_a_recall_leaves_in_the_broker_has_an_end(source, app, broker):
    source.send("r", [outgoing_message(publish(app, broker, 1))])
    recalled(source, "r", ["emails"])
    assert {key: 0 < broker.ttl(key) <= 7 * 86400 for key in broker.keys("redrive:*")} == {
        b"redrive:{shop}:ledger:r": True,
        b"redrive:{shop}:removals": True,
    }


def test_only_a_member_of_a_chord_is_one(source, app, broker):
    app.conf.result_backend = "cache+memory://"
    plain = publish(app, broker, '"group": "x", "chord"', headers={"group_of": "a"})
    chord([app.signature("shop.part", (n,), queue="emails") for n in range(2)])(
        app.signature("shop.body", queue="emails")
    )
    members = [captured(broker), captured(broker)]
    group([app.signature("shop.part", (n,), queue="emails") for n in range(2)]).apply_async()
    answers = [
        source.is_chord_member(raw) for raw in (plain, *members, captured(broker), b"", b"\x80", members[0][:-9])
    ]
    assert answers == [False, True, True, False, False, False, False]
    assert source.is_chord_member(json.dumps(json.loads(members[0]), separators=(",", ":")).encode())


def test_when_a_message_expires_is_reported_in_utc(source, app, broker):
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    message = json.loads(publish(app, broker, 1, expires=moment))
    assert source.expires_at(json.dumps(message).encode()) == moment
    for text, comes_to in [("2030-01-02T03:04:05", moment), (None, None), ("soon", None), (7, None), ({}, None)]:
        message["headers"]["expires"] = text
        for style in ({}, {"separators": (",", ":")}):
            assert source.expires_at(json.dumps(message, **style).encode()) == comes_to
    assert source.expires_at(publish(app, broker, '"expires": "x"')) is None and source.expires_at(b"\x80") is None


def test_edited_arguments_keep_callbacks_and_chain(source, app, broker):
    chain(app.signature("shop.send", (1,), queue="emails"), app.signature("shop.next")).apply_async()
    raw = captured(broker)
    source.send("r", [outgoing_message(raw, args=["new"], kwargs={"to": "bob"})])
    message = json.loads(captured(broker))
    args, kwargs, embed = body(message)
    assert (args, kwargs) == (["new"], {"to": "bob"})
    assert embed == body(json.loads(raw))[2] and embed["chain"]
    assert (message["headers"]["argsrepr"], message["headers"]["kwargsrepr"]) == ("('new',)", "{'to': 'bob'}")


def test_a_message_that_is_not_json_inside_is_replayed_but_not_edited(source, app, broker):
    message = json.loads(publish(app, broker, 1))
    message |= {"content-type": "application/x-python-serialize", "body": base64.b64encode(b"\x80\x04.").decode()}
    raw = json.dumps(message).encode()
    with pytest.raises(SourceRefused, match="not edited") as refused:
        source.send("r", [outgoing_message(raw, token=4, args=[])])
    assert refused.value.token == 4
    assert source.send("r", [outgoing_message(raw, token=5)]) == {5: "sent"}
    assert json.loads(captured(broker))["body"] == message["body"]


def test_a_message_nested_too_deep_is_refused(source):
    with pytest.raises(SourceRefused):
        source.send("r", [outgoing_message(b"[" * 20_000 + b"]" * 20_000)])


def test_a_key_that_is_no_queue_sends_nothing_of_the_batch(source, app, broker):
    raw = publish(app, broker, 1)
    broker.set("taken", "a string")
    with pytest.raises(SourceRefused, match="taken"):
        source.send("r", [outgoing_message(raw, token=1), outgoing_message(raw, token=2, queue="taken")])
    assert broker.llen("emails") == 0 and source.was_sent("r", [1, 2]) == set()


def test_every_ledger_has_an_end(source, app, broker):
    source.send("r", [outgoing_message(publish(app, broker, 1))])
    assert 0 < broker.ttl("redrive:{shop}:ledger:r") <= 7 * 86400


def test_queues_are_discovered_without_celery_s_own(source, app, broker):
    app.send_task("shop.send", queue="emails")
    broker.sadd("_kombu.binding.x", "webhooks\x06\x16\x06\x16webhooks")
    broker.lpush("somebody-elses", "a string")
    broker.lpush("a-number", 1)
    broker.sadd("_kombu.binding.celery.pidbox", "\x06\x16\x06\x16celery@host.celery.pidbox")
    assert [d.queue for d in source.depths()] == ["emails", "webhooks"]


def test_a_configured_queue_is_shown_though_nothing_was_ever_sent_to_it(engine, broker):
    source = connect("shop", "celery", engine.url, queues=["later"])
    assert [(d.queue, d.waiting) for d in source.depths()] == [("later", 0)]


def test_fetched_jobs_are_active_or_wait_for_their_time(source, app, broker):
    broker.sadd("_kombu.binding.emails", "emails\x06\x16\x06\x16emails")
    for countdown in (None, 3600):
        raw = publish(app, broker, 1, countdown=countdown)
        broker.hset("unacked", f"tag-{countdown}", json.dumps([json.loads(raw), "emails", "emails"]))
    broker.hset("unacked", "strange", "not kombu's")
    (depth,) = source.depths()
    assert (depth.active, depth.delayed) == (1, 1)


def test_too_many_fetched_jobs_are_not_split_rather_than_guessed(source, app, broker):
    app.send_task("shop.send", queue="emails")
    broker.hset("unacked", mapping={f"t{n}": "x" for n in range(2_001)})
    (depth,) = source.depths()
    assert (depth.active, depth.delayed) == (None, None)


def test_a_key_prefix_is_obeyed(engine, broker):
    app = Celery("p", broker=engine.url)
    app.conf.broker_transport_options = {"global_keyprefix": "acme:"}
    app.send_task("shop.send", queue="emails")
    source = connect("shop", "celery", engine.url, options={"global_keyprefix": "acme:"})
    raw = captured(broker, "acme:emails")
    source.send("r", [outgoing_message(raw)])
    assert broker.llen("acme:emails") == 1
    assert [(d.queue, d.waiting) for d in source.depths()] == [("emails", 1)]
    app.close()


def test_a_sent_job_is_run_by_celery(source, app, broker):
    source.send("r", [outgoing_message(publish(app, broker, 1), job_id="new")])
    with app.connection_for_read() as connection, connection.SimpleQueue("emails") as queue:
        message = queue.get(timeout=60)
        assert message.headers["id"] == "new" and message.decode()[0] == [1]
        message.ack()


def test_who_works_on_a_queue_is_reported_by_the_workers_themselves_and_leaves_nothing_behind(source, engine, broker):
    worker = RealWorker(engine.url, None, pool="threads", queues="emails,webhooks").start()
    try:
        found = worker.wait(source.workers, what="the worker to answer")
        assert (
            set(found) == {"emails", "webhooks"} and len(found["emails"]) == 1 and found["emails"] == found["webhooks"]
        )
        before = set(broker.keys())
        assert not any(b"reply" in key for key in before)
        # A query that the worker did not read in time is still in its list.
        worker.wait(lambda: source.workers() and set(broker.keys()) == before, what="a query that leaves nothing")
    finally:
        worker.kill()


def test_unsafe_settings_are_found(source, broker):
    try:
        broker.config_set("maxmemory-policy", "allkeys-lru")
        broker.config_set("appendonly", "no")
        broker.config_set("save", "")
        assert {(f.id, f.severity) for f in source.findings()} == {("eviction", "high"), ("no-persistence", "high")}
    finally:
        broker.config_set("maxmemory-policy", "noeviction")
        broker.config_set("appendonly", "yes")
    assert source.findings() == []


def test_a_broker_that_reports_no_settings_is_reported_as_unknown(engine, broker):
    broker.execute_command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "+@all", "-config")
    try:
        source = connect("shop", "celery", engine.url.replace(f":{engine.password}@", "shy:pw@"))
        assert [(f.id, f.severity) for f in source.findings()] == [("settings-unknown", "info")]
    finally:
        broker.execute_command("ACL", "DELUSER", "shy")


def test_a_wrong_password_is_reported_without_reporting_it(engine):
    source = connect("shop", "celery", engine.url.replace(engine.password, "s3cret"))
    with pytest.raises(SourceUnreachable, match="login") as error:
        source.depths()
    assert "s3cret" not in str(error.value)


def test_a_server_that_hangs_is_given_up_after_five_seconds(engine, source, broker):
    os.kill(engine.process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(SourceUnreachable, match="within 5 s"):
            source.depths()
        assert time.monotonic() - begun < 30
    finally:
        os.kill(engine.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "url, message",
    [
        ("redis+cluster://a:1", "Cluster"),
        ("redis://a:1,b:2/0", "Cluster"),
        ("http://localhost", "begins with"),
        ("redis://localhost:notaport/0", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_sentence(url, message):
    with pytest.raises(SourceRefused, match=message):
        connect("shop", "celery", url)


def test_headers_that_repeat_the_arguments_unredacted_are_not_shown():
    headers = {
        "task": "t",
        "id": "j",
        "argsrepr": "('hunter2',)",
        "kwargsrepr": "{'password': 'hunter2'}",
        "redrive": {},
    }
    message = {"headers": headers, "properties": {}, "body": ""}
    assert celery_message.shown_headers(celery_message.parse(json.dumps(message).encode())) == {"task": "t", "id": "j"}


def test_a_delivery_whose_queue_refuses_it_is_not_lost_when_it_is_given_back(app, broker, source):
    raw = publish(app, broker, 1)
    broker.hset("unacked", "tag-1", json.dumps([json.loads(raw), "", "emails"]))
    broker.zadd("unacked_index", {"tag-1": 1.0})
    broker.delete("emails")
    broker.set("emails", "no list")
    with pytest.raises(SourceError):
        source.give_back(["tag-1"])
    assert broker.hkeys("unacked") == [b"tag-1"] and broker.zscore("unacked_index", "tag-1") == 1.0
    broker.delete("emails")
    assert source.give_back(["tag-1"]) == 1 and broker.llen("emails") == 1
    assert not broker.exists("unacked", "unacked_index")
