"""Real workers report what they have, and lint finds each planted mistake and invents none."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from jobs_admin.core import keys
from jobs_admin.core.lint.rules.exponential_backoff import PASS
from jobs_admin.fleet import heartbeats
from jobs_admin.lint import linting
from jobs_admin.models import QueueCounter
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.celery import RealWorker
from tests.kit.planted import PLANTED

pytestmark = [pytest.mark.server, pytest.mark.django_db]


class PlantedWorker(RealWorker):
    """A worker of one of the apps in tests/kit/planted.py."""

    def __init__(self, name: str, queues: str, broker_url: str, store_url: str) -> None:
        super().__init__(broker_url, store_url, pool="solo", queues=queues, environment={"PLANTED_BROKER": broker_url})
        self._command[self._command.index("tests.kit.celery:app")] = f"tests.kit.planted:{name}"


@pytest.fixture
def fleet(engine, store):
    """The shop and the tidy app, each with a worker that has reported what it has."""
    url = engine.url.removesuffix("/0") + "/3"
    running = [
        PlantedWorker("shop", "work,bulk", url, engine.url),
        PlantedWorker("tidy", "tidy", url, engine.url),
    ]
    try:
        for worker in running:
            worker.start()
        running[0].wait(lambda: len(_digests(store)) == 2, 60, "both configurations")
        yield running
    finally:
        for worker in running:
            worker.kill()


def _digests(store) -> set[str]:
    heartbeats = [text for source in ("shop", "tidy") for text in store.hvals(keys.workers(source))]
    return {json.loads(text)["configuration"] for text in heartbeats} - {""}


def test_each_planted_mistake_of_a_live_app_is_found_and_the_tidy_app_has_none(fleet):
    now = datetime.now(UTC)
    heartbeats.count_heartbeats(now)  # as `watch` does: now they live
    # The one mistake that needs to be seen: 150 jobs a minute on its queue.
    QueueCounter.objects.create(source="shop", queue="bulk", step=900, at=now, started=15 * 150)
    report = linting.report(ENGINE, now)
    assert linting.reservations(report) == []
    assert linting.coverage(report) == "20 tasks of 2 live workers"
    found: dict[str, set[str]] = {}
    for one in report.findings:
        found.setdefault(f"{one.where.source}:{one.where.task}", set()).add(one.id)
    # Both apps are on one Redis database, the shop with five minutes, the other with the default of an hour.
    across = {f"{source}:": {"visibility-timeouts-differ"} for source in ("shop", "tidy")}
    assert found == across | {f"shop:{task}": ids for task, ids in PLANTED.items()}
    tidy = linting.report(Viewer("ann", {"tidy": "viewer"}), now)
    assert (tidy.findings, tidy.check.passes, tidy.check.count(PASS)) == ((), True, 3)
