"""Breakers while their store is full, or away as jobs end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import redis

from jobs_admin import worker
from jobs_admin.core import keys
from jobs_admin.core.breaker import OPEN, Breaker
from jobs_admin.worker import breaker_mode
from jobs_admin.worker.breakers import Breakers
from jobs_admin.worker.delays import Delays
from jobs_admin.worker.policies import Policies
from jobs_admin.worker.report import Origin
from tests.kit.breakers import opened, stored
from tests.kit.breakers import store as put
from tests.kit.network import Road
from tests.kit.partner import Partner
from tests.kit.pausing import Shop, unique
from tests.kit.policies import obeyed, policy, published
from tests.kit.streams import reports

pytestmark = pytest.mark.server


def test_a_breaker_is_written_to_a_redis_that_is_full(own_store):
    with redis.Redis.from_url(own_store.url) as store:
        swap = store.register_script((Path(worker.__file__).parent / "breaker.lua").read_text())
        name = keys.breakers("shop")
        assert swap(keys=[name], args=["partner", 0, "1 {}", 100]) == 1
        store.config_set("maxmemory", store.info("memory")["used_memory"])
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            store.hset(name, "other", "1 {}")
        assert swap(keys=[name], args=["partner", 1, "2 {}", 100]) == 1
        assert store.hget(name, "partner") == b"2 {}"


def test_a_worker_that_only_observes_leaves_the_breaker_of_one_that_enforces(own_store, tmp_path, monkeypatch):
    published(own_store.url, policy("calls", "call*", breaker={"dependency": "partner"}))
    with redis.Redis.from_url(own_store.url) as store:
        store.delete(keys.breakers("shop"))

        def member(mode: str) -> Breakers:
            policies = Policies("shop", mode, tmp_path / mode)
            policies.poll(store, store.get(keys.policies_version()))
            delays = Delays(store, "shop")
            origin = Origin("shop", "", ())
            return Breakers(origin, policies.in_force(), delays, store, lambda: None, lambda: policies.are_read)

        observing, enforcing = member("observe"), member("enforce")
        enforcing._round()
        put(store, opened(at=time.time()))
        for one in (enforcing, observing, enforcing, observing):
            one._round()
        assert stored(store).state == OPEN and not stored(store).observe
        assert enforcing.is_holding
        monkeypatch.setattr(breaker_mode, "ENFORCED_FOR_S", 0.0)  # it was away for so long
        monkeypatch.setattr(breaker_mode, "READ_EVERY_S", 0.0)
        older = {"mode": "enforce", "breakers": ["partner"], "at": time.time()}  # it enforces, and does not write so
        store.hset(keys.workers("shop"), "celery@older", json.dumps(older))
        before = stored(store).history
        for _ in range(3):
            observing._round()
        assert not stored(store).observe and stored(store).history == before
        store.hset(keys.workers("shop"), "celery@older", json.dumps(older | {"at": time.time() - 60}))
        observing._round()
        assert stored(store).observe and not observing.is_holding
        enforcing._round()
        assert not stored(store).observe


def test_a_job_that_was_acknowledged_early_and_cannot_be_put_aside_is_reported_when_its_worker_ends(
    node, start, own_store
):
    road, partner, queue = Road(node.url), Partner(), unique("calls")
    try:
        shop = Shop(start, own_store, road)
        shop.work(queues=queue, late_ack=False, concurrency=1, prefetch=1)
        guarded = policy("calls", "call*", breaker={"dependency": "partner"})
        own = {name: one for name, one in guarded.items() if name not in ("max_attempts", "backoff")}
        obeyed(shop.worker, shop.store_url, own | {"retries": False})
        partner.is_down, partner.delay_s = True, 6.0
        shop.worker.send("call", partner.place, 1, "", queue=queue)
        shop.settle(lambda: partner.requests, "the job to run")
        breaker = Breaker.parse("partner", shop.store.hget(keys.breakers("shop"), "partner"))
        breaker.force(OPEN, time.time())
        shop.store.hset(keys.breakers("shop"), "partner", breaker.render())
        time.sleep(2.5)  # the worker reads it each second
        os.kill(own_store.process.pid, signal.SIGSTOP)
        time.sleep(6)  # it failed, and could not be put aside
        shop.worker.stop()
        os.kill(own_store.process.pid, signal.SIGCONT)
        shop.work(queues=unique("others"), late_ack=False)  # ships what the one before could not report

        def is_known() -> bool:
            return shop.due() + sum(one.kind == "exception" for one in reports(own_store)) == 1

        shop.settle(is_known, "the job to wait, or to be reported")
    finally:
        os.kill(own_store.process.pid, signal.SIGCONT)
        partner.stop()
        road.close()
