"""Failures, and what the desk counts of them."""

from __future__ import annotations

from django.db.models import Count
from django.utils import timezone

from jobs_admin.models import Failure, FailureCount


def bury(n, **changes):
    now = timezone.now()
    values = {
        "source": "shop",
        "queue": "emails",
        "task": "send",
        "state": "dead",
        "kind": "exception",
        "run": 1,
        "attempts": 1,
        "first_failed_at": now,
        "failed_at": now,
        "received_at": now,
    }
    start = Failure.objects.count()
    return Failure.objects.bulk_create(
        Failure(**{**values, **changes, "first_job_id": f"j{start + i}", "job_id": f"j{start + i}"}) for i in range(n)
    )


def recount():
    rows = Failure.objects.values_list("source", "queue", "task", "group_id", "state").annotate(Count("id"))
    return {(s, q, t, g or 0, st): n for s, q, t, g, st, n in rows}


def list_counts():
    rows = FailureCount.objects.exclude(count=0).values_list("source", "queue", "task", "group_id", "state", "count")
    return {row[:-1]: row[-1] for row in rows}
