"""Celery's own delayed retries, whose worker dies for good: lost only where no one has them any more."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from jobs_admin import config, ingest, replays
from jobs_admin.models import Failure, Payload
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.queues import sampling
from jobs_admin.retries import awaiting
from tests.kit.ledger import elements, file_all
from tests.kit.sources import forget_configuration
from tests.kit.streams import reports

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

ANN = Viewer("ann", {"*": OPERATOR})
VISIBILITY_S = 7200  # of the workers; the desk is told by them alone


@pytest.fixture
def desk(engine, store, settings, broker):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": broker.url.removesuffix("/0") + "/1"}
    forget_configuration(config)
    awaiting._timeouts_s.clear()
    yield store
    awaiting._timeouts_s.clear()


def state_at(now):
    sampling.sample(now)
    ingest.reconcile(now, awaiting.delays(now))
    return Failure.objects.get().state


def test_a_delayed_retry_is_lost_when_the_broker_has_it_no_more_and_not_before(start, engine, desk):
    worker = start(engine.url, later=True, environment={"REAL_VISIBILITY": str(VISIBILITY_S)})
    job = worker.send("flaky", 1, 3600)
    sent = elements(worker)[job]
    worker.start()
    with redis.Redis.from_url(worker.broker_url) as of_broker:
        # Not the first attempt, which may be there still while the retry lies in its queue.
        worker.wait(
            lambda: reports(engine) and [b'"retries": 1' in one for one in of_broker.hvals("unacked")] == [True],
            what="the retry, in its worker's hands",
        )
        worker.wait(lambda: desk.keys("redrive:{shop}:configuration:*"), what="its settings to be told")
        worker.kill()
        file_all()
        due = Failure.objects.get().due_at
        assert state_at(due - timedelta(seconds=1)) == "retrying"  # an hour ahead
        latest = due + timedelta(seconds=VISIBILITY_S + 60)
        # Dead hands: the broker gives it again to whoever asks.
        assert state_at(latest + timedelta(seconds=20)) == "retrying"
        of_broker.delete("unacked", "unacked_index")
    assert state_at(latest - timedelta(seconds=10)) == "retrying"
    assert state_at(latest + timedelta(seconds=40)) == "dead"
    lost = Failure.objects.get()
    assert (lost.kind, lost.attempts, lost.reason) == (
        "lost",
        2,
        "The retry did not report within 7260 s of its due time",
    )
    assert config.payload_keys().decrypt(bytes(Payload.objects.get().body)) == sent
    assert replays.draft(
        ANN, query="kind:lost", reason="its worker is gone"
    ).pk  # refused where nothing can be replayed
