"""A job waits for the store for a tenth of a second at most, and never for a connection to be made."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker import store as module
from jobs_admin.worker.line import Line
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.network import LONGEST, SlowRoad
from tests.kit.patience import dialled
from tests.kit.policies import obeyed, policy, running
from tests.kit.streams import reports

pytestmark = pytest.mark.server

HUNG = 30  # seconds


@pytest.fixture
def road(own_store):
    made = SlowRoad(own_store.url)
    yield made
    made.close()


@pytest.fixture
def memory():
    """A directory without a disk behind it: how long a busy disk takes for an fsync is not asked here."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def store(road, memory):
    made = Store(road.url, "shop", Spool(memory / "spool"))
    yield made
    made.close()


def holds(store: Store, count: int) -> list[float]:
    """Times by which each of `count` reports delayed its job, in seconds."""
    taken = []
    for number in range(count):
        started = time.monotonic()
        store.write({b"v": b"1", b"raw": b"%d" % number})
        taken.append(time.monotonic() - started)
    return taken


def taken_by(engine) -> int:
    with redis.Redis.from_url(engine.url) as client:
        return client.xlen(keys.failures("shop"))


def test_a_store_that_takes_90_ms_a_command_holds_a_job_that_long_and_no_longer(store, road, own_store):
    road.delay = 0.09
    assert min(holds(store, 3)) < 0.08  # no connection yet, and none is made here: to the disk
    assert (road.connections, store.spool.waiting) == (0, 3)
    road.delay = 0
    dialled(store)
    road.delay = 0.09
    assert max(holds(store, 5)) < LONGEST
    assert taken_by(own_store) + store.spool.waiting >= 8
    assert taken_by(own_store) > 0


def test_a_store_that_is_slower_than_the_bound_costs_it_once(store, road, monkeypatch):
    monkeypatch.setattr(module, "BREAKER_SECONDS", 60)  # however long the rest takes
    dialled(store)
    dials = road.connections
    road.delay = HUNG
    taken = holds(store, 300)
    assert max(taken) < LONGEST
    assert sum(taken) < 15  # one wait, then the disk: else thirty seconds
    assert store.spool.waiting == 300
    store.dial()  # comes to nothing for a while: else each of them would cost a job the wait again
    assert road.connections == dials  # and a job never dials


def test_a_store_that_is_slow_for_many_reports_holds_jobs_for_a_part_of_the_time_only(
    store, road, own_store, monkeypatch
):
    """Each answer comes within the bound; without another one, a flood of failures would take 60 ms of each."""
    monkeypatch.setattr(module, "CALL_TIMEOUT", 10)
    monkeypatch.setattr(module, "BREAKER_SECONDS", 60)
    dialled(store)
    dials = road.connections
    road.delay = 0.06
    waited = []
    while store._line is not None and len(waited) < 100:
        waited += holds(store, 1)
    assert len(waited) < 20 and sum(one - module.FAIR_SECONDS for one in waited) > module.LONG_SECONDS
    assert min(holds(store, 50)) < 0.055  # to the disk
    assert (taken_by(own_store), store.spool.waiting) == (len(waited), 50)
    store.dial()
    assert road.connections == dials  # not before that time has passed


def test_a_store_that_is_slow_now_and_then_is_queried_again_and_again(store, road, own_store, monkeypatch):
    monkeypatch.setattr(module, "CALL_TIMEOUT", 10)
    dialled(store)
    taken = []
    for _ in range(6):
        road.delay = 0.05
        taken += holds(store, 1)
        road.delay = 0.0
        taken += holds(store, 50)
    too_slow = sum(max(0, one - module.FAIR_SECONDS) for one in taken) > module.LONG_SECONDS  # on a busy machine
    assert taken_by(own_store) == 306 or too_slow


def test_a_store_that_is_too_slow_from_the_start_is_not_queried_by_jobs_at_all(store, road):
    road.delay = 0.15
    with pytest.raises(redis.TimeoutError, match="for a PING"):
        store.dial()
    assert min(holds(store, 10)) < 0.08
    assert store.spool.waiting == 10


def test_an_answer_that_comes_in_drops_is_bounded_in_full(store, road):
    dialled(store)
    road.drop_by_drop = True  # each byte within the time-out, all of them far beyond it
    (taken,) = holds(store, 1)
    assert 0.09 < taken < LONGEST
    assert store.spool.waiting == 1


def test_a_connection_that_broke_while_idle_costs_nothing_and_is_dialled_again_elsewhere(
    store, road, own_store, patience
):
    dialled(store)
    dials = road.connections
    road.break_all()
    road.delay = 0.09
    assert min(holds(store, 5)) < 0.08
    assert (store.spool.waiting, road.connections) == (5, dials)
    road.delay = 0
    dialled(store)
    assert holds(store, 1)[0] < LONGEST
    assert taken_by(own_store) == 1
    assert store.drain() == 5
    assert taken_by(own_store) == 6


def test_threads_that_fail_together_do_not_wait_for_each_other_without_end(store, road):
    dialled(store)
    road.delay = 0.08
    taken: list[float] = []
    together = threading.Barrier(12)

    def fail():
        together.wait(30)
        taken.extend(holds(store, 1))

    threads = [threading.Thread(target=fail) for _ in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len(taken) == 12
    assert store.spool.waiting >= 6  # of those who did not get the line in time; else all would have got it


def test_a_name_that_takes_long_to_resolve_is_the_heartbeats_trouble(memory):
    store = Store("redis://no-such-host.invalid/0", "shop", Spool(memory / "spool"))
    assert min(holds(store, 5)) < 0.08
    with pytest.raises(redis.ConnectionError):
        store.dial()
    assert min(holds(store, 5)) < 0.08
    assert store.spool.waiting == 10


def test_a_refusal_is_reported_as_the_server_worded_it(own_store):
    with redis.Redis.from_url(own_store.url) as client:
        client.set("not-a-stream", 1)
        line = Line(own_store.url)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            line.query(("XADD", "not-a-stream", "*", "v", "1"), time.monotonic() + 30)
        line.close()


@pytest.mark.parametrize("value", [b"", b"\r\n", b"x" * 3_000_000, "Zoë".encode()])
def test_what_is_sent_by_hand_arrives_in_full(store, own_store, value):
    dialled(store)
    store.write({b"v": b"1", b"raw": value})
    store.drain()
    with redis.Redis.from_url(own_store.url) as client:
        arrived = [fields for _, fields in client.xrange(keys.failures("shop"))]
    # Twice where a busy machine took longer than the bound: then it was spooled, too.
    assert arrived in ([{b"v": b"1", b"raw": value}], [{b"v": b"1", b"raw": value}] * 2)


def test_a_worker_on_a_slow_road_runs_its_jobs_and_reports_all_of_them(road, own_store, start):
    road.delay = 0.09
    worker = start(road.url, pool="solo", environment={"REAL_PATIENCE": ""})
    jobs = [worker.send("fail", f"n{number}") for number in range(10)]
    worker.wait(lambda: {report.job_id for report in reports(own_store)} == set(jobs), what="ten reports")


def test_the_patient_worker_of_other_tests_sends_each_report_once_on_a_slow_road(road, own_store, start):
    """A busy machine is a slow road: models of random histories count reports."""
    worker = start(road.url, pool="solo", late_ack=True)
    worker.wait(lambda: running(own_store.url), what="a heartbeat, so that there is a line")
    road.delay = 0.09
    jobs = [worker.send("fail", f"n{number}") for number in range(12)]
    worker.wait(lambda: {report.job_id for report in reports(own_store)} >= set(jobs), what="twelve reports")
    assert len(reports(own_store)) == 12 and "they go to" not in worker.text()


def test_a_budget_holds_by_shares_while_the_store_takes_longer_than_a_job_may_wait(start, own_store):
    road = SlowRoad(own_store.url)
    worker = start(road.url, environment={"REAL_PATIENCE": ""})
    obeyed(worker, own_store.url, policy("partner", max_attempts=2, budget={"per_minute": 30, "burst": 3}))
    road.delay = 0.3  # seconds: more than a tenth, and no outage
    began = time.monotonic()
    for _ in range(40):
        worker.send("try")
    worker.wait(lambda: len(worker.marks("attempts")) >= 44, what="a retry above the burst")
    retries = len(worker.marks("attempts")) - 40
    assert retries <= 3 + 30 * (time.monotonic() - began) / 60 + 3  # as many before the first that found the store slow
    road.delay = 0.0
    # A heartbeat may be of the time before the last of them was decided.
    worker.wait(
        lambda: (workers := running(own_store.url)) and workers[0]["shared_out"] >= 40 - 3,
        what="a heartbeat that counts the retries decided by shares",
    )
    worker.stop()
    road.close()
