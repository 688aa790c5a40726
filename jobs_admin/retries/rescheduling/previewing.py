"""Preview of a reschedule: waits by attempt, and how many retries come at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max
from django.utils import timezone

from jobs_admin.core.retry_change import Change, read
from jobs_admin.models.access import Viewer
from jobs_admin.retries.rescheduling import retry_selection

MOST_SAMPLED = 20_000  # rows that a preview looks at
BINS = 60
MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs with this number of attempts. Waits are seconds since they failed; None if unknown."""

    attempts: int
    jobs: int
    before: tuple[float, float] | None  # shortest, longest
    after: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Herd:
    """Number of retries in each of BINS equal parts of the time from now, and the most within one second."""

    counts: list[int]
    at_once: int  # due already
    busiest: int


@dataclass(frozen=True, slots=True)
class Preview:
    source: str
    query: str  # with absolute times
    selection: tuple[int, ...]
    highest: int  # the newest failure that it is about
    matched: int
    sample_size: int  # of these, for what follows: the newest
    beyond: int  # that have made as many attempts already as they would have: they stay as they are
    lines: list[Line]
    more_lines: int
    before: Herd
    after: Herd
    span_s: float  # of the herds, from `at`
    at: datetime
    change: Change


def parse_change(change: dict[str, Any], now: datetime) -> Change:
    """Raises Refused."""
    return read(change, now.timestamp())


def preview(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    change: dict[str, Any],
    now: datetime | None = None,
) -> Preview:
    """Raises Refused."""
    now = now or timezone.now()
    what, pinned = parse_change(change, now), "" if selection else retry_selection.pin_query(query, now)
    rows = retry_selection.find_waiting(viewer, pinned, selection)
    source = retry_selection.source_of(viewer, rows)
    rows = rows.filter(source=source)
    matched = rows.count()
    highest = rows.aggregate(highest=Max("pk"))["highest"] or 0
    columns = ("pk", "attempts", "failed_at", "due_at")
    sampled = list(rows.order_by("-pk").values_list(*columns)[:MOST_SAMPLED])
    at = now.timestamp()
    fitting = [one for one in sampled if what.may_have(one[1])]
    before = [(one[3].timestamp() if one[3] else at) for one in fitting]
    after = [
        due if (due := what.due(pk, attempts, failed_at.timestamp(), at)) is not None else former
        for (pk, attempts, failed_at, _), former in zip(fitting, before, strict=True)
    ]
    span_s = max([1.0, *(due - at for due in [*before, *after])])
    lines = _lines(fitting, before, after)
    return Preview(
        source, pinned, tuple(selection), highest, matched, len(sampled), len(sampled) - len(fitting), lines[:MOST_LINES],
        max(0, len(lines) - MOST_LINES), _herd(before, at, span_s), _herd(after, at, span_s), span_s, now, what,
    )  # fmt: skip


def _lines(
    rows: Sequence[tuple[int, int, datetime, datetime | None]], before: list[float], after: list[float]
) -> list[Line]:
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (_, attempts, failed_at, _), old, new in zip(rows, before, after, strict=True):
        waits[attempts].append((old - failed_at.timestamp(), new - failed_at.timestamp()))
    return [
        Line(
            attempts,
            len(theirs),
            (min(old for old, _ in theirs), max(old for old, _ in theirs)),
            (min(new for _, new in theirs), max(new for _, new in theirs)),
        )
        for attempts, theirs in sorted(waits.items())
    ]


def _herd(dues: Sequence[float], at: float, span_s: float) -> Herd:
    counts, seconds = [0] * BINS, defaultdict[int, int](int)
    for due in dues:
        counts[min(BINS - 1, max(0, int((due - at) / span_s * BINS)))] += 1
        seconds[max(0, int(due - at))] += 1
    return Herd(counts, sum(due <= at for due in dues), max(seconds.values(), default=0))
