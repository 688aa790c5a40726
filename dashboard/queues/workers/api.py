"""The calls for workers that are gone, and the jobs that they had fetched."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from ninja import Path, Schema
from pydantic import AfterValidator

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, api
from jobs_admin.core.text import representable
from jobs_admin.fleet import stranded
from jobs_admin.models.access import OPERATOR, VIEWER

Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]


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


@api.get("/workers/gone", response={200: shapes.Listed[GoneWorker], **REFUSALS}, tags=["workers"])
@needs(VIEWER)
def list_gone_workers(request: HttpRequest) -> Any:
    """Workers that are gone with jobs in hand, by source and last heartbeat."""
    found = stranded.list_stranded(request.auth)
    return shapes.listed(found, _answer, next=None, count=len(found))


@api.post("/workers/{source}/{boot}/return", response={200: Returned, **REFUSALS}, tags=["workers"])
@needs(OPERATOR)
def return_jobs(request: HttpRequest, source: Name, boot: Name) -> Any:
    """Put the jobs of a worker that is gone back on their queues now, each once.

    A worker that is only frozen goes on, and its job then runs twice.
    """
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    return {"returned": stranded.return_jobs(request.auth, source, boot)}
