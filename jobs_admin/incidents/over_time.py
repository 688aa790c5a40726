"""Chart data of an incident: attempts that failed and that succeeded after a failure, and dead jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Sum

from jobs_admin.db.counters import step_start
from jobs_admin.incidents.spans import Loudness, Span, outages
from jobs_admin.models import QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK, QUARTER, QUARTERS_BACK
from jobs_admin.queues import depths
from jobs_admin.queues.rates import CALM_MIN, FAILED

MOST_POINTS = 720
_LEADING = timedelta(hours=6)  # preceding period that defines the usual failure rate


class Point(NamedTuple):
    at: datetime  # start of the step
    failed: int  # attempts
    recovered: int  # succeeded attempts of jobs that had failed
    dead: int | None  # maximum in the step; None: unknown


@dataclass(frozen=True, slots=True)
class OverTime:
    step_s: int
    points: list[Point]
    first_at: datetime | None  # the step in which it exceeded the usual; None: never
    calm_at: datetime | None  # when it no longer did; None: never exceeded, or still exceeds
    back_at: datetime | None  # when there were no more dead jobs than before; None: not yet, or unknown
    dead_before: int | None
    dead_most: int | None


def over_time(viewer: Viewer, where: Span, now: datetime) -> OverTime:
    step = _step(where, now)
    first = step_start(where.since, step)
    counted = QueueCounter.objects.filter(source=where.source, step=step, at__gte=first, at__lte=where.until)
    if where.queue:
        counted = counted.filter(queue=where.queue)
    sums = counted.order_by().values_list("at").annotate(failed=Sum(FAILED), back=Sum("recovered"))
    by_step = {at: (int(failed), int(back)) for at, failed, back in sums}
    dead_step, dead = _dead(viewer, where, now)
    points = []
    for n in range(int((where.until - first).total_seconds() // step) + 1):
        at = first + timedelta(seconds=n * step)
        points.append(Point(at, *by_step.get(at, (0, 0)), _most(dead, at, step)))
    leading = max(_LEADING, where.until - where.since)
    loud = Loudness.read(where.source, where.queue, where.since - leading, where.until, now)
    within = [(begin, end) for begin, end in outages(loud) if end > where.since]
    first_at = max(within[0][0], where.since) if within else None
    calm = within[-1][1] if within else None
    is_calm = calm is not None and where.until - calm >= timedelta(minutes=CALM_MIN)
    before, most, back_at = _depth(dead, first_at - timedelta(seconds=dead_step) if first_at else None)
    return OverTime(step, points, first_at, calm if is_calm else None, back_at, before, most)


def _step(where: Span, now: datetime) -> int:
    """Return the shortest step that is still stored and yields at most MOST_POINTS."""
    span_s = (where.until - where.since).total_seconds()
    if where.since >= now - MINUTES_BACK and span_s <= MOST_POINTS * MINUTE:
        return MINUTE
    return QUARTER if where.since >= now - QUARTERS_BACK and span_s <= MOST_POINTS * QUARTER else HOUR


def _dead(viewer: Viewer, where: Span, now: datetime) -> tuple[int, list[tuple[datetime, int]]]:
    """Return the length of a step, and the dead jobs at the end of each. Of one queue only: no sample covers several at
    one moment.
    """
    if not where.queue:
        return MINUTE, []
    history = depths.history(viewer, where.source, where.queue, where.since, where.until, now=now)
    zone = where.since.tzinfo
    return history.step_s, [(datetime.fromtimestamp(p.at, zone), p.dead) for p in history.points if p.dead is not None]


def _most(dead: list[tuple[datetime, int]], at: datetime, step: int) -> int | None:
    """Return the maximum in the step; without a sample in it, the last one at most a minute before."""
    end = bisect_left(dead, at + timedelta(seconds=step), key=lambda one: one[0])
    begin = bisect_left(dead, at, key=lambda one: one[0])
    if begin < end:
        return max(n for _, n in dead[begin:end])
    is_young = begin > 0 and dead[begin - 1][0] >= at - timedelta(minutes=1)
    return dead[begin - 1][1] if is_young else None


def _depth(
    dead: list[tuple[datetime, int]], quiet_until: datetime | None
) -> tuple[int | None, int | None, datetime | None]:
    """Return the dead jobs before, the most, and when there were permanently no more than before.

    `quiet_until`: the last step that can have ended before it became loud. Earlier deaths have another cause.
    """
    if not dead:
        return None, None, None
    first = 0 if quiet_until is None else max(0, bisect_right(dead, quiet_until, key=lambda one: one[0]) - 1)
    before, most = dead[first][1], max(n for _, n in dead[first:])
    above = [n for n, (_, count) in enumerate(dead) if n > first and count > before]
    last = above[-1] if above else len(dead)
    return before, most, dead[last + 1][0] if last + 1 < len(dead) else None
