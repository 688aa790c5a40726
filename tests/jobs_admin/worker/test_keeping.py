"""The ledger of the jobs that run, without a worker around it: its order, its bounds, what it forgets and what it does not."""

from __future__ import annotations

import copy
import json
import os
import time

import pytest
from celery.worker.request import Request

from jobs_admin.core import keys
from jobs_admin.core.stream import weight
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.ledger import _END, MOST_BYTES, MOST_RAW
from jobs_admin.worker.report import RAW_HEAD, Origin
from jobs_admin.worker.request import guarded
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import LEDGER_STORED_DAYS, Store
from tests.kit.ledger import fetched, ledger, list_stored, reap
from tests.kit.patience import patient
from tests.kit.streams import of_job

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def keeper(engine, store, tmp_path):
    return ledger(engine.url, tmp_path)


def test_a_job_is_stored_before_celery_acknowledges_its_message(keeper, store, tmp_path):
    """Else a worker that dies between the two leaves it to no one."""
    guard = Guard(Origin("shop", "", ()), Store("redis://127.0.0.1:1/0", "shop", Spool(tmp_path / "spool", 10**6)))
    guard.ledger = keeper
    seen = []
    request = fetched(guarded(Request, guard), acked=lambda: seen.append(list_stored(store)))
    request.on_accepted(os.getpid(), time.monotonic())
    assert seen == [[f"{request.id}:1"]] and request.acknowledged and not guard.broken


class Between(Calls):
    """A connection that may lose answers on their way back, and on which something happens while the ledger is swept."""

    loses = False
    then = None

    def run(self, script, keys, args):
        act, self.then = (self.then, None) if script is _END else (None, self.then)
        if act:
            act()
        answer = super().run(script, keys, args)
        return None if self.loses else answer


def test_what_ends_while_the_ledger_is_swept_is_swept_as_well(engine, store, tmp_path):
    calls = patient(engine.url, Between)
    keeper = ledger(engine.url, tmp_path, calls)
    first, second = fetched(), fetched()
    calls.loses = True
    keeper.begins(first), keeper.begins(second)
    calls.loses = False
    assert len(list_stored(store)) == 2 == keeper.unkept  # the store has them, and the worker does not know
    keeper.ended(first)
    calls.then = lambda: keeper.ended(second)
    keeper.settle()
    assert list_stored(store) == [f"{second.id}:1"]
    keeper.settle()
    assert list_stored(store) == []


def test_a_sweep_that_the_store_did_not_hear_is_tried_again(engine, store, tmp_path):
    calls = patient(engine.url, Between)
    keeper = ledger(engine.url, tmp_path, calls)
    job = fetched()
    calls.loses = True
    keeper.begins(job), keeper.ended(job), keeper.settle()
    assert list_stored(store) == [f"{job.id}:1"]
    calls.loses = False
    keeper.settle()
    assert list_stored(store) == []


def test_two_copies_of_a_job_in_one_worker_are_counted_and_released_as_the_one_that_is_stored(keeper, store):
    for n in range(3):
        first = fetched(text="x" * (MOST_RAW // 2))
        again = copy.copy(first)  # the same message, delivered twice
        keeper.begins(first), keeper.begins(again)
        assert list_stored(store) == [f"{first.id}:1"], n
        (text,) = store.hvals(keys.kept("shop", "b1"))
        assert 0 <= len(text) - keeper.open_bytes < 20, n  # beside the moment at which it began
        keeper.ended(first), keeper.ended(again), keeper.settle()
        assert (list_stored(store), keeper.open_bytes) == ([], 0), n


def test_of_a_message_that_is_too_long_the_head_is_stored_and_the_job_is_reported(keeper, engine, store):
    request = fetched(text="x" * MOST_RAW)
    keeper.begins(request)
    reap(store)
    (only,) = of_job(engine, request.id)
    assert (only.kind, only.is_raw_complete, len(only.raw)) == ("lost", False, RAW_HEAD)
    assert only.raw_size > MOST_RAW and keeper.unkept == 0


def test_a_worker_keeps_so_many_bytes_and_no_more_and_others_run_without(keeper, store):
    jobs = [fetched(text="x" * (MOST_RAW // 2)) for _ in range(3 * MOST_BYTES // MOST_RAW)]
    for job in jobs:
        keeper.begins(job)
    size = sum(store.hstrlen(keys.kept("shop", "b1"), name) for name in store.hkeys(keys.kept("shop", "b1")))
    assert MOST_BYTES * 0.9 < size <= MOST_BYTES * 1.01
    assert 0 < keeper.unkept == len(jobs) - len(list_stored(store)) < len(jobs)
    before = keeper.unkept
    for job in jobs:
        keeper.ended(job)
    keeper.settle()
    assert list_stored(store) == []
    again = fetched()
    keeper.begins(again)
    assert list_stored(store) == [f"{again.id}:1"] and keeper.unkept == before
    assert 0 < store.pttl(keys.kept("shop", "b1")) <= LEDGER_STORED_DAYS * 86_400_000
    assert 0 < store.pttl(keys.kept_boots("shop")) <= LEDGER_STORED_DAYS * 86_400_000


def test_what_is_filed_is_counted_in_what_the_stream_holds(keeper, store):
    keeper.begins(fetched())
    reap(store)
    ((_, fields),) = store.xrange(keys.failures("shop"))
    assert int(store.get(keys.failures_bytes("shop"))) == weight(fields)


def test_what_the_stream_has_no_room_for_stays_stored_by_the_bound_of_the_worker_that_stored_it(
    engine, store, tmp_path
):
    keeper = ledger(engine.url, tmp_path, stream_bytes=20_000)
    jobs = [fetched(text="x" * 2_000) for _ in range(5)]
    for job in jobs:
        keeper.begins(job)
    store.xadd(keys.failures("shop"), {b"v": b"1"})
    store.set(keys.failures_bytes("shop"), 20_000)
    reap(store)
    assert len(list_stored(store)) == 5 and of_job_ids(store) == {None}
    store.set(keys.failures_bytes("shop"), 100)
    reap(store, watches=2)
    assert 0 < len(list_stored(store)) < 5 and int(store.get(keys.failures_bytes("shop"))) <= 20_000
    while list_stored(store):  # what is filed makes room, and a stream that is empty takes anything
        store.delete(keys.failures("shop"))
        before = len(list_stored(store))
        reap(store)
        assert len(list_stored(store)) < before
    assert store.pttl(keys.boot("shop", "b1")) > 0 and not store.smembers(keys.kept_boots("shop"))


def of_job_ids(store) -> set[str | None]:
    metas = [fields.get(b"meta") for _, fields in store.xrange(keys.failures("shop"))]
    return {json.loads(meta)["job_id"] if meta else None for meta in metas}
