"""Current rates of failed attempts: one window and one way of counting, so that all screens agree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce

from jobs_admin.models import Failure, FailureCount, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import FailureState
from jobs_admin.search import scope as scopes


def count_unrecovered(source: str | None = None) -> dict[tuple[str, str], int]:
    """Return (source, queue) -> jobs, of one source or of all."""
    mine = "AND source = %s" if source is not None else ""
    given = [] if source is None else [source]
    # One statement gives a consistent snapshot: separate reads would miss a job that moves in between.
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT source, queue, SUM(n) FROM (
                SELECT source, queue, count AS n FROM {FailureCount._meta.db_table} WHERE state IN (%s, %s) {mine}
                UNION ALL
                -- Between two attempts of a replay: run 1 has not died yet.
                SELECT source, queue, 1 AS n FROM {Failure._meta.db_table} WHERE state = %s AND run > 1 {mine}
            ) AS one GROUP BY source, queue
            """,
            [FailureState.DEAD, FailureState.REPLAYING, *given, FailureState.RETRYING, *given],
        )
        return {(source_, queue): int(n) for source_, queue, n in cursor.fetchall() if n}


OVER_MIN = 5
BEFORE_MIN = 10  # the preceding minutes, with which the rate is compared
WINDOW = f"the last {OVER_MIN} minutes"  # wording of all screens
LOUD_PER_MIN = 1.0  # failed attempts of a queue or a group that are reported as trouble
ENDED_AFTER = timedelta(minutes=1)  # without a failure, or three times the usual gap between two
FAILED = F("failed") + F("retried")
LONGEST_OUTAGE = timedelta(hours=24)  # limit for the start of an outage
STILL = 4  # it continues while a minute has a fourth of the present failures
CALM_MIN = 5  # it ends after this many consecutive minutes below that


@dataclass(frozen=True, slots=True)
class Rate:
    """Attempts of one queue per minute."""

    source: str
    queue: str
    failed: float
    succeeded: float
    before: float  # failed, in the minutes before
    last: int  # failed attempts in the last complete minute
    running: int  # in the current minute

    @property
    def is_over(self) -> bool:
        """Return whether the failures of the window have ended within it."""
        return max(self.last, self.running) < max(1.0, self.failed / STILL)


def failing_since(rate: Rate, now: datetime) -> datetime | None:
    """Return when this queue began to fail at about the present rate: a full minute, at most LONGEST_OUTAGE ago.

    None if it started within the minutes with which the rate is compared anyway. Reads only this queue's minutes.
    """
    counted = QueueCounter.objects.filter(
        source=rate.source, queue=rate.queue, step=MINUTE, at__gte=now - LONGEST_OUTAGE, at__lte=now
    )
    least, first = max(1.0, rate.failed / STILL), window_start(now)
    loud = counted.annotate(n=FAILED).filter(n__gte=least)
    for at in loud.order_by("-at").values_list("at", flat=True):
        if first - at > timedelta(minutes=CALM_MIN + 1):
            break
        first = min(first, at)
    return first if first < window_start(now) - timedelta(minutes=BEFORE_MIN) else None


def is_failing(last_failed_at: datetime, per_minute: float | None, now: datetime) -> bool:
    """Return whether failures continue, relative to their frequency.

    At one failure per second, a minute without any is the end. `per_minute`: failed attempts in the window, which
    includes failures that have ended; None if unknown.
    """
    gap = now - last_failed_at
    if not per_minute:
        return per_minute is None and gap <= ENDED_AFTER
    return gap <= max(ENDED_AFTER, 3 * timedelta(minutes=1) / per_minute)


def window_start(now: datetime) -> datetime:
    """Return the start of a rate's window: a full minute, because counters have that resolution."""
    return (now - timedelta(minutes=OVER_MIN)).replace(second=0, microsecond=0)


def window_minutes(now: datetime) -> float:
    """Return the present length of the window, in minutes."""
    return (now - window_start(now)).total_seconds() / 60


def failed_per_minute(viewer: Viewer, now: datetime) -> float:
    """Return the failed attempts per minute of all visible queues, which is the sum of the rates of their groups."""
    counted = QueueCounter.objects.filter(scopes.visible(viewer), step=MINUTE, at__gte=window_start(now), at__lte=now)
    return (counted.aggregate(n=Sum(FAILED))["n"] or 0) / window_minutes(now)


def queue_rates(viewer: Viewer, now: datetime, these: Q | None = None, *, most: int | None = None) -> list[Rate]:
    """Return the rates of queues in which an attempt ended in the window or before it, highest failure rate first."""
    split = window_start(now)
    minute = now.replace(second=0, microsecond=0)
    counted = QueueCounter.objects.filter(
        scopes.visible(viewer),
        these or Q(),
        step=MINUTE,
        at__gte=split - timedelta(minutes=BEFORE_MIN),
        at__lte=now,
    )
    lately = Q(at__gte=split)
    rows = counted.values_list("source", "queue").annotate(
        lately=Coalesce(Sum(FAILED, filter=lately), 0),
        ran=Coalesce(Sum("succeeded", filter=lately), 0),
        earlier=Coalesce(Sum(FAILED, filter=Q(at__lt=split)), 0),
        last=Coalesce(Sum(FAILED, filter=Q(at=minute - timedelta(minutes=1))), 0),
        running=Coalesce(Sum(FAILED, filter=Q(at=minute)), 0),
    )
    over = window_minutes(now)
    return [
        Rate(source, queue, failed / over, ran / over, earlier / BEFORE_MIN, last, running)
        for source, queue, failed, ran, earlier, last, running in rows.order_by("-lately", "source", "queue")[:most]
    ]
