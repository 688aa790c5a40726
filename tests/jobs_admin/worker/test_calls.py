"""A script in Redis, while a job waits: what a slow, hung, lost or full Redis costs the job."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import redis

from jobs_admin.worker.calls import Calls, Script
from tests.kit.network import LONGEST, SlowRoad
from tests.kit.patience import patient
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server

ECHO = Script("return {ARGV[1], 7, {'inner', ARGV[1]}, false}")


@pytest.fixture
def road(engine, store):
    made = SlowRoad(engine.url)
    yield made
    made.close()


def timed(calls, *args):
    began = time.monotonic()
    answer = calls.run(ECHO, [], args)
    return answer, time.monotonic() - began


def until_it_answers(calls) -> None:
    wait_until(lambda: calls.run(ECHO, [], ["x"]) is not None, "an answer")


@pytest.mark.parametrize("answer", ["plain", "", "ü€", "a\r\nb", "$5\r\n", "x" * 300_000])
def test_an_answer_comes_as_it_was_given(engine, store, answer):
    calls = patient(engine.url)
    assert calls.run(ECHO, [], [answer]) == [answer.encode(), 7, [b"inner", answer.encode()], None]


def test_a_script_that_redis_forgot_is_reported_again(engine, store):
    calls = patient(engine.url)
    store.script_flush()
    assert calls.run(ECHO, [], ["x"])[0] == b"x"


def test_a_redis_that_hangs_holds_up_one_call_and_no_one_after_it(road):
    calls = Calls(road.url, "things")
    until_it_answers(calls)
    road.delay = 30
    answer, took = timed(calls, "x")
    assert answer is None and took < LONGEST
    began = time.monotonic()
    assert [calls.run(ECHO, [], ["x"]) for _ in range(200)] == [None] * 200
    assert time.monotonic() - began < LONGEST  # else twenty seconds
    road.delay = 0
    until_it_answers(calls)


def test_an_answer_in_drops_takes_no_longer_than_the_bound(road):
    calls = Calls(road.url, "things")
    until_it_answers(calls)
    road.drop_by_drop = True
    answer, took = timed(calls, "x" * 100)
    assert answer is None and took < LONGEST


def test_a_redis_that_no_one_reaches_costs_nothing_but_the_first_wait():
    calls = Calls("redis://10.255.255.1:6379/0", "things")  # packets to there go nowhere
    began = time.monotonic()
    assert [calls.run(ECHO, [], ["x"]) for _ in range(200)] == [None] * 200
    assert time.monotonic() - began < LONGEST  # else twenty seconds


def test_a_connection_that_was_closed_is_made_again_within_the_call(engine, store):
    calls = patient(engine.url)
    store.client_kill_filter(_type="normal", skipme=True)
    assert calls.run(ECHO, [], ["x"])[0] == b"x"


def test_an_error_of_the_script_is_no_answer(engine, store):
    calls = patient(engine.url)
    assert calls.run(Script("return redis.call('NO')"), [], []) is None
    until_it_answers(calls)


@pytest.mark.parametrize("password, why", [("s3cret", "NOPERM"), ("wr0ng", "invalid username-password")])
def test_a_user_that_the_store_refuses_is_logged_as_refused_with_what_to_run(engine, store, caplog, password, why):
    store.execute_command("ACL SETUSER", "redrive-shop", "reset", "on", ">s3cret", "+ping", "+client", "+select")
    try:
        address = engine.url.rpartition("@")[2].removeprefix("redis://")
        calls = Calls(f"redis://redrive-shop:{password}@{address}", "things", timeout_s=10)
        until = time.monotonic() + 20
        while "jobs go on without things" not in caplog.text:
            assert calls.run(ECHO, [], ["x"]) is None and time.monotonic() < until
            time.sleep(0.05)
    finally:
        store.acl_deluser("redrive-shop")
    assert "Redrive's store refuses user redrive-shop for source shop" in caplog.text and why in caplog.text
    assert "run Redrive's command worker-acl shop --apply" in caplog.text
    assert "does not answer" not in caplog.text and password not in caplog.text


def test_a_forked_process_speaks_on_a_line_of_its_own(engine, store):
    calls = patient(engine.url)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls.connect()
        os.write(writing, (calls.run(ECHO, [], ["child"]) or [b"none"])[0])
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"child"
    assert calls.run(ECHO, [], ["parent"])[0] == b"parent"


def test_a_full_redis_is_no_answer(engine, store):
    calls = patient(engine.url)
    writes = Script("return {redis.call('SET', KEYS[1], ARGV[1]).ok}")
    store.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError):
            store.set("a", "b")
        assert calls.run(writes, ["k"], ["v"]) is None
    finally:
        store.config_set("maxmemory", 0)


NOTE = Script("redis.call('RPUSH', KEYS[1], ARGV[1]) return {'noted', {ARGV[1]}}")


def read_notes(store) -> list[bytes]:
    return store.lrange("notes", 0, -1)


def test_what_is_reported_is_done_before_what_is_queried_and_its_answer_is_no_ones(engine, store):
    calls = patient(engine.url)
    for n in range(3):
        calls.notify(NOTE, ["notes"], [n])
        assert calls.run(ECHO, [], [n])[0] == b"%d" % n
    assert read_notes(store) == [b"0", b"1", b"2"]


def test_what_is_reported_twice_in_a_row_is_done_twice(engine, store):
    calls = patient(engine.url)
    calls.notify(NOTE, ["notes"], ["a"])
    calls.notify(NOTE, ["notes"], ["b"])
    assert calls.run(ECHO, [], ["x"]) and read_notes(store) == [b"a", b"b"]


def test_what_is_reported_to_a_redis_that_does_not_know_the_script_waits_for_no_other_call(engine, store):
    calls = Calls(engine.url, "things", timeout_s=10)
    store.script_flush()
    until_it_answers(calls)
    calls.notify(NOTE, ["notes"], ["a"])
    wait_until(lambda: read_notes(store) == [b"a"], "the note")


def test_what_is_reported_while_redis_forgot_its_script_is_done_with_the_next_call(engine, store):
    calls = patient(engine.url)
    calls.notify(NOTE, ["notes"], ["a"])
    assert calls.run(ECHO, [], ["x"])
    store.script_flush()
    calls.notify(NOTE, ["notes"], ["b"])
    assert calls.run(ECHO, [], ["x"])[0] == b"x" and read_notes(store) == [b"a", b"b"]


def test_a_connection_that_was_closed_after_something_was_reported_is_made_again(engine, store):
    calls = patient(engine.url)
    calls.notify(NOTE, ["notes"], ["a"])
    store.client_kill_filter(_type="normal", skipme=True)
    assert calls.run(ECHO, [], ["x"])[0] == b"x"


def test_no_one_waits_for_what_is_reported_to_a_redis_that_hangs(road):
    calls = Calls(road.url, "things")
    until_it_answers(calls)
    road.delay = 30
    began = time.monotonic()
    calls.notify(NOTE, ["notes"], ["a"])
    assert calls._unread is not None  # its answer was not waited for
    assert calls.run(ECHO, [], ["x"]) is None and time.monotonic() - began < LONGEST
    road.delay = 0
    until_it_answers(calls)


class SoftLimit(Exception):
    """As a signal raises it, in any line of a job."""


def test_an_answer_that_a_signal_came_before_is_given_to_no_one(road):
    calls = patient(road.url)

    def raising(*_):
        raise SoftLimit

    before = signal.signal(signal.SIGUSR1, raising)
    try:
        road.delay = 1
        with pytest.raises(SoftLimit):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            calls.run(ECHO, [], ["first"])
            time.sleep(5)  # where the machine is so busy that the answer is quicker than the signal
    finally:
        signal.signal(signal.SIGUSR1, before)
    road.delay = 0
    ends = time.monotonic() + 20
    while (heard := calls.run(ECHO, [], ["second"])) is None:  # at once: the late answer is still to come
        assert time.monotonic() < ends
        time.sleep(0.02)
    assert heard[0] == b"second"
