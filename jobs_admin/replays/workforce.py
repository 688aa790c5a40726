"""What the workers of some queues do: how long such jobs take them, and how many they run at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median

from django.db.models import Sum

from jobs_admin import scope as scopes
from jobs_admin.models import Attempt, QueueCounter, Worker
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.source import ALIVE_S

_LOOKED_AT = 1_000  # jobs whose attempts are asked how long they took


def runtime_s(viewer: Viewer, queues: Sequence[str], jobs: Sequence[int], now: datetime) -> float | None:
    """Seconds that a job took: the mean of what ended in these queues in the last hour; where nothing did, the median of
    the attempts of these jobs themselves. None where nobody told."""
    hour = QueueCounter.objects.filter(
        scopes.visible(viewer), step=MINUTE, queue__in=list(queues), at__gte=now - timedelta(hours=1), at__lte=now
    )
    told = hour.aggregate(busy=Sum("busy_s"), started=Sum("started"))
    if told["busy"] and told["started"]:
        return told["busy"] / told["started"]
    attempts = Attempt.objects.filter(failure__in=list(jobs[:_LOOKED_AT]), duration_s__isnull=False)
    took = list(attempts.values_list("duration_s", flat=True))
    return median(took) if took else None


def concurrency(sources: Sequence[str], queues: Iterable[str], now: datetime) -> int | None:
    """How many jobs the live workers that consume one of these queues run at once; None where nobody told."""
    wanted = set(queues)
    alive = Worker.objects.filter(source__in=sources, seen_at__gte=now - timedelta(seconds=ALIVE_S))
    told = [n or 0 for theirs, n in alive.values_list("queues", "concurrency") if not wanted.isdisjoint(theirs)]
    return sum(told) or None
