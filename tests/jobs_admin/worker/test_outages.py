"""One worker through every fault of its store, on each rung: it goes on, and every failure is reported. And the switch, meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from functools import partial

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit.network import hanging
from tests.kit.policies import policy, published
from tests.kit.spool import spooled_bytes
from tests.kit.streams import reports
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server


@contextlib.contextmanager
def refused(store: Engine):
    store.stop()
    try:
        yield
    finally:
        store.start()


@contextlib.contextmanager
def killed(store: Engine):
    """And back at once, from its append-only file, to which it writes up to two seconds late where the disk is slow."""
    store.kill()
    store.start()
    yield
    with redis.Redis.from_url(store.url) as client:
        wait_until(lambda: not client.info("persistence")["aof_buffer_length"], "its append-only file")
    store.kill()
    store.start()


@contextlib.contextmanager
def full(store: Engine):
    with redis.Redis.from_url(store.url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


FAULTS = {"hung": hanging, "refused": refused, "full": full, "killed": killed}


def has_failed(worker, times: int) -> bool:
    return worker.text().count("raised unexpected") == times


def is_reported(store: Engine, expected: set[tuple[str, int]]) -> bool:
    return reported_attempts(store) >= expected


def reported_attempts(store: Engine) -> set[tuple[str, int]]:
    return {(one.job_id, one.attempt) for one in reports(store) if one.kind != "success"}


@pytest.mark.parametrize("rung", ["capture", "observe", "enforce"])
def test_through_every_fault_of_the_store_each_failure_is_reported_on_each_rung(start, own_store, rung):
    attempts = {"capture": 1, "observe": 1, "enforce": 2}[rung]
    published(own_store.url, policy("twice", max_attempts=2))
    worker = start(own_store.url, environment={"REDRIVE_MODE": rung, "REAL_PATIENCE": ""})
    if rung == "enforce":
        worker.wait(lambda: (worker.spool / "policies.json").exists(), what="the policy")
    expected, failed = set(), 0
    for name, fault in FAULTS.items():
        with fault(own_store):
            plain = [worker.send("fail", f"{name}-{n}") for n in range(8)]
            tried = [worker.send("try") for _ in range(2)]
            failed += 8 + 2
            worker.wait(partial(has_failed, worker, failed), 60, f"{failed} failures ({name})")
        expected |= {(job, 1) for job in plain}
        expected |= {(job, attempt + 1) for job in tried for attempt in range(attempts)}
        if name == "full":  # what it took as a policy's retry is through, and the next fault begins well
            worker.wait(partial(is_reported, own_store, set(expected)), 60, "what was kept back")
    worker.wait(lambda: reported_attempts(own_store) == expected, 60, "every attempt")
    worker.wait(lambda: not spooled_bytes(worker), what="an empty spool")


def set_switch(store: Engine, word: str | None) -> None:
    with redis.Redis.from_url(store.url) as client:
        client.set(keys.switch(), word) if word else client.delete(keys.switch())


def test_off_leaves_what_was_captured_before_and_on_goes_on(start, own_store):
    worker = start(own_store.url)
    own_store.stop()
    before = [worker.send("fail", f"before-{n}") for n in range(5)]
    worker.wait(lambda: worker.text().count("raised unexpected") == 5, what="five failures")
    worker.wait(lambda: spooled_bytes(worker), what="the spool")
    own_store.start()
    set_switch(own_store, "off")
    worker.wait(lambda: "was switched off" in worker.text(), what="the switch")
    worker.wait(lambda: not spooled_bytes(worker), what="what was captured before")
    unseen = worker.send("fail", "meanwhile")
    worker.wait(lambda: f"{unseen}] raised" in worker.text(), what="a failure that nobody records")
    set_switch(own_store, None)
    worker.wait(lambda: "was switched on" in worker.text(), what="the switch")
    after = worker.send("fail", "after")
    worker.wait(
        lambda: {job for job, _ in reported_attempts(own_store)} == {*before, after}, what="those before and after"
    )


def test_a_store_that_comes_back_empty_is_obeyed_and_filled_again(start, own_store):
    worker = start(own_store.url)
    set_switch(own_store, "off")
    worker.wait(lambda: "was switched off" in worker.text(), what="the switch")
    own_store.stop()
    for left in own_store.folder.iterdir():  # its disk was lost
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    unseen = worker.send("fail", "nobody can be asked: it stays off")
    worker.wait(lambda: f"{unseen}] raised" in worker.text(), what="a failure that nobody records")
    own_store.start()
    worker.wait(lambda: "was switched on" in worker.text(), what="a switch that nobody has set")
    seen = worker.send("fail", "recorded")
    worker.wait(lambda: reported_attempts(own_store) == {(seen, 1)}, what="its failure")
    set_switch(own_store, "off")
    worker.wait(lambda: worker.text().count("was switched off") == 2, what="the switch again")


@pytest.mark.parametrize("late_ack", [False, True])
def test_where_one_redis_is_broker_and_store_its_kill_loses_no_failure(start, own_store, late_ack):
    worker = start("broker", broker_url=own_store.url, late_ack=late_ack, environment={"REAL_VISIBILITY": "5"})
    jobs = [worker.send("fail", f"before-{n}") for n in range(5)]
    with redis.Redis.from_url(own_store.url) as client:
        worker.wait(lambda: len(reported_attempts(own_store)) == 5 and not client.hlen("unacked"), what="five failures")
    own_store.kill()
    worker.wait(lambda: "Connection to broker lost" in worker.text(), what="the loss")
    own_store.start()
    jobs += [worker.send("fail", f"after-{n}") for n in range(5)]
    worker.wait(lambda: {job for job, _ in reported_attempts(own_store)} == set(jobs), what="ten failures")


@pytest.mark.long("Starts two workers, one of them in an outage of the store.")
def test_a_worker_that_is_stopped_in_an_outage_leaves_its_spool_to_the_next(start, own_store):
    worker = start(own_store.url, environment={"REAL_PATIENCE": ""})
    with hanging(own_store):
        jobs = [worker.send("fail", f"n{n}") for n in range(5)]
        worker.wait(lambda: worker.text().count("raised unexpected") == 5, what="five failures")
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.process.wait(60)
        worker.kill()
    worker.start()
    worker.wait(lambda: {job for job, _ in reported_attempts(own_store)} == set(jobs), what="all five")
