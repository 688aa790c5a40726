"""A desk that follows a stock Celery app: its source `shop`, its workers, and what was read."""

from __future__ import annotations

import json

import pytest

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.coverage import parse
from jobs_admin.models import Attempt, Failure, Source, Unfiled
from jobs_admin.retries import pulling, rechecking
from tests.kit.sources import forget_configuration
from tests.kit.stock import StockWorker
from tests.kit.waiting import wait_until


@pytest.fixture
def follow(store, settings, tmp_path, monkeypatch):
    """A function that configures the source `shop` at a broker, without a guard."""
    monkeypatch.setattr(rechecking, "_rested", {})
    monkeypatch.setattr(rechecking, "_places", {})

    def configure(url, **options):
        file = tmp_path / "sources.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
        file.write_text(
            "\n".join(['[sources.shop]\nbackend = "celery"', f"url = {json.dumps(url)}", "guard = false", *lines])
        )
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        pull()
        return config.adapter("shop")

    yield configure
    if "shop" in config.sources():
        config.adapter("shop").close()
    forget_configuration(config)


@pytest.fixture
def stock(tmp_path):
    """A function that starts a stock worker; all are stopped."""
    started = []

    def start(broker, **how):
        started.append(StockWorker(broker, tmp_path, **how).start())
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


def pull(puller="one"):
    return pulling.pull("shop", puller)


def pull_until(reached, what):
    def pull_and_check():
        pull()
        return reached()

    return wait_until(
        pull_and_check,
        what,
        every_s=0.2,
        within_s=90,
        text=lambda: (
            Failure.objects.values_list("task", "kind", "state", "attempts"),
            coverage(),
            Source.objects.values("why_not_pulled"),
            Unfiled.objects.values(),
        ),
    )


def pull_heartbeat():
    """Read until a worker is known: what it runs from then on is compared with its events."""
    pull_until(lambda: coverage().workers, "a heartbeat")


def coverage():
    return parse(config.store().get(keys.coverage("shop")))


def attempts():
    rows = Attempt.objects.exclude(kind="success").values_list("job_id", "attempt", "kind")
    return sorted(rows)


def ended(worker, *ends):
    kinds = {"failed": "exception", "retried": "retry"}
    return sorted((job, attempt, kinds[end]) for job, _, attempt, end in worker.lines() if end in ends)


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request, engine, store):
    if request.param == "redis":
        return engine.url.removesuffix("/0") + "/3"
    return request.getfixturevalue("rabbit_node").url
