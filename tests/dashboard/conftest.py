"""People of the desk, and something that broke."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.web import figures
from dashboard.web.middleware import identity
from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.desk import overview
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Group, Role, Source, Traceback
from tests.conftest import forget_configuration

HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Who asks, and the overview, are remembered for the whole test: a stall has nothing be asked a second time."""
    monkeypatch.setattr(identity, "REMEMBERED_S", 3600)
    monkeypatch.setattr(overview, "BOARD_HELD_S", 3600)


def clock_of(at, to: str = "minutes") -> str:
    """A time as pages say it: minutes ago may have been another day."""
    return re.sub(r"<[^>]+>", "", figures.clock(at, to))


def log_in(django_user_model, name: str, **roles: str) -> Client:
    """A browser in which `name` is logged in; `roles`: source (`every` for all) -> role."""
    user = django_user_model.objects.create_user(name, password="correct horse battery")
    for source, role in roles.items():
        Role.objects.create(user=user, source="*" if source == "every" else source, role=role)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ann(db, django_user_model):
    """Admin of every source."""
    return log_in(django_user_model, "ann", every="admin")


@pytest.fixture
def otto(db, django_user_model):
    """Operator of the shop."""
    return log_in(django_user_model, "otto", shop="operator")


@pytest.fixture
def vera(db, django_user_model):
    """Viewer of the shop."""
    return log_in(django_user_model, "vera", shop="viewer")


@pytest.fixture
def nobody(db, django_user_model):
    """Logged in, without any role."""
    return log_in(django_user_model, "nobody")


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


def group(error_type: str = "TimeoutError", message: str = "no answer", **changes) -> Group:
    now = timezone.now()
    value = "v1-" + hashlib.sha256(f"{error_type}{message}".encode()).hexdigest()[:24]
    held = {"fingerprint": value, "error_type": error_type, "message": message, "first_seen": now, "last_seen": now}
    return Group.objects.create(**held | changes)


def bury(n: int = 1, *, trace: str = "", **changes) -> list[Failure]:
    """`n` dead jobs of the shop's webhooks, or as `changes` say."""
    now = timezone.now() - timedelta(seconds=5)
    values = {"source": "shop", "queue": "webhooks", "task": "shop.deliver", "state": "dead", "kind": "exception"}
    values |= {"error_type": "TimeoutError", "message": "no answer"}
    values |= {"first_failed_at": now, "failed_at": now, "received_at": now} | changes
    if trace:
        digest = hashlib.sha256(trace.encode()).hexdigest()
        values["traceback"] = Traceback.objects.get_or_create(sha256=digest, defaults={"text": trace})[0]
    Source.objects.get_or_create(name=values["source"], defaults={"is_configured": True, "is_reachable": True})
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    made = Failure.objects.bulk_create(Failure(**values, first_job_id=i, job_id=i) for i in ids)
    indexing.index(made)
    return made
