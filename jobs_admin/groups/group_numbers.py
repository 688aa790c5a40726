"""Counts of groups, for the sources that a viewer sees: jobs by state, attempts over time. No failure is read.

Attempts are counted per group, not per source: they are omitted for a group that also has failures of hidden sources
(`partial`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import connection
from django.db.models import F, Sum

from jobs_admin.db.counters import StepNumber
from jobs_admin.models import FailureCount, Group, GroupCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE
from jobs_admin.queues import rates
from jobs_admin.rights import group_sight

# Every page runs these statements. Raw SQL, because building them in Django takes longer than running them.
COUNTS = FailureCount._meta.db_table


class Counted(NamedTuple):
    group_id: int
    source: str
    queue: str
    task: str
    state: str
    count: int


def counters(viewer: Viewer, pks: list[int]) -> list[Counted]:
    """Return the counters of these groups, of the sources that the viewer sees."""
    sources = viewer.sources()
    if not pks or sources == []:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(Counted._fields)} FROM {COUNTS} "
            f"WHERE group_id IN ({marks(pks)}) AND count > 0 {of_sources(sources)}",
            [*pks, *(sources or ())],
        )
        return list(map(Counted._make, cursor.fetchall()))


def all_dead(viewer: Viewer) -> int:
    sources = viewer.sources()
    if sources == []:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT SUM(count) FROM {COUNTS} WHERE state = 'dead' {of_sources(sources)}", sources or ())
        return int(cursor.fetchone()[0] or 0)


def totals(counters: Iterable[Counted], name: str) -> dict[str, int]:
    place, found = Counted._fields.index(name), dict[str, int]()
    for counter in counters:
        value = counter[place]
        found[value] = found.get(value, 0) + counter[-1]
    return found


def ranked(totals: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))


def over_time(pks: list[int], now: datetime) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Return, for each group, failed attempts per minute now, and in each of the last 24 hours, oldest first.

    Now is the last full minutes and the current one; the last hour is the current one.
    """
    per_minute, trends = dict.fromkeys(pks, 0.0), {pk: [0] * 24 for pk in pks}
    if not pks:
        return per_minute, trends
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=23)
    # Computed in the database: reading a thousand times of a page's groups takes longer than the rest of the page.
    epoch = (
        "CAST(strftime('%%s', at) AS INTEGER)" if connection.vendor == "sqlite" else "EXTRACT(EPOCH FROM at)::bigint"
    )
    hour = f"({epoch} - {int(first.timestamp())}) / 3600"
    those = f"FROM {GroupCounter._meta.db_table} WHERE group_id IN ({marks(pks)}) AND step = %s AND at >= %s"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT group_id, -1, SUM(failed + retried) {those} GROUP BY group_id "
            f"UNION ALL SELECT group_id, {hour}, failed + retried {those}",
            [*pks, MINUTE, _stored(rates.window_start(now)), *pks, HOUR, _stored(first)],
        )
        minutes = rates.window_minutes(now)
        for pk, place, n in cursor.fetchall():
            if place < 0:
                per_minute[pk] = int(n) / minutes
            elif place < 24:
                trends[pk][place] += n
    return per_minute, trends


def per_minute(pks: list[int], now: datetime) -> dict[int, float]:
    """Return, for each group, failed attempts per minute now: the last full minutes and the current one."""
    rows = (
        _count_attempts(pks, MINUTE, rates.window_start(now))
        .values_list("group")
        .annotate(n=Sum(F("failed") + F("retried")))
    )
    minutes = rates.window_minutes(now)
    return dict.fromkeys(pks, 0.0) | {pk: n / minutes for pk, n in rows}


def _stored(at: datetime) -> object:
    """Return a time in the database's format, for SQL that Django does not convert."""
    return connection.ops.adapt_datetimefield_value(at) if connection.vendor == "sqlite" else at


def days(viewer: Viewer, found: Group, *, now: datetime | None = None, days: int = 30) -> list[int]:
    """Return the failed attempts in each of the last days (UTC), oldest first; the last is the current day."""
    now = now or datetime.now(UTC)
    if group_sight.is_partial(viewer, found):
        return []
    first = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days - 1)
    counted = [0] * days
    rows = _count_attempts([found.pk], HOUR, first).annotate(day=StepNumber("at", 86400)).values_list("day")
    for day, n in rows.annotate(n=Sum(F("failed") + F("retried"))):
        place = day - int(first.timestamp()) // 86400
        if 0 <= place < days:
            counted[place] += n
    return counted


def _count_attempts(pks: list[int], step: int, since: datetime):
    return GroupCounter.objects.filter(group_id__in=pks, step=step, at__gte=since)


def of_sources(sources: Sequence[str] | None) -> str:
    """Return the condition for rows of these sources, which are its parameters; for all if it is None."""
    return "" if sources is None else f"AND source IN ({marks(sources)})"


def marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
