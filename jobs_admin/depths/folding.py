"""Many looks at one queue as one: nothing that stood out is lost, and folding twice is folding once.

fold([fold(some), fold(those after)]) == fold([*some, *those after])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

_DEPTHS = ("waiting", "active", "delayed", "dead")


class Folded(NamedTuple):
    """Some looks. Each depth is the last that is known, beside it the least and the most; null: nobody could tell."""

    looks: int
    is_reachable: bool  # by any of the looks
    why: str  # of the last look that did not reach the source
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int | None
    source_dead: int | None
    oldest_dead_at: datetime | None
    failed_per_min: float | None  # the mean, so that it times the minutes is what failed
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
    """One of several, which come in the order of time."""
    looks, why, source_dead = 0, "", None
    is_reachable = False
    for row in rows:
        looks += row.looks
        is_reachable = is_reachable or row.is_reachable
        why = row.why or why
        if row.source_dead is not None:
            source_dead = row.source_dead
    last = rows[-1]
    depths: list[int | None] = []
    extremes: list[int | None] = []
    for at, name in enumerate(_DEPTHS):
        low, high = 11 + 2 * at, 12 + 2 * at  # cheaper than by name, of a million rows
        known = [row[3 + at] for row in rows if row[3 + at] is not None]
        depths.append(known[-1] if known else None)
        extremes.append(min((row[low] for row in rows if row[low] is not None), default=None))
        extremes.append(max((row[high] for row in rows if row[high] is not None), default=None))
        assert rows[0]._fields[low] == f"{name}_min"
    return Folded(
        looks,
        is_reachable,
        why,
        *depths,
        source_dead,
        last.oldest_dead_at,
        _mean((row.looks, row.failed_per_min) for row in rows),
        _mean((row.looks, row.succeeded_per_min) for row in rows),
        *extremes,
    )


def _mean(weighed: Iterable[tuple[int, float | None]]) -> float | None:
    total, looks = 0.0, 0
    for weight, value in weighed:
        if value is not None:
            total += weight * value
            looks += weight
    return round(total / looks, 3) if looks else None
