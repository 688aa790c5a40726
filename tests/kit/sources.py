"""The store and the sources of a desk."""

from __future__ import annotations

import json

import pytest
import redis
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from tests.kit.celery import RealWorker


@pytest.fixture
def watched(store):
    """The store, in which every step of watch ended a round just now."""
    for step in ("ingest", "sample"):
        store.hset(keys.steps(), step, json.dumps({"at": timezone.now().timestamp()}))
    return store


@pytest.fixture
def shop(settings, tmp_path, db):
    """The source `shop`, in this process: what is sent to it goes nowhere else."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield config.adapter("shop")
    forget_configuration(config)


@pytest.fixture
def sources(store, settings, tmp_path):
    """Two sources that can be replayed to, as far as the tables know."""
    path = tmp_path / "sources.toml"
    path.write_text(
        "".join(f'[sources.{n}]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\n' for n in ("shop", "bank"))
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(path)}
    config.sources.cache_clear()


def forget_configuration(config) -> None:
    from jobs_admin import trust
    from jobs_admin.desk import overview
    from jobs_admin.fleet import worker_store

    overview.forget()
    trust.forget()
    worker_store.restart_search()
    for answer in (config.sources, config.store, config.payload_keys, config.adapter):
        answer.cache_clear()


@pytest.fixture
def shop_and_web(settings, tmp_path):
    """The source `shop`, in this process; `web` is a second one."""
    file = tmp_path / "sources.toml"
    file.write_text(
        '[sources.shop]\nbackend = "memory"\nurl = "memory:"\n[sources.web]\nbackend = "memory"\nurl = "memory:"\n'
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield config.adapter("shop")
    forget_configuration(config)


@pytest.fixture
def demo_worker(store, engine, settings):
    """A guarded worker of the source `shop`; its broker is another database of the engine than the store."""
    broker = engine.url.removesuffix("/0") + "/1"
    redis.Redis.from_url(broker).flushdb()
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": broker}
    forget_configuration(config)
    running = RealWorker(broker, engine.url).start()
    yield running
    running.stop()
