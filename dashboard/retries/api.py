"""The calls for retries that wait: when they are due, and how many attempts they may have."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Schema, Status
from pydantic import AwareDatetime, Field

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Body, Limit, Number, Reason, Text, api, page_of
from jobs_admin.models import Reschedule
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.retries import rescheduling
from jobs_admin.retries.rescheduling import Herd, Preview


class Asked(Body):
    q: Text = ""
    selection: list[int] = Field(default_factory=list, max_length=10_000)
    # {"due_at": ISO 8601 or "now", "curve": {"backoff", "cap_s", "jitter"}, "max_attempts"}, each as it is wanted
    change: dict[str, Any]


class Planned(Asked):
    reason: Text = Field("", max_length=500)
    highest: int | None = None  # of the preview: what came since is not in it


class RescheduleItem(Schema):
    id: int
    source: str
    state: str  # planned, done, stopped
    q: str
    selection: int  # how many were chosen by hand
    change: dict[str, Any]
    undo_of: int | None
    reason: str
    by: str
    created_at: AwareDatetime
    ended_at: AwareDatetime | None
    matched: int
    changed: int
    left: int  # looked at, and as they were
    why: str  # it was stopped
    url: str


class HerdItem(Schema):
    at_once: int  # due already
    busiest_second: int
    counts: list[int]  # in equal parts of `span_s`, from now


class ReschedulePreviewItem(Schema):
    source: str
    q: str
    matched: int
    beyond: int  # have made as many attempts already, and stay as they are
    looked: int  # the newest, of which all that follows is told
    highest: int
    lines: list[dict[str, Any]]  # attempts, jobs, and the shortest and longest wait before and after, in seconds
    before: HerdItem
    after: HerdItem
    span_s: float


def _item(found: Reschedule) -> dict[str, Any]:
    return {
        "id": found.pk,
        "source": found.source,
        "state": found.state,
        "q": found.query,
        "selection": len(found.selection),
        "change": found.change,
        "undo_of": found.undo_of_id,
        "reason": found.reason,
        "by": found.actor,
        "created_at": found.created_at,
        "ended_at": found.ended_at,
        "matched": found.matched,
        "changed": found.changed,
        "left": found.left,
        "why": found.why,
        "url": page_of("redrive:reschedule-detail", found.pk),
    }


def _herd(herd: Herd) -> dict[str, Any]:
    return {"at_once": herd.at_once, "busiest_second": herd.busiest, "counts": herd.counts}


def _preview(seen: Preview) -> dict[str, Any]:
    lines = [
        {"attempts": one.attempts, "jobs": one.jobs, "before_s": one.before, "after_s": one.after} for one in seen.lines
    ]
    return {
        "source": seen.source,
        "q": seen.query,
        "matched": seen.matched,
        "beyond": seen.beyond,
        "looked": seen.sample_size,
        "highest": seen.highest,
        "lines": lines,
        "before": _herd(seen.before),
        "after": _herd(seen.after),
        "span_s": seen.span_s,
    }


@api.post("/retries/preview", response={200: ReschedulePreviewItem, **REFUSALS}, tags=["retries"])
@needs(OPERATOR)
def preview_reschedule(request: HttpRequest, body: Asked) -> Any:
    """Return the effects of a change on waiting retries. Changes nothing."""
    return _preview(rescheduling.preview(request.auth, query=body.q, selection=body.selection, change=body.change))


@api.post("/retries", response={201: RescheduleItem, **REFUSALS}, tags=["retries"])
@needs(OPERATOR)
def create_reschedule(request: HttpRequest, body: Planned) -> Any:
    """Reschedule waiting retries. `watch` applies the change within seconds."""
    made = rescheduling.plan(
        request.auth,
        query=body.q,
        selection=body.selection,
        change=body.change,
        reason=body.reason,
        highest=body.highest,
    )
    return Status(201, _item(made))


@api.get("/retries", response={200: shapes.Listed[RescheduleItem], **REFUSALS}, tags=["retries"])
@needs(VIEWER)
def list_reschedules(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    page = rescheduling.listing(request.auth, after=after, limit=limit)
    return {"items": [_item(row) for row in page.rows], "next": page.next, "count": page.count}


@api.get("/retries/{reschedule_id}", response={200: RescheduleItem, **REFUSALS}, tags=["retries"])
@needs(VIEWER)
def get_reschedule(request: HttpRequest, reschedule_id: Number) -> Any:
    return _item(rescheduling.find(request.auth, reschedule_id))


@api.post("/retries/{reschedule_id}/undo", response={201: RescheduleItem, **REFUSALS}, tags=["retries"])
@needs(OPERATOR)
def undo_reschedule(request: HttpRequest, reschedule_id: Number, body: Reason) -> Any:
    """Undo the change for retries that are still waiting unchanged."""
    viewer = request.auth
    back = rescheduling.undo(viewer, rescheduling.find(viewer, reschedule_id), reason=body.reason)
    return Status(201, _item(back))
