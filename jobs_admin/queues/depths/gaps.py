"""Where a picture of a queue has nothing to show, and why: a gap is never a nought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobs_admin.db.light import fetched
from jobs_admin.models import DepthSample
from jobs_admin.queues.depths.ladder import LOOK_S
from jobs_admin.queues.depths.sql import told

MOST = 50  # told, the longest ones
_TABLE = DepthSample._meta.db_table

UNREACHABLE = "unreachable"  # somebody looked, and the source did not answer
PARTLY = "partly_unreachable"  # the same for a part of each step
UNWATCHED = "unwatched"  # nobody looked
UNSEEN = "unseen"  # somebody looked, and the queue was not there
BEFORE = "before"  # nothing is known of any queue from then, or from before

WORDS = {
    UNREACHABLE: "The source did not answer",
    PARTLY: "The source did not answer at times",
    UNWATCHED: "Nobody watched",
    UNSEEN: "Watched, but this queue was not there",
    BEFORE: "Nothing is kept from then",
}


class Point(NamedTuple):
    """A step of time that begins at `at` (seconds since 1970). Each number is the last of the step; null: not known."""

    at: int
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int | None
    oldest_dead_age_s: int | None  # at the end of the step; null: none is dead
    failed_per_min: float | None  # the mean
    succeeded_per_min: float | None
    source_dead: int | None
    waiting_min: int | None
    waiting_max: int | None
    active_min: int | None
    active_max: int | None
    delayed_min: int | None
    delayed_max: int | None
    dead_min: int | None
    dead_max: int | None
    is_reachable: bool  # at any moment of the step
    why: str  # it was not, at some moment of it


@dataclass(frozen=True, slots=True)
class Gap:
    since: int  # seconds since 1970
    until: int
    reason: str
    why: str = ""  # what the source, or the connection to it, said

    @property
    def words(self) -> str:
        return f"{WORDS[self.reason]}: {self.why}" if self.why else WORDS[self.reason]


def of(points: Sequence[Point], step: int, kept_step: int, begin: int, end: int) -> list[Gap]:
    """The gaps in points of `step` seconds, in the order of time; the longest MOST of them."""
    found = _unreachable(points, step)
    missing = _missing(points, step, begin, end)
    found += _explained(sorted(missing, key=lambda gap: gap.since - gap.until)[:MOST], kept_step)
    longest = sorted(found, key=lambda gap: gap.since - gap.until)[:MOST]
    return sorted(longest, key=lambda gap: gap.since)


def _unreachable(points: Sequence[Point], step: int) -> list[Gap]:
    found: list[Gap] = []
    for point in points:
        if not point.why and point.is_reachable:
            continue
        reason = PARTLY if point.is_reachable else UNREACHABLE
        last = found[-1] if found else None
        if last and last.reason == reason and last.why == point.why and point.at - last.until <= step // 2:
            found[-1] = Gap(last.since, point.at + step, reason, point.why)
        else:
            found.append(Gap(point.at, point.at + step, reason, point.why))
    return found


def _missing(points: Sequence[Point], step: int, begin: int, end: int) -> list[Gap]:
    # Of looks one may be late or left out without anything being wrong; a folded step is there or not.
    leave = 2 * step if step <= LOOK_S else step // 2
    found, at = [], begin
    for point in points:
        if point.at - at > leave:
            found.append(Gap(at, point.at, UNWATCHED))
        at = point.at + step
    # What happened just now may not be written yet.
    if end - at > max(leave, 3 * LOOK_S):
        found.append(Gap(at, end, UNWATCHED))
    return found


def _explained(gaps: list[Gap], step: int) -> list[Gap]:
    """Whether anybody looked at other queues meanwhile, or ever before."""
    if not gaps:
        return []
    within = f"EXISTS (SELECT 1 FROM {_TABLE} WHERE step = %s AND at >= %s AND at < %s)"
    before = f"EXISTS (SELECT 1 FROM {_TABLE} WHERE step = %s AND at < %s)"
    values: list[object] = []
    for gap in gaps:
        values += [step, told(gap.since), told(gap.until), step, told(gap.since)]
    ((*answers,),) = fetched("SELECT " + ", ".join([within, before] * len(gaps)), values)
    return [
        Gap(gap.since, gap.until, UNSEEN if seen else UNWATCHED if earlier else BEFORE)
        for gap, seen, earlier in zip(gaps, answers[::2], answers[1::2], strict=True)
    ]
