"""A worker that ends says its last words, and lets go of its spool whether the store hears them or not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker import heartbeat as module
from jobs_admin.worker.at_start import AtStart
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.configuration import ConfigurationReport
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.heartbeat import Heartbeat, Identity, known_tasks
from jobs_admin.worker.report import Origin
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server

ENTRY = {b"v": b"1", b"raw": b"x"}


def test_the_memory_of_a_worker_is_that_of_its_processes():
    """Known only where there is a /proc."""
    alone = module.resident_memory()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            wait_until(lambda: module.resident_memory() > alone + 2**20, "the child's memory to be counted")
        finally:
            child.communicate()
    assert 2**20 < alone < 2**40


def heartbeat_on(url: str, folder) -> Heartbeat:
    guard = Guard(Origin("shop", "", ()), Store(url, "shop", Spool(folder)))
    identity = Identity(
        "w@here", "", "5.7", "0.1", "prefork", "redis", 1, lambda: ["emails"], frozenset({False}), known_tasks(["a"]),
        lambda: ConfigurationReport("", ""), boot="boot",
    )  # fmt: skip
    return Heartbeat(guard, identity, AtStart(Calls(url, "a test"), "shop", "boot", "w@here", "here"))


def waiting(folder) -> int:
    """The entries that another worker finds there and takes."""
    found: list = []
    Spool(folder).drain(found.extend)
    return len(found)


@pytest.fixture
def hung():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_a_store_that_hangs_keeps_no_worker_from_letting_go_of_its_spool(hung, tmp_path):
    heartbeat = heartbeat_on(hung, tmp_path)
    heartbeat.guard.store.write(ENTRY)  # there is no line yet
    heartbeat.start()
    assert waiting(tmp_path) == 0
    heartbeat.stop()
    assert heartbeat._thread.is_alive()  # it hangs in a call still
    assert waiting(tmp_path) == 1
    wait_until(lambda: not heartbeat._thread.is_alive())


def test_a_store_that_answers_hears_the_last_words(own_store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FAREWELL_SECONDS", 60)  # however slowly it answers
    heartbeat = heartbeat_on(own_store.url, tmp_path)
    heartbeat.start()
    heartbeat.guard.store.spool.append(ENTRY)
    heartbeat.guard.counts.ended("emails", "failed", None)
    heartbeat.stop()
    with redis.Redis.from_url(own_store.url) as client:
        (last_beat,) = map(json.loads, client.hgetall(keys.workers("shop")).values())
        assert client.xlen(keys.failures("shop")) == 1
    assert (last_beat["counts"]["emails"]["failed"], last_beat["spooled"]) == (1, 0)
    assert waiting(tmp_path) == 0


def test_what_would_take_too_long_to_ship_is_left_to_the_next(own_store, tmp_path):
    store = Store(own_store.url, "shop", Spool(tmp_path))
    store.spool.append(ENTRY)
    assert store.drain(lambda: True) == 0
    store.close()
    assert waiting(tmp_path) == 1


def test_a_spool_that_is_closed_while_it_is_shipped_loses_nothing(tmp_path):
    """The store hung in the second batch, and took it after all, when the worker had let go."""
    spool = Spool(tmp_path)
    for _ in range(3):
        spool.append(ENTRY)
    at_second, goes_on, shipped, ended = threading.Event(), threading.Event(), [], []

    def ship(batch):
        if len(shipped) == 1:
            at_second.set()
            goes_on.wait(30)
        shipped.extend(batch)

    def drain():
        try:
            spool.drain(ship, batch_bytes=1)
        except OSError as error:
            ended.append(error)

    draining = threading.Thread(target=drain)
    draining.start()
    assert at_second.wait(30)
    spool.close()
    with (tmp_path / "other").open("w+"):  # takes the number that the closed file had
        goes_on.set()
        draining.join(30)
    assert len(shipped) == 2
    assert ended
    assert waiting(tmp_path) == 3
