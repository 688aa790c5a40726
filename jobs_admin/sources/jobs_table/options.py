"""Retry options of the rows of a jobs table: `max_attempts` from the rows, and the waits as observed.

A table does not state by which curve its workers wait: only the rows that wait now show it, by the time from when they
failed (`updated_at`) to when they are due (`scheduled_at`). Two different observed attempts are enough to recognise a
curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from jobs_admin.core.lint.options import EXPONENTIAL, FIXED, LINEAR, NONE, Options
from jobs_admin.core.text import representable

_CLOSE = 0.05  # times are whole seconds, and written a moment after the failure
_MOST_SHOWN = 6
UNKNOWN = "seen too little"

# Queue, type, id, attempts, max_attempts, updated_at, scheduled_at (seconds), and whether it waits for a retry.
Seen = tuple[str, str, str, int, int | None, float | None, float | None, bool]


def find_options(rows: Iterable[Seen], sampled: Mapping[str, int]) -> list[Options]:
    """Each distinct `max_attempts` of a queue and a type, with the waits of those that wait.

    `sampled`: rows of each queue.
    """
    alike: dict[tuple[str, str, int | None], list[Seen]] = defaultdict(list)
    for row in rows:
        alike[row[0], row[1], row[4]].append(row)
    return [_summarise(key, some, sampled.get(key[0], 0)) for key, some in alike.items()]


def _summarise(key: tuple[str, str, int | None], rows: list[Seen], sampled: int) -> Options:
    queue, task, most = key
    waits: dict[int, list[float]] = defaultdict(list)
    for _, _, _, attempts, _, failed_at, due_at, waiting in rows:
        if waiting and failed_at is not None and due_at is not None:
            waits[attempts].append(max(0.0, due_at - failed_at))
    seen = {attempt: median(some) for attempt, some in sorted(waits.items())}
    backoff, first_s = recognise_curve(seen)
    latest = max(rows, key=lambda row: row[5] or 0)
    return Options(
        queue=queue, task=representable(task), quoted=_quote(most, seen), attempts=min(most or 1, 2**31 - 1),
        backoff=backoff if (most or 1) > 1 else NONE, first_delay_s=first_s, jobs=len(rows), looked=sampled,
        example=latest[2], newest_at=latest[5],
    )  # fmt: skip


def recognise_curve(seen: Mapping[int, float]) -> tuple[str, float]:
    """(Curve, first wait) of waits by attempt, from 1; an unknown curve is no finding, and no praise."""
    if len(seen) < 2 or min(seen) < 1:
        return UNKNOWN, 0.0
    grown: dict[str, Any] = {FIXED: lambda n: 1.0, LINEAR: float, EXPONENTIAL: lambda n: 2.0 ** min(n - 1, 1000)}
    for backoff, growth in grown.items():
        firsts = [wait / growth(attempt) for attempt, wait in seen.items()]
        first = median(firsts)
        # A second more or less at each: what is written is whole seconds.
        if all(abs(wait - first * growth(n)) <= max(1.5, _CLOSE * first * growth(n)) for n, wait in seen.items()):
            return backoff, first
    return UNKNOWN, 0.0


def _quote(most: int | None, seen: Mapping[int, float]) -> str:
    parts = [f"max_attempts = {most}" if most is not None else "no max_attempts"]
    shown = [f"{wait:.0f} s after attempt {attempt}" for attempt, wait in list(seen.items())[:_MOST_SHOWN]]
    return "; waits seen: ".join([*parts, ", ".join(shown)] if shown else parts)
