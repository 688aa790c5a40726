"""Many looks at one queue as one: nothing that stood out is lost, and folding twice is folding once.

fold([fold(some), fold(those after)]) == fold([*some, *those after])
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple


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
    # By columns: a day of fifty queues is half a million rows.
    columns = list(zip(*rows, strict=True))
    looks, reachable, whys, *depths, source_dead, oldest, failed, succeeded = columns[:_EXTREMES]
    return Folded(
        sum(looks),
        any(reachable),
        next((why for why in reversed(whys) if why), ""),
        *[_last(column) for column in depths],
        _last(source_dead),
        oldest[-1],
        _mean(looks, failed),
        _mean(looks, succeeded),
        *[(min if n % 2 == 0 else max)(_known(column), default=None) for n, column in enumerate(columns[_EXTREMES:])],
    )


_EXTREMES = Folded._fields.index("waiting_min")  # from here on: the least and the most in turn


def _known(column: Sequence[int | None]) -> Sequence[int]:
    return [value for value in column if value is not None] if None in column else column  # type: ignore[return-value]


def _last(column: Sequence[int | None]) -> int | None:
    if column[-1] is not None:
        return column[-1]
    return next((value for value in reversed(column) if value is not None), None)


def _mean(looks: Sequence[int], values: Sequence[float | None]) -> float | None:
    weighed = [(weight, value) for weight, value in zip(looks, values, strict=True) if value is not None]
    total = sum(weight for weight, _ in weighed)
    return round(sum(weight * value for weight, value in weighed) / total, 3) if total else None
