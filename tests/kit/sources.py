"""The store and the sources of a desk."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys


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
    settings.REDRIVE_SOURCES = str(file)
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
    settings.REDRIVE_SOURCES = str(path)
    config.sources.cache_clear()


def forget_configuration(config) -> None:
    from jobs_admin import trust
    from jobs_admin.desk import overview
    from jobs_admin.fleet import worker_store

    overview.forget()
    trust.forget()
    worker_store.forget()
    for answer in (config.sources, config.store, config.payload_keys, config.adapter):
        answer.cache_clear()
