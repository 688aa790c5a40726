"""The bytes of an element stay with its own message, and with no other."""

from __future__ import annotations

import json

import pytest
import redis
from kombu import Connection, Consumer, Queue

from jobs_admin.worker.raw_message import Popped, keep_elements
from jobs_admin.worker.report import raw_message

pytestmark = pytest.mark.server


@pytest.fixture
def url(broker):
    """A database of the broker that no worker reads."""
    made = broker.url.removesuffix("/0") + "/5"
    with redis.Redis.from_url(made) as client:
        client.flushdb()
    return made


def element(number: int) -> bytes:
    properties = {"delivery_tag": str(number), "delivery_info": {"exchange": "", "routing_key": "jobs"}}
    message = {"body": "Zoë", "headers": {}, "properties": properties, "content-type": "text/plain"}
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def test_an_element_that_cannot_be_read_leaves_nothing_for_the_next_message(url):
    seen = []
    with Connection(url) as connection, redis.Redis.from_url(url) as client:
        channel = connection.channel()
        assert keep_elements(channel)
        with Consumer(channel, [Queue("jobs")], on_message=seen.append, accept=["text/plain"]):
            client.lpush("jobs", "not JSON")
            with pytest.raises(json.JSONDecodeError):
                connection.drain_events(timeout=60)
            channel.connection._deliver(json.loads(element(0)), "jobs")  # not popped: as from a fanout
            client.lpush("jobs", element(1))
            connection.drain_events(timeout=60)
    assert not isinstance(seen[0]._raw, Popped)
    assert [raw_message(seen[0]) == element(0), raw_message(seen[1]) == element(1)] == [False, True]


def test_a_message_that_is_put_back_is_put_back_as_kombu_does(url):
    seen = []
    with Connection(url) as connection, redis.Redis.from_url(url) as client:
        channel = connection.channel()
        keep_elements(channel)
        with Consumer(channel, [Queue("jobs")], on_message=seen.append, accept=["text/plain"]):
            client.lpush("jobs", element(1))
            connection.drain_events(timeout=60)
            (waiting,) = client.hvals("unacked")
            assert json.loads(waiting)[0] == json.loads(element(1))
            seen[0].requeue()
            (raw,) = client.lrange("jobs", 0, -1)
            connection.drain_events(timeout=60)
    assert raw_message(seen[1]) == raw
    assert json.loads(raw)["headers"] == {"redelivered": True}


def test_other_transports_and_a_second_call_change_nothing(url):
    with Connection("memory://") as connection:
        assert not keep_elements(connection.channel())
    with Connection(url) as connection:
        channel = connection.channel()
        assert [keep_elements(channel), keep_elements(channel)] == [True, False]
