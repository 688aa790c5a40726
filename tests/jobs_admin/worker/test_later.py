"""Messages that wait in the store for another broker: published, each automatically, whatever is wrong with the one before it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import redis
from kombu import Connection
from kombu.message import Message

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.worker.broker import Publisher
from jobs_admin.worker.decision import AGAIN, WAIT, Decision
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.later import Later, NotNow, NotScheduled, closed_for, promote
from jobs_admin.worker.report import Origin

pytestmark = pytest.mark.server

MESSAGE = json.dumps({"body": "W10=", "headers": {"task": "send"}, "properties": {"body_encoding": "base64"}}).encode()


@pytest.fixture
def files(tmp_path):
    """A broker that is not Redis, and real: one file a message."""
    folder = tmp_path / "queue"
    (folder / "control").mkdir(parents=True)
    options = {"data_folder_in": str(folder), "data_folder_out": str(folder), "control_folder": str(folder / "control")}
    return Publisher(lambda: Connection("filesystem://", transport_options=options)), folder


def wait(delays, job: str, message: bytes = MESSAGE, queue: str = "emails") -> None:
    delays.schedule(Head(job, 2, "send", queue), message, 0)


def test_what_cannot_be_published_or_read_waits_on_and_holds_up_no_other(delays, client, files):
    publisher, folder = files
    wait(delays, "a", b"no JSON")
    wait(delays, "b", b"{}")
    wait(delays, "c", queue="")
    client.hset(keys.due_jobs("shop"), "d:2", b"[]\nno head")
    client.zadd(keys.due("shop"), {"d:2": 0})
    wait(delays, "e")
    wait(delays, "f", json.dumps({"body": "W", "properties": {"body_encoding": "base64"}}).encode())
    promoted = promote(delays, publisher)
    assert promoted.jobs == 1 and "it cannot be read" in promoted.failed
    assert len(list(folder.glob("*.msg"))) == 1
    assert sorted(client.hkeys(keys.due_jobs("shop"))) == [b"a:2", b"b:2", b"c:2", b"d:2", b"f:2"]
    assert promote(delays, publisher).failed == ""  # later again, not at once


def test_where_the_broker_is_away_all_are_due_at_once_when_it_is_back(delays, client, files):
    for n in range(3):
        wait(delays, str(n))
    away = promote(delays, Publisher(lambda: Connection("amqp://127.0.0.1:1//", connect_timeout=1)))
    assert away.jobs == 0 and "cannot be reached" in away.failed
    assert client.hlen(keys.due_claims("shop")) == 0
    assert promote(delays, files[0]).jobs == 3


def test_a_place_that_does_not_answer_is_left_alone_for_a_second_and_longer_while_it_goes_on():
    assert [closed_for(failed) for failed in range(5)] == [1, 2, 4, 5, 5]
    assert closed_for(10**6) == 5


def test_an_answer_that_did_not_come_costs_the_jobs_of_the_next_second_and_no_more(files, tmp_path):
    place = Engine(tmp_path / "place").start()
    client = redis.Redis.from_url(place.url, socket_timeout=30, socket_connect_timeout=30)
    delays = Delays(client, "shop")
    later = Later(Origin("shop", "", ()), delays, delays, files[0])

    def request(job: str) -> SimpleNamespace:
        message = Message(b"W10=", headers={"id": job, "task": "send"}, content_type="application/json")
        message.delivery_info = {"exchange": "", "routing_key": "emails"}
        return SimpleNamespace(id=job, type="send", message=message, request_dict={"retries": 0},
                               delivery_info=message.delivery_info, acknowledged=True)  # fmt: skip

    def refused(job: str) -> float:
        """For how many seconds no one asks, at most."""
        later._closings[False].until = 0.0  # that has passed
        with pytest.raises(NotScheduled, match="did not take it"):
            later.hold(request(job), Decision(AGAIN, "p@1", 60))
        return later._closings[False].until - time.monotonic()

    try:
        place.kill()
        assert refused("a") <= 1
        for longest in (2, 4, 5, 5):
            assert refused("b") <= longest
        place.start()
        later._closings[False].until = 0.0
        later.hold(request("c"), Decision(AGAIN, "p@1", 60))
        assert delays.count() == 1
        place.kill()
        assert refused("d") <= 1  # from the beginning
        later._closings[False].until = 0.0
        with pytest.raises(NotScheduled, match="did not take it"):
            later.hold(request("e"), Decision(WAIT, "", "paused", 60), is_paused=True)
        place.start()
        later.hold(request("f"), Decision(AGAIN, "p@1", 60))  # what cannot be put aside stops no retry
        with pytest.raises(NotNow):
            later.hold(request("e"), Decision(WAIT, "", "paused", 60), is_paused=True)
    finally:
        client.close()
        place.stop()
