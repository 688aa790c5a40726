"""One queue over time: at most so many points, whatever the span."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from jobs_admin.db.light import fetched
from jobs_admin.models import DepthSample, FailureCount, QueueCounter
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues.depths import gaps as gaps_
from jobs_admin.queues.depths.gaps import Gap, Point
from jobs_admin.queues.depths.ladder import LADDER, LOOK_S, kept, start_of
from jobs_admin.queues.depths.sql import epoch, told

MOST = 1_000  # points of a picture
_TABLE = DepthSample._meta.db_table


class NoSuchQueue(Exception):
    """No queue of this name was ever seen, or who asks may not see its source."""


@dataclass(frozen=True, slots=True)
class History:
    step_s: int
    since: int  # seconds since 1970
    until: int
    points: list[Point]
    gaps: list[Gap]


def must_see(viewer: Viewer, source: str, queue: str) -> None:
    """Raises NoSuchQueue."""
    this = {"source": source, "queue": queue}
    if not viewer.may(VIEWER, source) or not (
        DepthSample.objects.filter(**this).exists()
        or FailureCount.objects.filter(**this).exists()
        or QueueCounter.objects.filter(**this).exists()
    ):
        raise NoSuchQueue


def watched_since(source: str, queue: str) -> datetime | None:
    """The oldest look at this queue that is kept as it was taken, so at most a day ago; None: there is none."""
    looks = DepthSample.objects.filter(source=source, queue=queue, step=LOOK_S)
    return looks.order_by("at").values_list("at", flat=True).first()


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
    """The queue from `since` until `until`, or until now, in the shortest step that is kept so long and gives at most
    `most` points.

    Raises NoSuchQueue where the source is out of sight. A queue that nobody knows is one gap.
    """
    if not viewer.may(VIEWER, source):
        raise NoSuchQueue
    now = now or timezone.now()
    end = int(min(until, now).timestamp())
    begin = min(int(since.timestamp()), end)
    step, times = _step(begin, end, now, most)
    begin = start_of(begin, step * times)
    read = _read(source, queue, step, begin, end, now)
    points = _thinned(read, step * times, now) if times > 1 else read
    return History(step * times, begin, end, points, gaps_.of(points, step * times, step, begin, end))


def _step(begin: int, end: int, now: datetime, most: int) -> tuple[int, int]:
    """A step that is kept, and how many of them make a point."""
    ages = kept()
    for rung in LADDER:
        step, age = rung.step_s, ages[rung.step_s]
        is_kept = age is None or begin >= (now - age).timestamp()
        if is_kept and _count(begin, end, step) <= most:
            return step, 1
    times = 1
    while _count(begin, end, step * times) > most:
        times += 1
    return step, times


def _count(begin: int, end: int, step: int) -> int:
    return -(-(end - start_of(begin, step)) // step)


# -- rows -------------------------------------------------------------------------------------------------------------


def _read(source: str, queue: str, step: int, begin: int, end: int, now: datetime) -> list[Point]:
    found = fetched(_sql(step, now), [source, queue, step, told(begin), told(end)])
    return [Point._make(row) for row in found]


def _sql(step: int, now: datetime) -> str:
    # A step ends with its last look; the one that runs, now.
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


def _thinned(points: list[Point], step: int, now: datetime) -> list[Point]:
    """Several as one. The least, the most and the last stay what they are."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(start_of(point.at, step), []).append(point)
    return [_one(at, some) for at, some in found.items()]


def _one(at: int, some: list[Point]) -> Point:
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
