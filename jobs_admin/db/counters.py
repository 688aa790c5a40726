"""Counters per time step, group and queue, and totals for Prometheus, which outlive restarts, pruning and retention.

Labels of totals come from messages, so they are limited when written: a new label set beyond a metric's limit is
counted as `other`, first for its most specific label, then for all but its source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection
from django.db.models import F, Func, IntegerField, Value

from jobs_admin.db import statements
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import Group, GroupCounter, QueueCounter, Total
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import STEPS_OF_GROUPS, STEPS_OF_QUEUES


def step_start(at: datetime, step: int) -> datetime:
    """Return the start of the step of `step` seconds that contains `at`; a day is a whole number of steps."""
    since_midnight = at.hour * 3600 + at.minute * 60 + at.second
    return at.replace(microsecond=0) - timedelta(seconds=since_midnight % step)


def spread_over_steps(
    counts: Mapping[tuple[Hashable, datetime], list[float]], steps: Iterable[int]
) -> list[tuple[Hashable, int, datetime, list[float]]]:
    """Return (key, step, start, numbers) of every step, sorted: a moment counts in each step that contains it."""
    found: dict[tuple[Hashable, int, datetime], list[float]] = {}
    # Computed once for each moment: many keys share one.
    starts = {at: [(step, step_start(at, step)) for step in steps] for at in {at for _, at in counts}}
    for (key, at), numbers in counts.items():
        for step, start in starts[at]:
            place = key, step, start
            before = found.get(place)
            found[place] = [a + b for a, b in zip(before, numbers, strict=True)] if before else numbers
    return [(*place, numbers) for place, numbers in sorted(found.items())]


class StepNumber(Func):
    """The number, since 1970, of the step of `seconds` that contains a moment."""

    output_field = IntegerField()

    def __init__(self, name: str, seconds: int, **more) -> None:
        super().__init__(F(name), Value(int(seconds), output_field=IntegerField()), **more)

    def as_sqlite(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"CAST(strftime('%%s', {sql}) AS INTEGER) / {int(seconds.value)}", parameters

    def as_postgresql(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"(EXTRACT(EPOCH FROM {sql})::bigint / {int(seconds.value)})", parameters


def add_group_counts(counts: dict[tuple[int, datetime], list[int]]) -> None:
    """Add [failed, retried] to the steps of groups that contain each moment: {(group, moment): …}."""
    columns = ("group_id", "step", "at", "failed", "retried")
    rows = [(group, step, at, *n) for group, step, at, n in spread_over_steps(counts, STEPS_OF_GROUPS)]
    conflict = statements.add(GroupCounter, columns, key=columns[:3])
    statements.insert(GroupCounter, columns, rows, conflict=conflict)


def add_queue_counts(counts: dict[tuple[str, str, datetime], dict[str, float]]) -> None:
    """Add numbers to the steps of queues that contain each moment: {(source, queue, moment): {column: number}}."""
    columns = (
        "source",
        "queue",
        "step",
        "at",
        "started",
        "succeeded",
        "failed",
        "retried",
        "recovered",
        "sent",
        "busy_s",
    )
    moments = {(key[:2], key[2]): [n.get(column, 0) for column in columns[4:]] for key, n in counts.items()}
    rows = [(*queue, step, at, *n) for queue, step, at, n in spread_over_steps(moments, STEPS_OF_QUEUES)]
    conflict = statements.add(QueueCounter, columns, key=columns[:4])
    statements.insert(QueueCounter, columns, rows, conflict=conflict)


def add_lost_counts(lost: Iterable[tuple[int | None, str, str]], now: datetime) -> None:
    """Count attempts that never reported: (group, source, queue) of each."""
    minute = now.replace(second=0, microsecond=0)
    groups: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    queues: dict[tuple[str, str, datetime], dict[str, float]] = defaultdict(lambda: {"failed": 0})
    for group, source, queue in lost:
        queues[source, queue, minute]["failed"] += 1
        if group is not None:
            groups[group, minute][0] += 1
    add_group_counts(groups)
    add_queue_counts(queues)
    for (group, _), (failed, _) in sorted(groups.items()):
        Group.objects.filter(pk=group).update(count=F("count") + failed)


FAILURES = "job_failures_total"
DIED = "job_queue_dlq_jobs_total"
RETRIES = "job_retries_total"
RECOVERED = "job_recovered_total"
COMPLETED = "job_completed_total"
BUSY_S = "job_duration_seconds_sum"
ENDED = "job_duration_seconds_count"
REFUSED = "redrive_refused_reports_total"  # its cause is in the column of the queue; unknown sources have no name

OTHER = "other"
MOST_SETS = 1_000  # label sets of a metric, including those of `other`
MOST_ERRORS = 100  # per task: one that invents error names leaves room for others
# Number of sets at which no more are added: ordinary ones, and those of `other`. There is one widest set, which always
# fits.
_ROOM = 900
_ROOM_OF_OTHER = (MOST_SETS - 1, 980, 950)  # by the number of its own labels that it retains besides the source
_LONGEST_ERROR = 120
_DEPTH = {FAILURES: 3, DIED: 2}  # labels besides the source; for others one, the queue

# Identifies the lock under which label sets are added (PostgreSQL's advisory locks are numbers).
_LOCK = 0x7265_6472_6976_6502
_COLUMNS = ("metric", "source", "queue", "task", "error", "value")


class Counted(NamedTuple):
    """A metric with its labels; those that it does not have are empty."""

    metric: str
    source: str
    queue: str = ""
    task: str = ""
    error: str = ""


def error_label(error_type: str, kind: str) -> str:
    """Return the type of an error in limited length; without one, how the attempt ended (`lost`, `hard_limit`)."""
    named = error_type or kind
    return named if len(named) <= _LONGEST_ERROR else f"{named[: _LONGEST_ERROR - 1]}…"


def add_totals(counts: Mapping[Counted, float]) -> None:
    """Add to the totals, as the last statement of the caller's transaction, because rows stay locked until its end."""
    grown = {counted: value for counted, value in counts.items() if value > 0}
    unknown = grown.keys() - _existing(grown)
    if unknown:
        place = _assign_rows(unknown)
        placed: dict[Counted, float] = defaultdict(float)
        for counted, value in grown.items():
            placed[place.get(counted, counted)] += value
        grown = placed
    rows = [(*counted, value) for counted, value in sorted(grown.items())]
    statements.insert(Total, _COLUMNS, rows, conflict=statements.add(Total, _COLUMNS, key=_COLUMNS[:5]))


def read_totals(viewer: Viewer) -> Iterator[tuple[Counted, float]]:
    """Yield the totals of visible sources, sorted. Totals without a source are visible to everyone."""
    rows = Total.objects.order_by(*_COLUMNS[:5])
    seen = viewer.sources()
    if seen is not None:
        rows = rows.filter(source__in=seen)
    for *labels, value in rows.values_list(*_COLUMNS).iterator():
        yield Counted(*labels), value


def _existing(wanted: Iterable[Counted]) -> set[Counted]:
    keys = sorted(wanted)
    found: set[Counted] = set()
    columns = ", ".join(_COLUMNS[:5])
    for start in range(0, len(keys), 2_000):
        part = keys[start : start + 2_000]
        values = ", ".join(["(%s, %s, %s, %s, %s)"] * len(part))
        # Joined to the wanted ones: with `(…) IN (VALUES …)`, SQLite reads the entire table.
        sql = (
            f"WITH wanted ({columns}) AS (VALUES {values}) "
            f"SELECT {columns} FROM wanted JOIN {Total._meta.db_table} USING ({columns})"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [label for key in part for label in key])
            found.update(map(Counted._make, cursor.fetchall()))
    return found


def _assign_rows(unknown: Iterable[Counted]) -> dict[Counted, Counted]:
    """Return the row in which each is counted: its own if there is room."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:  # counting is exclusive, as all writing is on SQLite
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    known: dict[str, set[Counted]] = defaultdict(set)
    errors: Counter[tuple[str, ...]] = Counter()
    metrics = sorted({it.metric for it in unknown})
    for row in fetch_rows(
        f"SELECT {', '.join(_COLUMNS[:5])} FROM {Total._meta.db_table} "
        f"WHERE metric IN ({', '.join(['%s'] * len(metrics))})",
        metrics,
    ):
        known[row[0]].add(Counted._make(row))
        errors[row[:4]] += 1
    places = {}
    for counted in sorted(unknown):
        there = known[counted.metric]
        is_one_too_many = errors[counted[:4]] >= MOST_ERRORS
        places[counted] = place = next(
            it
            for it, room in _candidates(counted)
            if it in there or (len(there) < room and not (it is counted and is_one_too_many))
        )
        if place not in there:
            there.add(place)
            errors[place[:4]] += 1
    return places


def _candidates(counted: Counted) -> Iterator[tuple[Counted, int]]:
    """Yield the set itself, then wider and wider sets that include it, each with the limit for creating it."""
    depth = _DEPTH.get(counted.metric, 1)
    metric, source, *labels = counted[: 2 + depth]
    yield counted, _ROOM
    for level in reversed(range(depth)):
        yield Counted(metric, source, *labels[:level], *[OTHER] * (depth - level)), _ROOM_OF_OTHER[level]
    yield Counted(metric, "", *[OTHER] * depth), MOST_SETS
