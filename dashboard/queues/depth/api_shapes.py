"""API shapes of depth over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.utils import timezone
from ninja import Schema

from dashboard.web import links
from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import Viewer
from jobs_admin.queues import depths

_USUAL = timedelta(days=1)


class GapItem(Schema):
    since: datetime
    until: datetime
    reason: str  # unreachable, partly_unreachable, unwatched, unseen, before
    words: str


class MarkItem(Schema):
    at: datetime
    kind: str  # alert, replay, policy, release
    words: str
    ref: str  # number of the alert or replay, `webhooks@7`, the release's version
    url: str | None


class DepthHistory(Schema):
    source: str
    queue: str
    step_s: int  # what a point covers
    since: datetime
    until: datetime
    # [time, waiting, active, delayed, dead, oldest_dead_age_s, failed_per_min, succeeded_per_min], at most 1,000: the
    # last of the step, and the mean of what is per minute; null: not known
    series: list[list[Any]]
    # Beside each of the series, where a point covers several looks: [waiting_min, waiting_max, active_min, active_max,
    # delayed_min, delayed_max, dead_min, dead_max]
    extremes: list[list[int | None]] | None
    source_dead: list[int | None] | None  # beside each of the series; null where the source keeps none
    gaps: list[GapItem]
    marks: list[MarkItem]


def read_depth(
    viewer: Viewer, source: str, queue: str, since: datetime | None, until: datetime | None, points: int = depths.MOST
) -> dict[str, Any]:
    """Return a queue's depth from `since` (a day before the end) until `until` (now). Raises Refused, and NotFound."""
    now = timezone.now()
    until = min(until or now, now)
    since = since or until - _USUAL
    if since >= until:
        raise Refused("invalid", "since must be before until, and in the past.", "since")
    depths.require_visible(viewer, source, queue)
    found = depths.history(viewer, source, queue, since, until, most=points, now=now)
    return _answer(source, queue, found, depths.marks(viewer, source, queue, since, until))


def _answer(source: str, queue: str, found: depths.History, marks: list[depths.Mark]) -> dict[str, Any]:
    points = found.points
    counts = [point.source_dead for point in points]
    return {
        "source": source,
        "queue": queue,
        "step_s": found.step_s,
        "since": _iso(found.since),
        "until": _iso(found.until),
        "series": [(_iso(point[0]), *point[1:8]) for point in points],
        "extremes": [point[9:17] for point in points] if found.step_s > depths.SAMPLE_S else None,
        "source_dead": counts if any(counts) else None,
        "gaps": [
            {"since": _iso(gap.since), "until": _iso(gap.until), "reason": gap.reason, "words": gap.words}
            for gap in found.gaps
        ],
        "marks": [
            {
                "at": _iso(int(mark.at.timestamp())),
                "kind": mark.kind,
                "words": mark.words,
                "ref": mark.ref,
                "url": config.page_url(url) if (url := links.mark_url(mark.kind, mark.ref)) else None,
            }
            for mark in marks
        ],
    }


@lru_cache(maxsize=20_000)  # pictures that are drawn again have the same times
def _iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
