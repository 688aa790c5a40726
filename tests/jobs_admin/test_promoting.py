"""The step of `watch` that brings back what no worker does: every source has its turn, wherever its jobs wait."""

from __future__ import annotations

import json
import threading

import pytest
import redis
from django.core.management import call_command

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.management.commands import drain
from jobs_admin.retries import delayed, promoting
from jobs_admin.worker.delays import Delays, Head
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.server

LATE_MS = 60_000
MESSAGE = json.dumps(
    {
        "body": "W10=",
        "headers": {"task": "send"},
        "properties": {
            "body_encoding": "base64",
            "priority": 3,
            "delivery_info": {"exchange": "", "routing_key": "emails"},
        },
    }
).encode()


@pytest.fixture
def other(engine):
    with redis.Redis.from_url(engine.url.removesuffix("/0") + "/5") as client:
        yield client


@pytest.fixture
def sources(engine, store, settings, tmp_path):
    """`away` (first), whose broker does not answer, and `shop`, on a Redis broker; the store is another database of it."""
    file = tmp_path / "sources.toml"
    file.write_text(
        '[sources.away]\nbackend = "celery"\nurl = "amqp://127.0.0.1:1//"\n'
        f'[sources.shop]\nbackend = "celery"\nurl = "{engine.url.removesuffix("/0")}/5"\n'
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    promoting._places.clear()
    promoting._closed_until.clear()
    yield
    promoting._places.clear()
    promoting._closed_until.clear()


def late(client, source: str, entry: Head, message: bytes) -> None:
    Delays(client, source).schedule(entry, message, 0)
    client.zincrby(keys.due(source), -LATE_MS, entry.member)


def test_a_source_with_something_that_cannot_be_read_does_not_hold_up_the_next(sources, store, other):
    store.hset(keys.due_jobs("away"), "odd:2", b"\xff")
    store.zadd(keys.due("away"), {"odd:2": 0})
    late(store, "away", Head("a", 2, "send", "emails"), b"no JSON")
    late(other, "shop", Head("b", 2, "send", "emails", list="emails"), b"b")
    assert promoting.step()
    assert other.lrange("emails", 0, -1) == [b"b"]
    assert store.hlen(keys.due_jobs("away")) == 2


def test_what_workers_of_a_redis_broker_put_into_the_store_comes_back_too(sources, store, other):
    """Sources that cannot dial the broker by themselves: a program provides their credentials, or there are several servers."""
    late(store, "shop", Head("a", 2, "send", "emails"), MESSAGE)
    assert promoting.step()
    (message,) = other.lrange("emails\x06\x163", 0, -1)
    assert json.loads(message)["headers"] == {"task": "send"}
    assert store.zcard(keys.due("shop")) == 0


@pytest.mark.parametrize(
    ("host", "database", "count"), [("localhost", "0", 1), ("127.0.0.1", "0", 1), ("localhost", "5", 2)]
)
def test_a_store_by_another_name_is_no_second_place(engine, store, host, database, count):
    url = engine.url.replace("127.0.0.1", host).removesuffix("0") + database
    assert config.store().connection_pool.connection_kwargs["host"] == "127.0.0.1"
    assert len(delayed.places(config.SourceConfig("shop", "celery", url))) == count


@pytest.mark.django_db
def test_drain_checks_in_both_places(sources, store, other, capsys, monkeypatch):
    monkeypatch.setattr(drain, "_OBEYED_WITHIN_S", 0.1)
    Delays(store, "shop").schedule(Head("a", 2, "send", "emails"), MESSAGE, 600)
    Delays(other, "shop").schedule(Head("b", 2, "send", "emails", list="emails"), b"b", 600)
    call_command("drain", now=True)
    assert capsys.readouterr().out.rstrip().endswith("safe to remove install()")
    assert store.zcard(keys.due("shop")) == other.zcard(keys.due("shop")) == 0
    assert (other.llen("emails"), other.llen("emails\x06\x163")) == (1, 1)


@pytest.mark.django_db
def test_drain_waits_for_what_another_has_claimed_and_takes_what_no_one_can_read(
    sources, store, other, capsys, monkeypatch
):
    monkeypatch.setattr(drain, "_OBEYED_WITHIN_S", 0.1)
    place = Delays(store, "away")
    place.schedule(Head("claimed", 2, "send", "emails"), MESSAGE, 600)
    claimed, _ = place.claim(is_due=False)
    place.schedule(Head("waits", 2, "send", "emails"), MESSAGE, 600)
    store.hset(keys.due_jobs("away"), "odd:2", b"\xff")
    store.zadd(keys.due("away"), {"odd:2": 0})
    later = threading.Timer(0.7, lambda: place.finish(claimed))
    later.start()
    call_command("drain", to_dead=True)
    later.join()
    assert "away: 2 retries are now dead" in capsys.readouterr().out
    assert place.count() == 0 and store.xlen(keys.failures("away")) == 2
