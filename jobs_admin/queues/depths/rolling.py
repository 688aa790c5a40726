"""Folding of samples into longer steps as they arrive, and of what was missed while `watch` was not running.

Progress follows from the rows: each fold continues at the latest written step less LATE_S. Several processes may fold,
and each may be interrupted at any point. Steps are written in chronological order, so all before the latest are
complete. A step is overwritten only by a fold of more samples, so that a process that was suspended cannot overwrite
later results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from jobs_admin.db import statements, step_progress, turns
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import DepthSample
from jobs_admin.queues.depths.steps import FOLDS, LATE_S, epoch, moment, start_of, to_database_time


class Folded(NamedTuple):
    """Several samples merged into one.

    Each depth is the last known value, with its minimum and maximum; null: unknown.
    """

    looks: int
    is_reachable: bool  # in any of the samples
    why: str  # of the last sample that did not reach the source
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int | None
    source_dead: int | None
    oldest_dead_at: datetime | None
    failed_per_min: float | None  # mean: multiplied by the minutes it gives the number of failures
    succeeded_per_min: float | None
    waiting_min: int | None
    waiting_max: int | None
    active_min: int | None
    active_max: int | None
    delayed_min: int | None
    delayed_max: int | None
    dead_min: int | None
    dead_max: int | None


def fold(rows: Sequence[Folded]) -> Folded:
    """Fold rows, in chronological order, into one."""
    # By column, for speed: a day of fifty queues has half a million rows.
    columns = list(zip(*rows, strict=True))
    sample_counts, reachable, whys, *depths, source_dead, oldest, failed, succeeded = columns[:_FIRST_EXTREME]
    return Folded(
        sum(sample_counts),
        any(reachable),
        next((why for why in reversed(whys) if why), ""),
        *[_last_known(column) for column in depths],
        _last_known(source_dead),
        oldest[-1],
        _mean(sample_counts, failed),
        _mean(sample_counts, succeeded),
        *[
            (min if n % 2 == 0 else max)(_known_values(column), default=None)
            for n, column in enumerate(columns[_FIRST_EXTREME:])
        ],
    )


_FIRST_EXTREME = Folded._fields.index("waiting_min")  # minimum and maximum alternate from here


def _known_values(column: Sequence[int | None]) -> Sequence[int]:
    return [value for value in column if value is not None] if None in column else column  # type: ignore[return-value]


def _last_known(column: Sequence[int | None]) -> int | None:
    if column[-1] is not None:
        return column[-1]
    return next((value for value in reversed(column) if value is not None), None)


def _mean(weights: Sequence[int], values: Sequence[float | None]) -> float | None:
    weighed = [(weight, value) for weight, value in zip(weights, values, strict=True) if value is not None]
    total = sum(weight for weight, _ in weighed)
    return round(sum(weight * value for weight, value in weighed) / total, 3) if total else None


_ROUND_S = 5.0  # then `watch` reports progress, and continues
_ROWS_AT_ONCE = 20_000  # read outside of any transaction
_WRITTEN_AT_ONCE = 100  # 250 took up to 38 ms, and 422 on a busy machine
_READ = ("source", "queue", *Folded._fields)
_TABLE = DepthSample._meta.db_table
_KEY = ("source", "queue", "step", "at")
_COLUMNS = (*_KEY, *Folded._fields, "durability", "by_priority")
# A fold of fewer samples writes nothing; one of as many has nothing new.
_CONFLICT = statements.replace(_COLUMNS, key=_KEY) + f' WHERE excluded."looks" > "{_TABLE}"."looks"'


def roll_up(now: datetime) -> bool:
    """Fold the samples since the last fold. Return True if the time ran out and more is due."""
    ends = time.monotonic() + _ROUND_S
    is_left = False
    for low, high in FOLDS:  # each is processed in every round
        is_left |= _fold_all(low, high, now, ends)
    return is_left


def step(now: datetime) -> bool:
    """Run a round of `watch`: the folds that are due, for thousands of queues too. Return True if more is due."""
    began = time.monotonic()
    is_left = False
    for low, high in FOLDS:
        if began < _due.get(high, began):
            continue
        if _fold_all(low, high, now, began + _ROUND_S):
            is_left = True
        else:
            # The current day need not be written every ten seconds; a tenth of a step is invisible in a chart.
            _due[high] = began + max(_OFTEN_S, high / 10)
    return is_left


_OFTEN_S = 30.0
_due: dict[int, float] = {}  # by the longer step, on this process's clock


def rolled_until(step: int, now: datetime) -> datetime | None:
    """Return the time before which all rows of a step are folded into the next; None if none are.

    The longest step is not folded: all of it counts as folded.
    """
    higher = dict(FOLDS).get(step)
    if higher is None:
        return now
    latest = _latest_written(higher, now)
    return None if latest is None else moment(start_of(latest - LATE_S, higher))


def _fold_all(low: int, high: int, now: datetime, ends: float) -> bool:
    done = _latest_written(high, now)
    at = 0 if done is None else start_of(done - LATE_S, high)
    steps = 1  # number of `high` steps at once
    while (first := _first_step(low, at, now)) is not None:
        if time.monotonic() > ends:
            return True
        at = start_of(first, high)
        until = at + steps * high
        read = _fold(low, high, at, until)
        step_progress.report()
        steps = max(1, min(steps * 4, steps * _ROWS_AT_ONCE // max(read, 1)))
        at = until
    return False


def _fold(low: int, high: int, since: int, until: int) -> int:
    """Fold one span. Return the number of rows read."""
    rows = _rows(low, since, until)
    folded = [
        (at, source, queue, fold([row for _, _, _, row in some]))
        for (source, queue, at), some in groupby(rows, lambda row: (row[0], row[1], start_of(row[2], high)))
    ]
    _write(high, sorted(folded, key=lambda one: one[:3]))
    return len(rows)


def _write(step: int, folded: list[tuple[int, str, str, Folded]]) -> None:
    for start in range(0, len(folded), _WRITTEN_AT_ONCE):
        rows = [_row(step, *one) for one in folded[start : start + _WRITTEN_AT_ONCE]]
        with turns.turn():  # one statement is one transaction
            statements.insert(DepthSample, _COLUMNS, rows, conflict=_CONFLICT)


def _row(step: int, at: int, source: str, queue: str, one: Folded) -> tuple[Any, ...]:
    values = one._asdict()
    for name in ("waiting", "active", "delayed", "dead"):
        for end in ("min", "max"):
            if values[f"{name}_{end}"] == values[name]:
                values[f"{name}_{end}"] = None
    return source, queue, step, moment(at), *values.values(), "", "{}"


def _rows(step: int, since: int, until: int) -> list[tuple[str, str, int, Folded]]:
    """Return rows by queue, each queue's in chronological order."""
    columns = ", ".join(_column_sql(name) for name in _READ)
    sql = (
        f"SELECT {epoch('at')}, {columns} FROM {_TABLE} WHERE step = %s AND at >= %s AND at < %s "
        "ORDER BY source, queue, at"
    )
    found = fetch_rows(sql, [step, to_database_time(since), to_database_time(until)])
    return [(source, queue, at, _parse_row(values)) for at, source, queue, *values in found]  # type: ignore[misc]


def _parse_row(values: list[Any]) -> Folded:
    values[1] = bool(values[1])
    oldest = values[8]
    if oldest is not None and oldest.tzinfo is None:  # SQLite's driver omits the time zone, UTC
        values[8] = oldest.replace(tzinfo=UTC)
    return Folded._make(values)


def _column_sql(name: str) -> str:
    column, _, end = name.rpartition("_")
    return f"COALESCE({name}, {column})" if end in ("min", "max") and column in _EXTREME_COLUMNS else name


_EXTREME_COLUMNS = ("waiting", "active", "delayed", "dead")


def _first_step(step: int, since: int, now: datetime) -> int | None:
    sql = f"SELECT {epoch('MIN(at)')} FROM {_TABLE} WHERE step = %s AND at >= %s AND at <= %s"
    return _seconds(sql, step, to_database_time(since), to_database_time(now))


def _latest_written(step: int, now: datetime) -> int | None:
    # Excludes future times: after a temporarily wrong clock, nothing would be folded until then.
    return _seconds(
        f"SELECT {epoch('MAX(at)')} FROM {_TABLE} WHERE step = %s AND at <= %s", step, to_database_time(now)
    )


def _seconds(sql: str, *values: object) -> int | None:
    ((at,),) = fetch_rows(sql, values)
    return at  # type: ignore[return-value]
