"""The calls for depth over time, and for releases, which are marks in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Schema, Status
from pydantic import AfterValidator, Field

from dashboard.web import links
from dashboard.web.access import needs
from dashboard.web.api.base import REFUSALS, Body, Moment, Text, api
from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.desk import releases
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import depths

Source = Annotated[str, Query(max_length=63), AfterValidator(representable)]
Queue = Annotated[str, Query(max_length=200), AfterValidator(representable)]
Points = Annotated[int, Query(ge=2, le=depths.MOST)]
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


class ReleaseItem(Schema):
    source: str
    version: str
    at: datetime


class Told(Body):
    source: Text = Field(min_length=1, max_length=63)
    version: Text = Field(min_length=1, max_length=releases.LONGEST_VERSION)
    at: Moment | None = None  # now


@api.get("/depth", response={200: DepthHistory, **REFUSALS}, tags=["queues"])
@needs(VIEWER)
def depth(
    request: HttpRequest,
    source: Source,
    queue: Queue,
    since: Moment | None = None,
    until: Moment | None = None,
    points: Points = depths.MOST,
) -> Any:
    """Return a queue's depth over time, in the shortest step stored that far back with at most `points`. Default: a day."""
    now = timezone.now()
    until = min(until or now, now)
    since = since or until - _USUAL
    if since >= until:
        raise Refused("invalid", "since must be before until, and in the past.", "since")
    depths.require_visible(request.auth, source, queue)
    found = depths.history(request.auth, source, queue, since, until, most=points, now=now)
    marks = depths.marks(request.auth, source, queue, since, until)
    # Made into text here: to check a thousand points one by one costs more than all the rest.
    text = json.dumps(_answer(source, queue, found, marks), separators=(",", ":"))
    return HttpResponse(text, content_type="application/json; charset=utf-8")


@api.post("/releases", response={200: ReleaseItem, 201: ReleaseItem, **REFUSALS}, tags=["releases"])
@needs(OPERATOR)
def tell_release(request: HttpRequest, body: Told) -> Any:
    """Report that a version was deployed. 201 if it is new; reported again (200) it stays as it was."""
    found = releases.record_release(request.auth, body.source, body.version, body.at)
    made = found.release
    return Status(201 if found.is_new else 200, {"source": made.source, "version": made.version, "at": made.at})


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
