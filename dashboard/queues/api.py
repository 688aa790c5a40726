"""The calls for queues, their depth over time with releases as marks in it, and workers with the jobs that gone ones had fetched.

Fields may be added, and none is removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Path, Query, Schema, Status
from pydantic import AfterValidator, Field

from dashboard.web import links
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import NO_CURSOR, REFUSALS, AfterQueue, Body, Limit, Moment, Text, api, viewer_of
from jobs_admin import config, queues
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.desk import releases
from jobs_admin.fleet import listing, stranded
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.queues import QueueRow, depths


class Queue(Schema):
    source: str
    queue: str
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int
    retrying: int
    source_dead: int | None
    oldest_dead_age_s: int | None
    failed_per_minute: float
    succeeded_per_minute: float
    workers: int | None
    guarded_workers: int | None
    durability: str  # when jobs are acknowledged: late, early, mixed; "" where no guarded worker reported it
    fetch_window: bool  # a worker that is killed may lose a message that it was just given, also under late ack
    reachable: bool | None  # null: never sampled
    why: str
    sampled_at: datetime | None


def queue(row: QueueRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Queue.model_fields}


@api.get("/queues", response={200: shapes.Listed[Queue], **REFUSALS}, tags=["queues"])
@needs(VIEWER)
def list_queues(request: HttpRequest, after: AfterQueue = None, limit: Limit = 100) -> Any:
    """Return the queues, most dead jobs first, then most failed attempts."""
    if after and not queues.is_cursor(after):
        raise Refused("invalid", NO_CURSOR, "after")
    page = queues.queue_page(viewer_of(request), after=after, limit=limit)
    return shapes.listed(page.rows, queue, next=page.next, count=page.count)


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
    return _depth(source, queue, found, depths.marks(viewer, source, queue, since, until))


def _depth(source: str, queue: str, found: depths.History, marks: list[depths.Mark]) -> dict[str, Any]:
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


SourceName = Annotated[str, Query(max_length=63), AfterValidator(representable)]
QueueName = Annotated[str, Query(max_length=200), AfterValidator(representable)]
Points = Annotated[int, Query(ge=2, le=depths.MOST)]


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
def get_depth(
    request: HttpRequest,
    source: SourceName,
    queue: QueueName,
    since: Moment | None = None,
    until: Moment | None = None,
    points: Points = depths.MOST,
) -> Any:
    """Return a queue's depth over time, in the shortest step stored that far back with at most `points`. Default: a day."""
    found = read_depth(request.auth, source, queue, since, until, points)
    # Made into text here: to check a thousand points one by one costs more than all the rest.
    return HttpResponse(json.dumps(found, separators=(",", ":")), content_type="application/json; charset=utf-8")


@api.post(
    "/releases", summary="Report Release", response={200: ReleaseItem, 201: ReleaseItem, **REFUSALS}, tags=["releases"]
)
@needs(OPERATOR)
def report_release(request: HttpRequest, body: Told) -> Any:
    """Report that a version was deployed. 201 if it is new; 200 if the version is already known."""
    found = releases.record_release(request.auth, body.source, body.version, body.at)
    made = found.release
    return Status(201 if found.is_new else 200, {"source": made.source, "version": made.version, "at": made.at})


PathName = Annotated[str, Path(max_length=63), AfterValidator(representable)]


class FetchedJob(Schema):
    job_id: str
    task: str
    queue: str


class Worker(Schema):
    """A guarded worker with a heartbeat in the last 24 h. Counts are since its start, over all its queues."""

    source: str
    worker: str
    boot: str  # one life of the worker
    host: str
    release: str
    guard: str  # version
    celery: str  # version
    pool: str
    concurrency: int | None
    queues: list[str]
    seen_at: datetime  # its last heartbeat
    is_alive: bool  # false: no heartbeat for 30 s
    mode: str  # off, capture, observe, enforce
    started: int
    succeeded: int
    failed: int
    retried: int
    spooled: int  # reports on its disk
    dropped: int  # reports that were lost
    memory: int | None  # resident bytes of its processes, summed; null: gone, or not reported
    policies: dict[str, int]  # name: version that it runs
    refused: dict[str, str]  # name: why it cannot use the version in force
    in_hand: int | None  # jobs that it fetched and has not finished; null: the store does not answer
    jobs: list[FetchedJob]  # the first five of them


class GoneWorker(Schema):
    """A worker without a heartbeat for 30 s, with jobs in hand."""

    source: str
    boot: str  # one life of the worker: hand it over to return its jobs
    worker: str
    seen_at: datetime  # its last heartbeat
    queues: list[str]
    held: int  # jobs that its broker holds for it: they return at `returns_at`, or now
    returns_at: datetime | None  # the earliest of them; null: none returns
    lost: int  # jobs that were acknowledged before they ran and that no policy files
    text: str
    fix: str


class Returned(Schema):
    returned: int  # jobs that are at the head of their queues again


def _stranded(one: stranded.Stranded) -> dict[str, Any]:
    same = ("source", "boot", "worker", "seen_at", "returns_at", "lost", "text", "fix")
    return {name: getattr(one, name) for name in same} | {"queues": list(one.queues), "held": len(one.tags)}


@api.get("/workers", response={200: shapes.Listed[Worker], **REFUSALS}, tags=["workers"])
@needs(VIEWER)
def list_workers(request: HttpRequest, after: AfterQueue = None, limit: Limit = 100) -> Any:
    """Return guarded workers, by source and name, with their queues, counts and jobs in hand."""
    if after and not listing.is_cursor(after):
        raise Refused("invalid", NO_CURSOR, "after")
    page = listing.worker_page(viewer_of(request), timezone.now(), after=after or "", limit=limit)
    return shapes.listed(page.rows, _worker, next=page.next, count=page.live + page.gone)


def _worker(row: listing.WorkerRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Worker.model_fields} | {"jobs": list(map(asdict, row.jobs))}


@api.get("/workers/gone", response={200: shapes.Listed[GoneWorker], **REFUSALS}, tags=["workers"])
@needs(VIEWER)
def list_gone_workers(request: HttpRequest) -> Any:
    """Return gone workers with jobs in hand, by source and last heartbeat."""
    found = stranded.list_stranded(request.auth)
    return shapes.listed(found, _stranded, next=None, count=len(found))


@api.post("/workers/{source}/{boot}/return", response={200: Returned, **REFUSALS}, tags=["workers"])
@needs(OPERATOR)
def return_jobs(request: HttpRequest, source: PathName, boot: PathName) -> Any:
    """Return the jobs of a gone worker to their queues now, each once.

    If the worker is only frozen, its jobs run twice.
    """
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    return {"returned": stranded.return_jobs(request.auth, source, boot)}
