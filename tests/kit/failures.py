"""Dead jobs in the tables of the desk."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.utils import timezone

from jobs_admin import config
from jobs_admin.db.turns import lock_writers
from jobs_admin.desk import retention
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Payload, Source, Traceback
from jobs_admin.models.failure import Caveat

ARGS, KWARGS = [42, "EUR"], {"customer": {"id": 7, "name": "Ann"}, "token": "[redacted]"}


def dead(n: int = 1, *, is_complete: bool = True, **changes) -> list[int]:
    """`n` dead jobs with their messages; the ids, oldest first."""
    shown = {"args": json.dumps(ARGS), "kwargs": json.dumps(KWARGS), "redacted": 1}
    bury(n, **shown | {"caveats": None if is_complete else Caveat.TRUNCATED} | changes)
    ids = sorted(Failure.objects.order_by("-pk").values_list("pk", flat=True)[:n])
    raw = json.dumps({"args": ARGS, "kwargs": KWARGS | {"token": "s3cret"}}).encode()
    body, digest = config.payload_keys().encrypt(raw), hashlib.sha256(raw).hexdigest()
    Payload.objects.bulk_create(
        Payload(failure_id=pk, run=1, body=body, size=len(raw), sha256=digest, is_whole=is_complete) for pk in ids
    )
    return ids


def forget(ids) -> None:
    """Delete these failures as `prune` does."""
    with transaction.atomic():
        lock_writers()
        retention.forget(list(ids))


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


STARTED_AT = datetime.now(UTC)


def dead_emails(n=1, *, payload=True, **changes):
    """`n` dead jobs of the shop's e-mails, with a message that is stored but where `payload` is false."""
    values = {"source": "shop", "queue": "emails", "task": "t", "state": "dead", "kind": "exception"}
    values |= {
        "caveats": None if payload else Caveat.NO_MESSAGE,
        "error_type": "KeyError",
        "message": "'foo'",
        "first_failed_at": STARTED_AT,
        "failed_at": STARTED_AT,
        "received_at": STARTED_AT,
    }
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    made = Failure.objects.bulk_create(Failure(**(values | changes), first_job_id=i, job_id=i) for i in ids)
    if payload:
        body = config.payload_keys().encrypt(b"x")
        Payload.objects.bulk_create(Payload(failure=f, run=1, body=body, size=1, sha256="0") for f in made)
    return made
