"""Changes of policies, as marks in a chart, because the number of failures may change with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Q

from jobs_admin.core.matching import matches
from jobs_admin.models import FailureCount, PolicyVersion
from jobs_admin.models.access import Viewer

MOST = 20
_TASKS = 200
_MOST_CHANGES = 500  # including those of hidden sources, which are omitted


@dataclass(frozen=True, slots=True)
class PolicyMark:
    at: datetime
    version: str  # `webhooks@7`
    mode: str  # observe, enforce; "" if it was withdrawn


def policy_marks(
    viewer: Viewer, since: datetime, until: datetime, *, source: str = "", queue: str = ""
) -> list[PolicyMark]:
    """Return the latest MOST changes of policies that may decide about the viewer's sources, oldest first.

    With `source` and `queue`, only those that match them and a task of which jobs failed there.
    """
    within = Q(published_at__gte=since, published_at__lte=until)
    ended = Q(ended_at__gte=since, ended_at__lte=until)
    columns = ("name", "version", "mode", "published_at", "ended_at")
    read = ("match_source", "match_queue", "match_task", *columns)
    found = PolicyVersion.objects.filter(within | ended).order_by(F("published_at").desc(), "-pk")
    tasks = _tasks(source, queue) if queue else []
    rows = [
        row
        for match_source, match_queue, match_task, *row in found.values_list(*read)[:_MOST_CHANGES]
        if viewer.sees_any_of(match_source)
        and (not source or matches(match_source, source))
        and (not queue or matches(match_queue, queue))
        and (not tasks or any(matches(match_task, task) for task in tasks))
    ]
    # A version ends at the moment at which the next one starts.
    begun = {(name, published) for name, _, _, published, _ in rows}
    marks = [PolicyMark(at, f"{name}@{n}", mode) for name, n, mode, at, _ in rows if since <= at <= until]
    marks += [
        PolicyMark(at, f"{name}@{n}", "")
        for name, n, _, _, at in rows
        if at is not None and since <= at <= until and (name, at) not in begun
    ]
    return sorted(marks, key=lambda mark: (mark.at, mark.version))[-MOST:]


def _tasks(source: str, queue: str) -> list[str]:
    """Return the tasks of which jobs failed on this queue; none if they are too many to read, or unknown."""
    counts = FailureCount.objects.filter(source=source, queue=queue).values_list("task", flat=True).distinct()
    tasks = list(counts.order_by()[: _TASKS + 1])
    return tasks if len(tasks) <= _TASKS else []
