"""Open failures by queue, tenant or release, with the most frequent groups of each.

Queues are counted completely, from counters. Tenants and releases have no counters and are counted over the latest
SAMPLE open failures, because the cost of a complete count would be proportional to their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Case, F, IntegerField, Min, Sum, When

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.db.counters import StepNumber
from jobs_admin.models import Failure, FailureCount, Group, QueueCounter, Release
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

FIELDS = ("queue", "tenant", "release")
SAMPLE = 1_000
MOST = 50  # rows


@dataclass(slots=True)
class OpenRow:
    value: str  # a queue, tenant or release; empty for jobs without one
    open: int = 0  # jobs; of a sample, those in it
    dead: int = 0
    groups: int = 0
    worst: Group | None = None  # the group with the most open jobs
    worst_open: int = 0
    last_seen: datetime | None = None  # in the sample; None: unknown
    first_heard: datetime | None = None  # first report of a release
    trend: list[int] = field(default_factory=list)  # of a queue: failed attempts in each of the last 24 hours


@dataclass(frozen=True, slots=True)
class OpenBy:
    rows: list[OpenRow]
    others: int  # values beyond MOST
    open: int  # jobs that were counted
    counted_over: int | None  # None: all


def open_by(viewer: Viewer, name: str, *, now: datetime | None = None) -> OpenBy:
    """Return the queues or tenants with the most open failures, or the latest releases. `name`: one of FIELDS."""
    now = now or datetime.now(UTC)
    if name not in FIELDS:
        raise ValueError(f"{name} is none of {FIELDS}")
    return _queues(viewer, now) if name == "queue" else _count_latest(viewer, name)


# -- queues -----------------------------------------------------------------------------------------------------


def _queues(viewer: Viewer, now: datetime) -> OpenBy:
    counters = FailureCount.objects.filter(scopes.visible(viewer), state__in=language.DEFAULT_STATES, count__gt=0)
    dead = Case(When(state="dead", then=F("count")), default=0, output_field=IntegerField())
    per_group = counters.order_by().values("queue", "group_id").annotate(open=Sum("count"), dead=Sum(dead))
    try:
        sql, values = per_group.query.sql_with_params()
    except EmptyResultSet:  # the viewer has no role
        return OpenBy([], 0, 0, None)
    # Ranked by the database: anyone who can publish can create thousands of queues.
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH part AS ({sql}), placed AS (SELECT queue, group_id, open, dead, ROW_NUMBER() OVER "
            "(PARTITION BY queue ORDER BY open DESC, group_id) AS place FROM part) "
            "SELECT queue, SUM(open), SUM(dead), SUM(CASE WHEN group_id > 0 THEN 1 ELSE 0 END), "
            "MAX(CASE WHEN place = 1 THEN group_id END), MAX(CASE WHEN place = 1 THEN open END), "
            "COUNT(*) OVER (), SUM(SUM(open)) OVER () "
            f"FROM placed GROUP BY queue ORDER BY 3 DESC, 2 DESC, 1 LIMIT {MOST}",
            values,
        )
        found = cursor.fetchall()
    rows = [
        OpenRow(queue, int(n), int(dead), int(groups), worst_open=int(most))
        for queue, n, dead, groups, _, most, *_ in found
    ]
    _name_worst(viewer, rows, [row[4] for row in found])
    trends = _trends(viewer, [row.value for row in rows], now)
    for row in rows:
        row.trend = trends[row.value]
    of, total = (int(found[0][6]), int(found[0][7])) if found else (0, 0)
    return OpenBy(rows, of - len(rows), total, None)


def _trends(viewer: Viewer, queues: list[str], now: datetime) -> dict[str, list[int]]:
    """Return the failed attempts in each of the last 24 hours, oldest first; the last is the current hour."""
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=23)
    trends = {queue: [0] * 24 for queue in queues}
    counted = QueueCounter.objects.filter(scopes.visible(viewer), queue__in=queues, step=HOUR, at__gte=first)
    by_hour = counted.annotate(hour=StepNumber("at", HOUR)).values_list("queue", "hour")
    for queue, hour, n in by_hour.annotate(n=Sum(F("failed") + F("retried"))):
        place = hour - int(first.timestamp()) // 3600
        if 0 <= place < 24:
            trends[queue][place] += n
    return trends


# -- tenants and releases ---------------------------------------------------------------------------------------


def _count_latest(viewer: Viewer, name: str) -> OpenBy:
    latest = failures.latest_ids(viewer, language.parse(""), None, SAMPLE + 1)
    sampled = latest[:SAMPLE]
    rows: dict[str, OpenRow] = {}
    worst: dict[str, int] = {}
    last_seen: dict[str, object] = {}
    for value, group, n, of_dead, last in _spread(name, sampled):
        row = rows.setdefault(value, OpenRow(value))
        row.open += n
        row.dead += of_dead
        last_seen[value] = max(last, last_seen.get(value, last))
        if group is not None:
            row.groups += 1
            if n > row.worst_open:
                row.worst_open, worst[value] = n, group
    ranked = _latest_first(viewer, rows) if name == "release" else sorted(rows.values(), key=_fullest)
    shown = ranked[:MOST]
    for row in shown:
        row.last_seen = _read(last_seen[row.value])
    _name_worst(viewer, shown, [worst.get(row.value) for row in shown])
    is_all = len(latest) <= SAMPLE
    return OpenBy(shown, len(ranked) - len(shown), len(sampled), None if is_all else SAMPLE)


def _spread(name: str, ids: list[int]) -> list[tuple[Any, ...]]:
    """Return (value, group, jobs, dead jobs, the latest) of these failures; the latest in the database's format."""
    if not ids:
        return []
    # Inlined: binding a thousand parameters costs more than the query.
    among = ", ".join(str(int(pk)) for pk in ids)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {name}, group_id, COUNT(*), SUM(CASE WHEN state = 'dead' THEN 1 ELSE 0 END), MAX(failed_at) "
            f"FROM {Failure._meta.db_table} WHERE id IN ({among}) GROUP BY {name}, group_id"
        )
        return cursor.fetchall()


def _read(at: Any) -> datetime:
    return datetime.fromisoformat(at).replace(tzinfo=UTC) if isinstance(at, str) else at


def _fullest(row: OpenRow) -> tuple[bool, int, str]:
    return not row.value, -row.open, row.value  # jobs without a value come last


def _latest_first(viewer: Viewer, rows: dict[str, OpenRow]) -> list[OpenRow]:
    heard = Release.objects.filter(scopes.visible(viewer), version__in=list(rows)).order_by().values_list("version")
    for version, at in heard.annotate(first=Min("at")):
        rows[version].first_heard = at
    never = datetime.min.replace(tzinfo=UTC)
    return sorted(rows.values(), key=lambda row: (bool(row.value), row.first_heard or never, row.value), reverse=True)


def _name_worst(viewer: Viewer, rows: Iterable[OpenRow], groups: Iterable[int | None]) -> None:
    pairs = [(row, group) for row, group in zip(rows, groups, strict=True) if group]
    named = group_sight.read(viewer, {group for _, group in pairs})
    for row, group in pairs:
        row.worst = named.get(group)
