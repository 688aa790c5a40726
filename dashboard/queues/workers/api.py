"""The calls for workers, and for the jobs that gone ones had fetched."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Path, Schema
from pydantic import AfterValidator

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import NO_CURSOR, REFUSALS, AfterQueue, Limit, api, viewer_of
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.fleet import listing, stranded
from jobs_admin.models.access import OPERATOR, VIEWER

Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]


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


def _answer(one: stranded.Stranded) -> dict[str, Any]:
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
    return shapes.listed(found, _answer, next=None, count=len(found))


@api.post("/workers/{source}/{boot}/return", response={200: Returned, **REFUSALS}, tags=["workers"])
@needs(OPERATOR)
def return_jobs(request: HttpRequest, source: Name, boot: Name) -> Any:
    """Return the jobs of a gone worker to their queues now, each once.

    If the worker is only frozen, its jobs run twice.
    """
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    return {"returned": stranded.return_jobs(request.auth, source, boot)}
