"""The calls for pauses."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Status
from pydantic import Field, StrictInt

from dashboard.holds import api_shapes as pause_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, Body, Number, Text, api
from jobs_admin import holds
from jobs_admin.models.access import OPERATOR, VIEWER


class NewPause(Body):
    """A queue, or a task on all queues. `for_s`: seconds; null until resumed."""

    source: Text = Field(max_length=63)
    queue: Text = Field("", max_length=255)
    task: Text = Field("", max_length=255)
    reason: Text = Field(max_length=500)
    for_s: StrictInt | None = Field(None, ge=1, le=30 * 86_400)


@api.get("/pauses", response={200: shapes.Listed[pause_shapes.PauseItem], **REFUSALS}, tags=["pauses"])
@needs(VIEWER)
def list_pauses(request: HttpRequest, ended: bool = False) -> Any:
    """Return what is paused, latest first; with `ended` the latest 200 pauses that ended."""
    found = pause_shapes.pauses(request.auth, holds.listing(request.auth, ended=ended))
    return shapes.listed(found, lambda one: one, next=None, count=len(found))


@api.post("/pauses", response={201: pause_shapes.PauseItem, **REFUSALS}, tags=["pauses"])
@needs(OPERATOR)
def create_pause(request: HttpRequest, body: NewPause) -> Any:
    """Pause a queue or a task: within two seconds guarded workers start none of its jobs. 409 if it is paused already."""
    made = holds.pause(
        request.auth, body.source, queue=body.queue, task=body.task, reason=body.reason, for_s=body.for_s
    )
    return Status(201, pause_shapes.pause(request.auth, made))


@api.post("/pauses/{pause_id}/resume", response={200: pause_shapes.PauseItem, **REFUSALS}, tags=["pauses"])
@needs(OPERATOR)
def resume_pause(request: HttpRequest, pause_id: Number, body: Body | None = None) -> Any:
    """End the pause. All that waits starts as fast as workers take it: a pace is refused."""
    return pause_shapes.pause(request.auth, holds.resume(request.auth, pause_id))
