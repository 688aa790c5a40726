"""The quick way and the way by JSON write the very same bytes; what it does not know, the quick way leaves alone."""

from __future__ import annotations

import json

import pytest
import redis
from celery import Celery, chord
from hypothesis import given, settings
from hypothesis import strategies as some
from kombu import Exchange, Queue

from jobs_admin.sources.base import OutgoingMessage, SourceRefused
from jobs_admin.sources.celery import message as celery_message
from tests.kit.endurance import times

WRITTEN = (
    rb'{"body": "W1sxXSwge30sIHt9XQ==", "content-encoding": "utf-8", "content-type": "application/json", "headers": '
    rb'{"lang": "py", "task": "shop.send", "id": "old", "shadow": null, "eta": null, "expires": null, "group": null, '
    rb'"group_index": null, "retries": 3, "timelimit": [null, 1.5], "root_id": "root", "parent_id": null, "argsrepr": '
    rb'"(1, \"\\u00e9 {\\\"id\\\": \\\"x\\\"}\")", "kwargsrepr": "{}", "origin": "gen1@h", "ignore_result": false, '
    rb'"stamps": {}, "own": {"a": -1.5}}, "properties": {"correlation_id": "old", "reply_to": "q", "delivery_mode": 2, '
    rb'"delivery_info": {"exchange": "", "routing_key": "emails"}, "priority": 3, "body_encoding": "base64", '
    rb'"delivery_tag": "t"}}'
)


def outgoing_message(raw: bytes = WRITTEN, **changes) -> OutgoingMessage:
    values = {"token": 7, "raw": raw, "queue": "emails", "job_id": "new", "lineage": {"queue": "emails", "run": 2}}
    return OutgoingMessage(**values | changes)


def by_json(one: OutgoingMessage) -> tuple[int, bytes] | None:
    try:
        return celery_message._renew_parsed(one, "tag")
    except SourceRefused:
        return None


def read(renewed: tuple[int, bytes]) -> tuple[int, dict]:
    return renewed[0], json.loads(renewed[1])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"job_id": "old"},
        {"job_id": 'with "quotes" and é'},
        {"queue": "webhooks"},
        {"queue": "é"},
        {"priority": 9, "retries": None},
        {"retries": 2, "lineage": {"queue": "é", "job_id": "a", "run": 3, "item": None, "sent_as": "new"}},
    ],
)
def test_the_quick_way_writes_what_the_way_by_json_does(changes):
    one = outgoing_message(**changes)
    assert celery_message._renew_plain(one, "tag") == by_json(one) is not None


@pytest.mark.parametrize("exchange", ["", "shop"])
@pytest.mark.parametrize("queue", ["emails", "inbox", "webhooks"])
def test_it_readdresses_as_the_way_by_json_does(exchange, queue):
    raw = WRITTEN.replace(b'"exchange": ""', b'"exchange": "%s"' % exchange.encode()).replace(
        b'": "emails"', b'": "inbox"'
    )
    one = outgoing_message(raw, queue=queue)
    assert celery_message._renew_plain(one, "tag") == by_json(one) is not None


def test_a_second_replay_is_written_the_same_way_too():
    once = outgoing_message(
        celery_message._renew_plain(outgoing_message(), "before")[1],
        job_id="newer",
        lineage={"queue": "emails", "run": 3},
    )
    assert celery_message._renew_plain(once, "tag") == by_json(once) is not None


_PUT = some.binary(max_size=3) | some.sampled_from(b'0 1 9 - . e " \\ , : { } [ ] null "" "id": ,"a":1'.split())


@settings(max_examples=times(250, 1_000))
@given(at=some.integers(0, len(WRITTEN)), gone=some.integers(0, 4) | some.integers(0, 60), put=_PUT)
def test_a_message_that_is_damaged_anywhere_is_never_read_otherwise_than_by_json(at, gone, put):
    one = outgoing_message(WRITTEN[:at] + put + WRITTEN[at + gone :])
    quick = celery_message._renew_plain(one, "tag")
    assert quick is None or read(quick) == read(by_json(one))


_TEXTS = some.text(some.sampled_from('"\\ ,:{}[]aé\x00\ud800'), max_size=8)
_JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | _TEXTS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(
    headers=some.dictionaries(
        some.sampled_from(["own", "stamps", "redelivered", "x-death", "redrive", "task", "root_id", "expires"])
        | _TEXTS,
        _JSON,
    )
)
def test_no_header_makes_it_write_anything_else(headers):
    message = json.loads(WRITTEN)
    message["headers"] |= headers
    one = outgoing_message(json.dumps(message).encode())
    quick = celery_message._renew_plain(one, "tag")
    assert quick is None or read(quick) == read(by_json(one))


@pytest.mark.server
def test_what_celery_writes_goes_the_quick_way(engine):
    broker = redis.Redis.from_url(engine.url)
    broker.flushall()
    app = Celery("shop", broker=engine.url, backend="cache+memory://", set_as_current=False)
    app.conf.task_queues = [Queue("hooks", Exchange("web", "topic"), routing_key="web.#"), Queue("emails")]
    app.send_task("shop.send", (1, "é"), {"to": "ann"}, queue="emails", headers={"tenant": "t", "own": [1]})
    app.send_task("shop.send", (1,), countdown=9, expires=60, queue="emails", time_limit=3, ignore_result=True)
    app.send_task("shop.send", queue="hooks", routing_key="web.a")
    stamped = app.signature("shop.send", (1,), queue="emails")
    stamped.stamp(of="ann")
    stamped.apply_async()
    chord([app.signature("shop.part", (n,), queue="emails") for n in range(2)])(app.signature("shop.body"))
    written = broker.lrange("emails", 0, -1) + broker.lrange("hooks", 0, -1)
    assert len(written) == 6
    for raw in written:
        assert celery_message._renew_plain(outgoing_message(raw), "tag") == by_json(outgoing_message(raw)) is not None
    app.close()
    broker.close()
