"""Counts that only grow, for Prometheus: they outlive restarts, pruning and retention of what was counted.

Labels come from messages, so they are bounded where they are written: what is new beyond a metric's bound is counted
as `other`, first of its most particular label, then of all but its source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from django.db import connection

from jobs_admin.db import statements
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import Total
from jobs_admin.models.access import Viewer

FAILURES = "job_failures_total"
DIED = "job_queue_dlq_jobs_total"
RETRIES = "job_retries_total"
RECOVERED = "job_recovered_total"
COMPLETED = "job_completed_total"
BUSY_S = "job_duration_seconds_sum"
ENDED = "job_duration_seconds_count"
REFUSED = "redrive_refused_reports_total"  # its cause stands where others have the queue; unknown sources have no name

OTHER = "other"
MOST_SETS = 1_000  # label sets of a metric, those of `other` included
MOST_ERRORS = 100  # of one task: one that invents its errors leaves room to others
# How many sets there may be before one more is added: one's own, and those of `other`. The widest is one, and fits always.
_ROOM = 900
_ROOM_OF_OTHER = (MOST_SETS - 1, 980, 950)  # by how many of its own labels it keeps beside the source
_LONGEST_ERROR = 120
_DEPTH = {FAILURES: 3, DIED: 2}  # labels beside the source; of the others one, the queue

# Names the lock under which label sets are added (PostgreSQL's advisory locks are numbers).
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
    """The type of an error in bounded length; of an attempt that brought none, how it ended (`lost`, `hard_limit`)."""
    named = error_type or kind
    return named if len(named) <= _LONGEST_ERROR else f"{named[: _LONGEST_ERROR - 1]}…"


def add(counts: Mapping[Counted, float]) -> None:
    """Add to what was counted, in the caller's transaction, as the last that it does: rows stay locked until its end."""
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
    """All that was counted at sources which the viewer sees, sorted. What no source is named of, all of them see."""
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
        # Joined to the wanted ones: `(…) IN (VALUES …)` has SQLite read the whole table.
        sql = (
            f"WITH wanted ({columns}) AS (VALUES {values}) "
            f"SELECT {columns} FROM wanted JOIN {Total._meta.db_table} USING ({columns})"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [label for key in part for label in key])
            found.update(map(Counted._make, cursor.fetchall()))
    return found


def _assign_rows(unknown: Iterable[Counted]) -> dict[Counted, Counted]:
    """Row in which each is counted: its own while there is room."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:  # who counts rooms is alone, as on SQLite all who write are
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
    """The set itself, then those that take it in, the wider the later; each with how many there may be before it is made."""
    depth = _DEPTH.get(counted.metric, 1)
    metric, source, *labels = counted[: 2 + depth]
    yield counted, _ROOM
    for level in reversed(range(depth)):
        yield Counted(metric, source, *labels[:level], *[OTHER] * (depth - level)), _ROOM_OF_OTHER[level]
    yield Counted(metric, "", *[OTHER] * depth), MOST_SETS
