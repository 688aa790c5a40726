"""Faults of the store and deaths of workers: jobs go on, and no report is lost or filed twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import MOST_UNANSWERED, Store
from tests.kit.network import hanging
from tests.kit.spool import spooled_bytes
from tests.kit.spool import spooled_records as records
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server


def distinct(engine: Engine) -> list[str]:
    """Messages in the order of their first arrival. One report may come twice: the call that timed out may have worked."""
    return list(dict.fromkeys(report.message for report in reports(engine)))


@pytest.mark.long("Starts a worker whose store hangs.")
def test_a_store_that_hangs_holds_up_no_job_and_loses_no_report(start, own_store):
    worker = start(own_store.url, concurrency=1, environment={"REAL_PATIENCE": ""})

    def seconds_of(names):
        started, before = time.monotonic(), len(worker.marks("ok"))
        for name in names:
            worker.send("fail", name)
        worker.send("ok")
        worker.wait(lambda: len(worker.marks("ok")) > before, 60, "the job behind the failures")
        return time.monotonic() - started

    heard, unheard = [f"h{n}" for n in range(300)], [f"u{n}" for n in range(300)]
    usual = seconds_of(heard)
    worker.wait(lambda: len(distinct(own_store)) == 300, what="the first reports")
    with hanging(own_store):
        # One call of 100 ms for all of them; without the breaker it would be thirty seconds.
        assert seconds_of(unheard) < usual + 15
        worker.wait(lambda: spooled_bytes(worker), what="the spool")
    worker.wait(lambda: len(distinct(own_store)) == 600, what="the spool to be shipped")
    arrived = distinct(own_store)
    # Of the first ones, on a busy machine, some may have gone by the spool as well, behind others.
    assert set(arrived) == {*heard, *unheard} and [one for one in arrived if one in unheard] == unheard
    with redis.Redis.from_url(own_store.url) as client:
        assert client.xlen(keys.failures("shop")) <= 600 + 2 * MOST_UNANSWERED
    worker.wait(lambda: not spooled_bytes(worker), what="an empty spool")


def test_a_store_that_is_gone_gets_its_reports_when_it_is_back(start, own_store):
    worker = start(own_store.url)
    own_store.stop()
    jobs = [worker.send("fail", f"n{number}") for number in range(20)]
    worker.wait(lambda: worker.text().count("raised unexpected") == 20, what="20 failures")
    own_store.start()
    worker.wait(lambda: len(reports(own_store)) == 20, what="the spool to be shipped")
    assert {report.job_id for report in reports(own_store)} == set(jobs)
    assert "they go to" in worker.text()
    late = worker.send("fail", "afterwards")
    worker.wait(lambda: of_job(own_store, late), what="the breaker to close")


def test_a_worker_that_starts_without_its_store_works(start, own_store):
    own_store.stop()
    worker = start(own_store.url, pool="solo")
    worker.send("fail")
    worker.send("ok")
    worker.wait(lambda: worker.marks("ok"), what="a job")
    own_store.start()
    worker.wait(lambda: len(reports(own_store)) == 1, what="the report")


def test_the_spool_of_a_killed_worker_is_shipped_by_the_next(start, own_store):
    own_store.stop()
    worker = start(own_store.url)
    for number in range(10):
        worker.send("fail", f"n{number}")
    worker.wait(lambda: worker.text().count("raised unexpected") == 10, what="10 failures")
    worker.wait(lambda: records(worker.spool) == 10, what="the spool")
    worker.kill()
    own_store.start()
    worker.start()
    worker.wait(lambda: len(distinct(own_store)) == 10, what="the dead worker's reports")
    worker.wait(lambda: not spooled_bytes(worker), what="an empty spool")


def test_a_worker_that_stops_ships_its_spool_and_reports_its_last_counts(start, own_store):
    worker = start(own_store.url)
    jobs = [worker.send("until", f"j{n}", "it failed") for n in range(2)]
    worker.wait(lambda: len(worker.marks("until")) == 2, what="both to run")
    worker.process.terminate()
    worker.wait(lambda: "Warm shutdown" in worker.text(), what="it to be told")
    worker.let("j0")
    worker.let("j1")
    worker.stop(60)  # the two jobs end first
    assert {report.job_id for report in reports(own_store)} == set(jobs)
    with redis.Redis.from_url(own_store.url) as client:
        (heartbeat,) = map(json.loads, client.hgetall(keys.workers("shop")).values())
    assert heartbeat["counts"]["celery"]["failed"] == 2


@pytest.mark.parametrize(("task", "waits_for_ack"), [("late", 1), ("fail_plain", 0)])
def test_the_report_is_durable_before_the_message_is_acknowledged(start, own_store, task, waits_for_ack):
    """The main process dies between the guard's report and Celery's acknowledge: under late ack both are there."""
    worker = start(own_store.url, environment={"REAL_REQUEST": "1", "REAL_DIE_BEFORE_ACK": "1"})
    job = worker.send(task)
    worker.wait(lambda: worker.marks("shop_request"), what="the failure", may_die=True)
    worker.process.wait(60)
    durable = reports(own_store)
    # On a busy machine a call to the store may take longer than a job may wait.
    Spool(worker.spool).drain(lambda batch: durable.extend(map(decode, batch)))
    assert {(report.job_id, report.kind) for report in durable} == {(job, "exception")}
    with redis.Redis.from_url(worker.broker_url) as client:
        assert client.hlen("unacked") == waits_for_ack


def test_a_stream_that_is_full_sends_reports_to_the_spool(start, own_store):
    worker = start(own_store.url, environment={"REDRIVE_STREAM_MB": "1"})
    for _ in range(40):
        worker.send("fail", "big", kwargs={"blob": "y" * 50_000})
    worker.wait(lambda: worker.text().count("raised unexpected") == 40, what="40 failures")
    worker.wait(lambda: spooled_bytes(worker), what="the spool")
    with redis.Redis.from_url(own_store.url) as client:
        assert client.memory_usage(keys.failures("shop"), samples=0) < 1.2 * 1024**2
        length = client.xlen(keys.failures("shop"))
        assert 0 < length < 40
        client.xtrim(keys.failures("shop"), maxlen=0)  # as ingest does once it has read
        worker.wait(lambda: client.xlen(keys.failures("shop")) >= min(40 - length, 10), what="room to be used again")


def test_a_store_out_of_memory_sends_reports_to_the_spool(own_store, tmp_path, patience):
    with redis.Redis.from_url(own_store.url) as client:
        client.config_set("maxmemory", 1)
    store = Store(own_store.url, "shop", Spool(tmp_path / "spool"))
    store.dial()
    store.write({b"v": b"1"})
    assert (store.spool.waiting, store.dropped) == (1, 0)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        store.drain()


def test_what_neither_store_nor_spool_takes_is_counted(tmp_path):
    (tmp_path / "spool").write_text("a file where the directory should be")
    store = Store("redis://127.0.0.1:1/0", "shop", Spool(tmp_path / "spool"))
    store.write({b"v": b"1"})
    assert store.dropped == 1


def test_nothing_a_job_reports_makes_the_guard_raise(own_store, tmp_path):
    """Requests in states that no healthy worker makes: the guard counts what it could not report, and goes on."""
    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.report import Origin

    guard = Guard(Origin("shop", "", ()), Store(own_store.url, "shop", Spool(tmp_path / "s")))
    for request in (None, object(), 5):
        guard.job_started(request)
        guard.job_failed(request, None)
        guard.job_timed_out(request, 1)
        guard.job_succeeded(request, None)
    assert guard.broken == 12


@pytest.mark.parametrize("is_stock", [True, False])
def test_what_a_broker_gave_to_a_worker_that_dies_before_it_reads_it_is_gone_with_and_without_us(
    start, own_store, is_stock
):
    """kombu asks by BRPOP, and notes what it got in `unacked` by a second call: what docs/failure-modes.md says of that.

    Should this fail, kombu has closed the window, and the page is to say so.
    """
    worker = start(own_store.url, late_ack=True, environment={"REAL_STOCK": "1" if is_stock else ""})
    with redis.Redis.from_url(worker.broker_url) as broker:
        worker.send("ok", queue="held")
        message = broker.lpop("held")

        def is_given_away():
            """A BRPOP lasts a second: a worker that was stopped between two has asked for nothing, and goes on to the next."""
            os.kill(worker.process.pid, signal.SIGSTOP)  # busy with something else
            worker.wait(lambda: _state(worker.process.pid) == "T", what="it to stand still")
            broker.lpush("celery", message)
            if not broker.lrem("celery", 1, message):
                return True
            os.kill(worker.process.pid, signal.SIGCONT)
            return False

        worker.wait(is_given_away, what="the broker to have given it away")
        worker.kill()
        assert not broker.hvals("unacked") and not broker.zcard("unacked_index")


def _state(pid):
    """A process' letter in /proc: `T` is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
