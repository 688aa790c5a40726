"""One queue over time: a limited number of points, for any span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet
from django.utils import timezone

from jobs_admin.core.refused import NotFound
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import DepthSample, FailureCount, QueueCounter
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues.depths.steps import LADDER, SAMPLE_S, epoch, retention_by_step, start_of, to_database_time
from jobs_admin.search import scope as scopes

_MOST_GAPS = 50  # the longest ones are listed
_SAMPLES = DepthSample._meta.db_table

_FOLDED_WITHIN_S = 60  # after its end

UNREACHABLE = "unreachable"  # sampled, but the source did not answer
PARTLY = "partly_unreachable"  # the same for a part of each step
UNWATCHED = "unwatched"  # not sampled
UNSEEN = "unseen"  # sampled, but the queue was absent
IN_PROGRESS = "in_progress"  # the last step, which is not complete yet
BEFORE = "before"  # no data for any queue from then or before

WORDS = {
    UNREACHABLE: "The source did not answer",
    PARTLY: "The source did not answer at times",
    UNWATCHED: "Not sampled: watch was not running",
    UNSEEN: "Sampled, but this queue did not exist",
    IN_PROGRESS: "In progress: the step is not complete yet",
    BEFORE: "Before the first stored sample",
}


class Point(NamedTuple):
    """A time step that starts at `at` (seconds since 1970). Each number is the last of the step; null: unknown."""

    at: int
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int | None
    oldest_dead_age_s: int | None  # at the end of the step; null: none is dead
    failed_per_min: float | None  # mean
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
    is_reachable: bool  # at some time in the step
    why: str  # why it was unreachable at some time in the step


@dataclass(frozen=True, slots=True)
class Gap:
    since: int  # seconds since 1970
    until: int
    reason: str
    why: str = ""  # error of the source, or of the connection to it

    @property
    def words(self) -> str:
        return f"{WORDS[self.reason]}: {self.why}" if self.why else WORDS[self.reason]


def find_gaps(points: Sequence[Point], step: int, stored_step: int, begin: int, end: int) -> list[Gap]:
    """Return the gaps in points of `step` seconds, in chronological order; only the longest."""
    found = _unreachable(points, step)
    missing = _missing_steps(points, step, begin, end)
    found += _explain_gaps(sorted(missing, key=lambda gap: gap.since - gap.until)[:_MOST_GAPS], stored_step)
    longest = sorted(found, key=lambda gap: gap.since - gap.until)[:_MOST_GAPS]
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


def _missing_steps(points: Sequence[Point], step: int, begin: int, end: int) -> list[Gap]:
    # A single sample may be late or missing without a problem; a folded step is complete or missing.
    leave = 2 * step if step <= SAMPLE_S else step // 2
    found, at = [], begin
    for point in points:
        if point.at - at > leave:
            found.append(Gap(at, point.at, UNWATCHED))
        at = point.at + step
    # The latest sample may not be written yet.
    if end - at > max(leave, 3 * SAMPLE_S):
        is_last_step = step > SAMPLE_S and end - at < step + _FOLDED_WITHIN_S
        found.append(Gap(at, end, IN_PROGRESS if is_last_step else UNWATCHED))
    return found


def _explain_gaps(gaps: list[Gap], step: int) -> list[Gap]:
    """Explain gaps by samples of other queues in that time, or ever before."""
    if not gaps:
        return []
    within = f"EXISTS (SELECT 1 FROM {_SAMPLES} WHERE step = %s AND at >= %s AND at < %s)"
    before = f"EXISTS (SELECT 1 FROM {_SAMPLES} WHERE step = %s AND at < %s)"
    values: list[object] = []
    for gap in gaps:
        values += [step, to_database_time(gap.since), to_database_time(gap.until), step, to_database_time(gap.since)]
    ((*answers,),) = fetch_rows("SELECT " + ", ".join([within, before] * len(gaps)), values)
    return [
        gap
        if gap.reason == IN_PROGRESS
        else Gap(gap.since, gap.until, UNSEEN if seen else UNWATCHED if earlier else BEFORE)
        for gap, seen, earlier in zip(gaps, answers[::2], answers[1::2], strict=True)
    ]


MOST = 1_000  # points of a chart
_TABLE = DepthSample._meta.db_table


@dataclass(frozen=True, slots=True)
class History:
    step_s: int
    since: int  # seconds since 1970
    until: int
    points: list[Point]
    gaps: list[Gap]


def require_visible(viewer: Viewer, source: str, queue: str) -> None:
    """Raise NotFound if the queue is hidden."""
    this = {"source": source, "queue": queue}
    if not viewer.may(VIEWER, source) or not (
        DepthSample.objects.filter(**this).exists()
        or FailureCount.objects.filter(**this).exists()
        or QueueCounter.objects.filter(**this).exists()
    ):
        raise NotFound("Queue not found.")


def sampled_since(source: str, queue: str) -> datetime | None:
    """Return the time of this queue's oldest stored sample: exact in the first hour, then the start of its hour."""
    return _first_sample(DepthSample.objects.filter(source=source, queue=queue))


def desk_sampled_since(viewer: Viewer) -> datetime | None:
    """Return the same for all visible queues."""
    return _first_sample(DepthSample.objects.filter(scopes.visible(viewer)))


def _first_sample(found: QuerySet[DepthSample]) -> datetime | None:
    samples = found.order_by("at").values_list("at", flat=True)
    hour, exact = samples.filter(step=3_600).first(), samples.filter(step=SAMPLE_S).first()
    if hour is None or (exact is not None and exact - hour < timedelta(hours=1)):
        return exact
    return hour


def history(
    viewer: Viewer,
    source: str,
    queue: str,
    since: datetime,
    until: datetime,
    *,
    most: int = MOST,
    now: datetime | None = None,
) -> History:
    """Return the queue's history from `since` until `until`, or until now.

    The step is the shortest one that is stored for that time and yields at most `most` points. Raises NotFound if the
    source is hidden. An unknown queue yields a single gap.
    """
    if not viewer.may(VIEWER, source):
        raise NotFound("Queue not found.")
    now = now or timezone.now()
    end = int(min(until, now).timestamp())
    begin = min(int(since.timestamp()), end)
    step, times = _step(begin, end, now, most)
    begin = start_of(begin, step * times)
    read = _read(source, queue, step, begin, end, now)
    points = _thin(read, step * times, now) if times > 1 else read
    return History(step * times, begin, end, points, find_gaps(points, step * times, step, begin, end))


def _step(begin: int, end: int, now: datetime, most: int) -> tuple[int, int]:
    """Return a stored step, and how many of them make a point."""
    ages = retention_by_step()
    for rung in LADDER:
        step, age = rung.step_s, ages[rung.step_s]
        is_stored = age is None or begin >= (now - age).timestamp()
        if is_stored and _count(begin, end, step) <= most:
            return step, 1
    times = 1
    while _count(begin, end, step * times) > most:
        times += 1
    return step, times


def _count(begin: int, end: int, step: int) -> int:
    return -(-(end - start_of(begin, step)) // step)


# -- rows -------------------------------------------------------------------------------------------------------------


def _read(source: str, queue: str, step: int, begin: int, end: int, now: datetime) -> list[Point]:
    found = fetch_rows(_sql(step, now), [source, queue, step, to_database_time(begin), to_database_time(end)])
    return [Point._make(row) for row in found]


def _sql(step: int, now: datetime) -> str:
    # A step ends with its last sample, the current one now.
    ends = f"{epoch('at')} + {0 if step == LADDER[0].step_s else step}"
    least = "MIN" if epoch("at").startswith("CAST") else "LEAST"
    age = f"{least}({ends}, {int(now.timestamp())}) - {epoch('oldest_dead_at')}"
    positive = f"CASE WHEN oldest_dead_at IS NULL THEN NULL WHEN {age} < 0 THEN 0 ELSE {age} END"
    extremes = ", ".join(
        f"COALESCE({name}_{end}, {name})" for name in ("waiting", "active", "delayed", "dead") for end in ("min", "max")
    )
    return (
        f"SELECT {epoch('at')}, waiting, active, delayed, dead, {positive}, failed_per_min, succeeded_per_min, "
        f"source_dead, {extremes}, is_reachable, why FROM {_TABLE} "
        "WHERE source = %s AND queue = %s AND step = %s AND at >= %s AND at < %s ORDER BY at"
    )


def _thin(points: list[Point], step: int, now: datetime) -> list[Point]:
    """Merge several points into one, preserving minimum, maximum and last value."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(start_of(point.at, step), []).append(point)
    return [_merge_points(at, some) for at, some in found.items()]


def _merge_points(at: int, some: list[Point]) -> Point:
    values: dict[str, object] = {"at": at, "why": next((p.why for p in reversed(some) if p.why), "")}
    for name in ("waiting", "active", "delayed", "dead", "source_dead"):
        values[name] = next((v for p in reversed(some) if (v := getattr(p, name)) is not None), None)
    for name in ("waiting", "active", "delayed", "dead"):
        for end, choose in (("min", min), ("max", max)):
            known = [v for p in some if (v := getattr(p, f"{name}_{end}")) is not None]
            values[f"{name}_{end}"] = choose(known, default=None)
    for name in ("failed_per_min", "succeeded_per_min"):
        known = [v for p in some if (v := getattr(p, name)) is not None]
        values[name] = round(sum(known) / len(known), 3) if known else None
    values["oldest_dead_age_s"] = some[-1].oldest_dead_age_s
    values["is_reachable"] = any(p.is_reachable for p in some)
    return Point(**values)  # type: ignore[arg-type]
