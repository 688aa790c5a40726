"""A report whose message the broker has forgotten already is sent and not waited for; what the store does not answer is kept."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest
import redis
from celery.worker.request import Request
from kombu import Connection
from kombu.transport.virtual import Message

from jobs_admin.core import keys
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.report import Origin
from jobs_admin.worker.request import guarded
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import MOST_UNANSWERED, Store
from tests.kit.celery import make_app
from tests.kit.network import SlowRoad
from tests.kit.patience import dialled

pytestmark = pytest.mark.server


@pytest.fixture
def road(own_store):
    made = SlowRoad(own_store.url)
    yield made
    made.close()


@pytest.fixture
def store(road, tmp_path):
    made = dialled(Store(road.url, "shop", Spool(tmp_path / "spool")))
    yield made
    made.close()


def record_waits(store: Store, monkeypatch) -> list[bool]:
    """Each time that answers are looked for from now on: whether they are waited for."""
    found, really = [], store._read_answers

    def read_answers(line, deadline, *, waits):
        found.append(waits)
        return really(line, deadline, waits=waits)

    monkeypatch.setattr(store, "_read_answers", read_answers)
    return found


def entry(number: int) -> dict[bytes, bytes]:
    return {b"v": b"1", b"raw": b"%d" % number}


def write_entries(store: Store, numbers: range) -> None:
    for number in numbers:
        store.write(entry(number), may_lag=True)


def reported_numbers(engine) -> list[int]:
    with redis.Redis.from_url(engine.url) as client:
        return [int(fields[b"raw"]) for _, fields in client.xrange(keys.failures("shop"))]


def test_a_slow_store_holds_up_no_one_who_need_not_wait_for_it(store, road, own_store, patience, monkeypatch):
    road.delay, waits = 0.09, record_waits(store, monkeypatch)
    write_entries(store, range(10))
    assert not any(waits)
    store.close()  # the worker ends: waits for what was not answered
    assert reported_numbers(own_store) == list(range(10)) and store.spool.waiting == 0


def test_only_so_many_are_on_their_way_at_a_time(store, road):
    road.delay = 0.02
    write_entries(store, range(MOST_UNANSWERED + 5))
    assert store._line is None or len(store._line.unanswered) <= 5  # after the sixteenth all were waited for


def test_what_a_hung_store_does_not_answer_goes_to_the_spool_and_costs_no_one_a_wait(
    store, road, own_store, monkeypatch
):
    road.delay, waits = 30, record_waits(store, monkeypatch)
    write_entries(store, range(5))
    time.sleep(0.11)
    write_entries(store, range(5, 8))
    assert waits and not any(waits)
    assert store.spool.waiting == 8 and store._line is None
    # Five are on the stream too: which, nobody could know. Ingest files a job once.
    assert set(reported_numbers(own_store)) <= set(range(5))


def test_the_heartbeat_finds_out_what_was_not_answered(store, road):
    road.delay = 30
    write_entries(store, range(5))
    time.sleep(0.11)
    store.dial()
    assert store.spool.waiting == 5


def test_a_connection_that_breaks_takes_nothing_with_it(store, road, own_store, patience):
    road.delay = 0.05
    write_entries(store, range(3))
    road.break_all()
    road.delay = 0
    write_entries(store, range(3, 6))
    assert store.spool.waiting >= 3
    store.dial()  # at once: nothing had to be waited for
    write_entries(store, range(6, 7))
    store.drain()
    store.close()
    assert set(reported_numbers(own_store)) == set(range(7))


def test_a_store_that_forgot_the_script_is_reported_it_again_and_each_report_arrives_once(store, own_store, patience):
    with redis.Redis.from_url(own_store.url) as client:
        client.script_flush()
    write_entries(store, range(5))
    store.write(entry(5))
    # In which order depends on how many were sent before the first refusal came.
    assert sorted(reported_numbers(own_store)) == list(range(6)) and store.spool.waiting == 0


def test_what_found_no_room_goes_to_the_spool(own_store, tmp_path, patience):
    store = Store(own_store.url, "shop", Spool(tmp_path / "spool"), stream_bytes=600)
    store.dial()
    write_entries(store, range(20))
    store.close()
    numbers = reported_numbers(own_store)
    assert 5 <= len(numbers) < 20 and store.is_full
    (file,) = (tmp_path / "spool").glob("*.spool")
    assert len(numbers) + file.read_bytes().count(b"raw") == 20


def test_an_answer_that_comes_in_drops_is_bounded_here_too(store, road):
    write_entries(store, range(1))
    road.drop_by_drop = True
    write_entries(store, range(1, 3))
    while store._line is not None and not store._line._line.has_come():
        time.sleep(0.01)
    write_entries(store, range(3, 4))
    assert store._line is None and store.spool.waiting >= 3  # given up, where the drops would have come in the end


@pytest.mark.parametrize("late", [False, True])
def test_only_a_job_that_was_acknowledged_does_not_wait_to_be_reported(
    road, own_store, tmp_path, patience, monkeypatch, late
):
    app = make_app("memory://", late_ack=late)
    app.send_task("fail_plain", queue=f"own-{late}")
    channel = Connection("memory://").channel()
    guard = Guard(Origin("shop", "", ()), Store(road.url, "shop", Spool(tmp_path / "s")))
    guard.store.dial()
    message = Message(channel._get(f"own-{late}"), channel=channel)
    request = guarded(Request, guard)(message, app=app, hostname="w@h", task=app.tasks["fail_plain"])
    request._on_ack = lambda *_: None
    request.on_accepted(1, time.monotonic())
    road.delay, waits = 0.08, record_waits(guard.store, monkeypatch)
    guard.job_timed_out(request, 1)
    assert any(waits) is late
    guard.store.close()
    with redis.Redis.from_url(own_store.url) as client:
        assert client.xlen(keys.failures("shop")) == 1


WRONG = {
    "a text": b"$7\r\nREFUSED\r\n",
    "a state": b"+QUEUED\r\n",
    "nothing": b"$-1\r\n",
    "another number": b":7\r\n",
    "a list": b"*2\r\n:1\r\n:1\r\n",
    "lists without end": b"*1\r\n" * 3_000,
    "a size below nothing": b"$-7\r\n",
    "a large number": b":" + b"9" * 5_000 + b"\r\n",
}


def answering(wrong: bytes) -> str:
    """The URL of a server that answers each report so, and anything else as Redis does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as near:
            while got := near.recv(65_536):
                near.sendall(wrong if b"EVALSHA" in got else b"+PONG\r\n" if b"PING" in got else b"+OK\r\n")

    threading.Thread(target=serve, daemon=True).start()
    return f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("may_lag", [False, True])
def test_a_report_whose_answer_reports_nothing_of_it_goes_to_the_spool(tmp_path, patience, wrong, may_lag):
    store = Store(answering(WRONG[wrong]), "shop", Spool(tmp_path / "spool"))
    store.dial()
    store.write(entry(1), may_lag=may_lag)
    store.close()
    assert drain_spool(tmp_path / "spool") == [entry(1)]


def drain_spool(directory) -> list[dict[bytes, bytes]]:
    found: list[dict[bytes, bytes]] = []
    Spool(directory).drain(found.extend)
    return found


def test_a_report_that_a_signal_came_between_is_stored(store, road, patience):
    class Ending(BaseException):
        pass

    def raising(*_):
        raise Ending

    before = signal.signal(signal.SIGUSR1, raising)
    try:
        road.delay = 30
        with pytest.raises(Ending):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            store.write(entry(1))
            time.sleep(5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert store.spool.waiting == 1
