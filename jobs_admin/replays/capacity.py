"""Capacity of the workers of some queues: runtime of jobs, concurrency, and limits set by policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from statistics import median

from django.db.models import Sum

from jobs_admin.core import matching, pacing
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.refused import Refused
from jobs_admin.models import Attempt, PolicyVersion, QueueCounter, Worker
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.source import ALIVE_S
from jobs_admin.search import scope as scopes

_SAMPLED_JOBS = 1_000  # jobs whose attempts' durations are read


def runtime_s(viewer: Viewer, queues: Sequence[str], jobs: Sequence[int], now: datetime) -> float | None:
    """Return the seconds that a job takes; None if no duration is known.

    This is the mean over jobs that ended in these queues in the last hour, or else the median over attempts of `jobs`.
    """
    hour = QueueCounter.objects.filter(
        scopes.visible(viewer), step=MINUTE, queue__in=list(queues), at__gte=now - timedelta(hours=1), at__lte=now
    )
    totals = hour.aggregate(busy=Sum("busy_s"), started=Sum("started"))
    if totals["busy"] and totals["started"]:
        return totals["busy"] / totals["started"]
    attempts = Attempt.objects.filter(failure__in=list(jobs[:_SAMPLED_JOBS]), duration_s__isnull=False)
    took = list(attempts.values_list("duration_s", flat=True))
    return median(took) if took else None


def concurrency(sources: Sequence[str], queues: Iterable[str], now: datetime) -> int | None:
    """Return the concurrency of the live workers that consume one of these queues; None if none reported it."""
    wanted = set(queues)
    alive = Worker.objects.filter(source__in=sources, seen_at__gte=now - timedelta(seconds=ALIVE_S))
    running = [n or 0 for theirs, n in alive.values_list("queues", "concurrency") if not wanted.isdisjoint(theirs)]
    return sum(running) or None


def limits(
    tasks: Sequence[tuple[str, int]],
    sources: Sequence[str],
    queues: Sequence[str],
    tenants: int | None,
    runtime_s: float | None,
) -> list[pacing.Limit]:
    """Return the limits, in starts per second, that enforced policies set on these tasks (name, number of jobs).

    `tenants`: number of tenants among the jobs; None if too many to count. A limit per value of any other key does not
    limit the total.
    """
    enforced = []
    for row in PolicyVersion.objects.filter(is_published=True, mode=ENFORCE):
        with suppress(Refused):  # a policy written by a newer version: workers do not follow it either
            enforced.append(row.policy)
    keys = {"task": 1, "queue": len(queues), "tenant": tenants}
    total = sum(count for _, count in tasks)
    found = []
    for task, count in tasks:
        bounds = []
        for source in sources:
            for queue in queues:
                chosen = matching.chosen(enforced, source, queue, task)
                per_s = _per_s(chosen, keys, 1.0 if runtime_s is None else runtime_s) if chosen else None
                bounds.append((per_s, chosen.name if chosen else ""))
        if bounds and all(per_s is not None for per_s, _ in bounds):
            per_s, name = max((per_s or 0.0, name) for per_s, name in bounds)
            found.append(pacing.Limit(task, per_s, count / total, name))
    return found


def _per_s(chosen: Policy, keys: dict[str, int | None], runtime_s: float) -> float | None:
    """Return the jobs per second that a policy lets start; None if it sets no limit."""
    bounds = []
    if chosen.rate_limit:
        bounds.append(chosen.rate_limit.max / chosen.rate_limit.per_s)
    if chosen.concurrency and (values := keys.get(chosen.concurrency.key)):
        bounds.append(values * chosen.concurrency.limit / max(runtime_s, 1e-3))
    return min(bounds, default=None)
