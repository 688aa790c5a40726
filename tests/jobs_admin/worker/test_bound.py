"""The stream holds no more than it may, however many workers write to it and however large their reports are."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from jobs_admin import ingest
from jobs_admin.core import keys
from jobs_admin.core.envelope import encode
from jobs_admin.core.stream import weight
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store, with_report
from tests.kit.reports import report

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("patience")]

MB = 1024**2


def entry(size: int) -> dict[bytes, bytes]:
    return {b"v": b"1", b"meta": b"m" * 500, b"raw": b"r" * size}


@pytest.fixture
def client(own_store):
    with redis.Redis.from_url(own_store.url) as found:
        yield found


@pytest.fixture
def make(own_store, tmp_path):
    made = []

    def make_one(stream_bytes: int, spool_bytes: int = 100 * MB) -> Store:
        store = Store(own_store.url, "shop", Spool(tmp_path / f"spool-{len(made)}", spool_bytes), stream_bytes)
        store.dial()
        made.append(store)
        return store

    yield make_one
    for one in made:
        one.close()


def read_stream_bytes(client) -> int:
    return client.memory_usage(keys.failures("shop"), samples=0) or 0


def test_forty_workers_together_keep_within_the_bound(make, client):
    stores = [make(4 * MB) for _ in range(40)]
    random.seed(7)
    small = [entry(random.randrange(1_000)) for _ in range(20)]
    large = [entry(random.randrange(50_000)) for _ in range(20)]  # after the small ones, which a sample would look at

    def flood(store: Store) -> None:
        for one in (*small, *large):
            store.write(one)

    with ThreadPoolExecutor(40) as threads:
        list(threads.map(flood, stores))
    assert 3.5 * MB < read_stream_bytes(client) < 4.2 * MB
    waiting = sum(store.spool.waiting for store in stores)
    assert (client.xlen(keys.failures("shop")) + waiting, waiting > 0) == (40 * 40, True)


def test_spools_that_are_shipped_together_keep_within_the_bound_too(make, client):
    stores = [make(2 * MB) for _ in range(12)]
    for store in stores:
        for _ in range(200):
            store.spool.append(entry(3_000))
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(Store.drain, stores))
    assert 1.6 * MB < read_stream_bytes(client) < 2.1 * MB
    assert client.xlen(keys.failures("shop")) + sum(store.spool.waiting for store in stores) == 12 * 200


def test_a_report_that_is_larger_than_the_bound_holds_up_no_one(make, client):
    store = make(1 * MB)
    store.spool.append(entry(2 * MB))
    store.spool.append(entry(10))
    assert store.drain() == 0  # the first is through, and there is no room for the second
    client.xtrim(keys.failures("shop"), maxlen=0)  # as ingest does
    store.measure()
    assert store.drain() == 1
    assert not store.spool.waiting


def test_a_stream_that_no_one_counted_is_measured(make, client):
    for _ in range(100):
        client.xadd(keys.failures("shop"), entry(20_000))
    store = make(1 * MB)
    store.write(entry(10))
    assert store.is_full
    assert (client.xlen(keys.failures("shop")), store.spool.waiting) == (100, 1)


NO_COUNTS = ["abc", "", "nan", "inf", "-inf", "1e300", "-5", "0x10", "1.5", "9" * 40]


@pytest.mark.parametrize("count", NO_COUNTS)
def test_a_count_that_is_no_number_means_that_no_one_counted(make, client, count):
    store = make(1 * MB)
    store.write(entry(10))
    client.set(keys.failures_bytes("shop"), count)
    store.measure()
    store.spool.append(entry(10))
    store.drain()
    client.set(keys.failures_bytes("shop"), count)
    for _ in range(100):
        store.write(entry(20_000))
    assert (
        store.is_full
        and read_stream_bytes(client) < 1.2 * MB
        and int(client.get(keys.failures_bytes("shop"))) > 0.8 * MB
    )
    assert client.xlen(keys.failures("shop")) + store.spool.waiting == 102 > store.spool.waiting > 0
    client.set(keys.failures_bytes("shop"), count)
    store.measure()
    assert not store.is_full  # as far as is known: the next report finds out
    client.set(keys.failures_bytes("shop"), count)
    run = client.register_script(with_report("report(KEYS[1], KEYS[2], { 'raw', 'x' }) return 1"))
    assert run(keys=[keys.failures("shop"), keys.failures_bytes("shop")]) == 1


def test_a_script_that_the_store_forgot_is_sent_again(make, client):
    store = make(1 * MB)
    client.script_flush()
    store.write(entry(10))
    assert (client.xlen(keys.failures("shop")), store.spool.waiting) == (1, 0)


@pytest.mark.django_db
def test_what_is_filed_makes_room(store, engine, tmp_path):
    """`store` is the desk's own; the counting of ingest and of workers must agree."""
    entries = [encode(report(job_id=f"j{n}", message="x" * (10 * n))) for n in range(30)]
    worker = Store(engine.url, "shop", Spool(tmp_path / "spool"), MB)
    worker.dial()
    for one in entries:
        worker.write(one)
    assert int(store.get(keys.failures_bytes("shop"))) == sum(map(weight, entries))
    while store.xlen(keys.failures("shop")):
        ingest.step("here")
    assert int(store.get(keys.failures_bytes("shop"))) == 0
    worker.write(entries[0])
    store.set(keys.failures_bytes("shop"), "abc")
    ingest.step("here")
    assert not store.xlen(keys.failures("shop")) and not store.get(keys.failures_bytes("shop"))
    worker.close()
