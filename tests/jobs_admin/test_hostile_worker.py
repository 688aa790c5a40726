"""A worker with the store user of its own source alone changes nothing of another's. `bench/hostile_worker.py` writes more."""

from __future__ import annotations

import itertools
import random

import pytest
import redis

from jobs_admin import config, ingest
from jobs_admin.core import keys, worker_acl
from jobs_admin.models import Failure
from tests.kit.sources import forget_configuration
from tests.rigs.hostile_worker import EVIL, SHOP, Victim, connect, differences, failed, forgeries, make_user, write

pytestmark = [pytest.mark.server, pytest.mark.django_db]

WRITES = 150


@pytest.fixture
def victim(store, engine, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "_reading", ingest._Reading())
    url = engine.url.removesuffix("/0")
    file = tmp_path / "sources.toml"
    file.write_text(
        "".join(f'[sources.{name}]\nbackend = "celery"\nurl = "{url}/{n}"\n' for n, name in enumerate((SHOP, EVIL), 1))
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    make_user(store)
    with redis.Redis.from_url(f"{url}/1") as broker:
        yield Victim(store, broker)
    store.acl_deluser(worker_acl.user_of(EVIL))
    forget_configuration(config)


def forge(victim, url, seed: int, count: int, *only: str) -> int:
    """Do as many writes with evil's store user, and let the desk read all. Return how many the store refused."""
    rng, refused = random.Random(seed), 0
    with connect(url) as evil:
        for _, write_one in itertools.islice(forgeries(rng, victim, *only), count):
            try:
                write_one(evil)
            except redis.RedisError:
                refused += 1
    victim.desk_reads_all()
    victim.desk_reads_all()
    return refused


@pytest.mark.parametrize("seed", [1])
def test_no_write_of_a_worker_of_one_source_changes_anything_of_another(victim, engine, monkeypatch, seed):
    monkeypatch.setattr(ingest.log, "disabled", True)
    before = victim.snapshot()
    assert len(before["rows of Failure"]) == 40 and len(before["rows of ReplayItem"]) == 20
    assert WRITES / 5 < forge(victim, engine.url, seed, WRITES) < WRITES
    assert differences(before, victim.snapshot()) == []


def test_the_same_writes_under_every_key_of_the_store_change_rows_and_keys_of_the_other(
    victim, engine, store, monkeypatch
):
    """Else the test above would compare nothing that these writes can change."""
    monkeypatch.setattr(ingest.log, "disabled", True)
    before = victim.snapshot()
    make_user(store, "allkeys")
    forge(victim, engine.url, 1, WRITES)
    changed = differences(before, victim.snapshot())
    assert {"rows of Failure", "rows of Attempt", "rows of GroupSource"} <= set(changed)
    assert {f"store {key}" for key in (keys.due(SHOP), keys.budget(SHOP))} <= set(changed)
    # Some that they reach, such as policies, the desk itself writes again.
    assert sum(key.startswith(f"store redrive:{{{SHOP}}}:") for key in changed) >= 8


def test_a_flood_of_one_source_evicts_and_delays_no_report_of_another(victim, engine, store):
    with connect(engine.url) as evil:
        write(evil, EVIL, *(failed(n, EVIL) for n in range(2_000)))
    write(store, SHOP, *(failed(n) for n in range(1000, 1020)))
    for _ in range(3):
        ingest.step("here", wait_s=0.01)
    assert Failure.objects.filter(source=SHOP).count() == 60
    assert store.xlen(keys.failures(EVIL)) > 500
