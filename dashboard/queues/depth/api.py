"""The calls for depth over time, and for releases, which are marks in it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Schema, Status
from pydantic import AfterValidator, Field

from dashboard.queues.depth import api_shapes
from dashboard.web.access import needs
from dashboard.web.api.base import REFUSALS, Body, Moment, Text, api
from jobs_admin.core.text import representable
from jobs_admin.desk import releases
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import depths

Source = Annotated[str, Query(max_length=63), AfterValidator(representable)]
Queue = Annotated[str, Query(max_length=200), AfterValidator(representable)]
Points = Annotated[int, Query(ge=2, le=depths.MOST)]


class ReleaseItem(Schema):
    source: str
    version: str
    at: datetime


class Told(Body):
    source: Text = Field(min_length=1, max_length=63)
    version: Text = Field(min_length=1, max_length=releases.LONGEST_VERSION)
    at: Moment | None = None  # now


@api.get("/depth", response={200: api_shapes.DepthHistory, **REFUSALS}, tags=["queues"])
@needs(VIEWER)
def get_depth(
    request: HttpRequest,
    source: Source,
    queue: Queue,
    since: Moment | None = None,
    until: Moment | None = None,
    points: Points = depths.MOST,
) -> Any:
    """Return a queue's depth over time, in the shortest step stored that far back with at most `points`. Default: a day."""
    found = api_shapes.read_depth(request.auth, source, queue, since, until, points)
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
