"""A desk with one source in memory, and failures to replay."""

from __future__ import annotations

import hashlib
import json

import pytest
import redis
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import Attempt, Failure, Payload
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.failure import Caveat
from jobs_admin.replays import sending
from tests.kit.celery import RealWorker
from tests.kit.sources import forget_configuration

ANN = Viewer("ann", {"*": OPERATOR})
BOB = Viewer("bob", {"shop": OPERATOR})
EVE = Viewer("eve", {"*": VIEWER})


@pytest.fixture
def shop(settings, tmp_path):
    """The source `shop`, in this process; `web` is a second one."""
    file = tmp_path / "sources.toml"
    file.write_text(
        '[sources.shop]\nbackend = "memory"\nurl = "memory:"\n[sources.web]\nbackend = "memory"\nurl = "memory:"\n'
    )
    settings.REDRIVE_SOURCES = str(file)
    forget_configuration(config)
    yield config.adapter("shop")
    forget_configuration(config)


@pytest.fixture
def worker(store, engine, settings):
    """A guarded worker of the source `shop`; its broker is another database of the engine than the store."""
    broker = engine.url.removesuffix("/0") + "/1"
    redis.Redis.from_url(broker).flushdb()
    settings.REDRIVE_DEMO_BROKER_URL = broker
    forget_configuration(config)
    running = RealWorker(broker, engine.url).start()
    yield running
    running.stop()


@pytest.fixture
def bury():
    return buried


def buried(n=1, *, raw=None, whole=True, payload=True, **changes):
    """`n` dead failures with their messages; the ids, oldest first."""
    now = timezone.now()
    values = {
        "source": "shop", "queue": "emails", "task": "shop.send", "state": "dead", "kind": "exception",
        "error_type": "TimeoutError", "message": "too slow", "args": "[1]", "kwargs": '{"to": "ann"}',
        "first_failed_at": now, "failed_at": now, "received_at": now,
        "caveats": (Caveat.NO_MESSAGE if not payload else Caveat.TRUNCATED if not whole else None),
    } | changes  # fmt: skip
    start = Failure.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    made = Failure.objects.bulk_create(
        Failure(**values | {"first_job_id": f"j{start + i}", "job_id": f"j{start + i}"}) for i in range(n)
    )
    ids = sorted(f.pk for f in Failure.objects.filter(pk__gt=start))
    assert len(ids) == len(made)
    raw = raw or json.dumps({"args": [1], "kwargs": {"to": "ann"}}).encode()
    if payload:
        body = config.payload_keys().encrypt(raw)
        digest = hashlib.sha256(raw).hexdigest()
        Payload.objects.bulk_create(
            Payload(failure_id=pk, run=1, body=body, size=len(raw), sha256=digest, is_whole=whole) for pk in ids
        )
    return ids


def came_home(item, kind, attempt=1, **changes):
    """What ingest writes when a report of a sent job arrives."""
    now = timezone.now()
    state = {"success": "recovered", "retry": "retrying"}.get(kind, "dead")
    values = {"error_type": "TimeoutError", "message": "again", "group": None} | changes
    Attempt.objects.create(
        failure_id=item.failure_id, run=item.run, attempt=attempt, kind=kind, job_id=item.job_id, item=item,
        ended_at=now, received_at=now, **values,
    )  # fmt: skip
    Failure.objects.filter(pk=item.failure_id).update(run=item.run, state=state, job_id=item.job_id)


@pytest.fixture(autouse=True)
def new_senders():
    """Each test begins without what a sender of this process remembers of another test's replays."""
    yield
    for sender in sending._senders.values():
        sender.close()
    sending._senders.clear()
