"""Failures, counters and steps by which the overview is made."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from jobs_admin.core import keys
from jobs_admin.db import counters
from jobs_admin.models import Failure

NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


def tick(store, at, *names):
    for name in names or ("ingest", "sample"):
        store.hset(keys.steps(), name, json.dumps({"at": at.timestamp()}))


def count(failed, minutes_ago, queue="webhooks", source="shop", **more):
    at = (NOW - timedelta(minutes=minutes_ago)).replace(second=0)
    counters.add_queue_counts({(source, queue, at): {"failed": failed, **more}})


def bury(n=1, **changes):
    values = {"source": "shop", "queue": "webhooks", "task": "t", "state": "dead", "kind": "exception"}
    values |= {"first_failed_at": NOW, "failed_at": NOW, "received_at": NOW} | changes
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    return Failure.objects.bulk_create(Failure(**values, first_job_id=i, job_id=i) for i in ids)
