"""A desk to be searched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobs_admin import failures
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Group
from jobs_admin.models.access import ENGINE, Viewer

NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)
SHOP_ONLY = Viewer("ann", {"shop": "operator", "bank": "viewer"})


def make_group(name="a", error_type="KeyError", message="<str>", **more):
    values = {"first_seen": NOW - timedelta(hours=5), "last_seen": NOW, "count": 1}
    return Group.objects.create(fingerprint=f"v1-{name}", error_type=error_type, message=message, **(values | more))


def bury(n=1, **changes):
    values = {
        "source": "shop",
        "queue": "emails",
        "task": "mail.send",
        "state": "dead",
        "kind": "exception",
        "error_type": "KeyError",
        "message": "'foo'",
        "first_failed_at": NOW,
        "failed_at": NOW,
        "received_at": NOW,
        "args": '["secret"]',
        "headers": "{}",
    }
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    made = Failure.objects.bulk_create(Failure(**(values | changes), first_job_id=i, job_id=i) for i in ids)
    indexing.index(made)
    return made


def find_keys(text="", viewer=ENGINE, **more):
    return [f.pk for f in failures.search(viewer, text, now=NOW, **more).rows]
