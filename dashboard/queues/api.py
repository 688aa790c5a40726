"""The call for queues."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from dashboard.queues import api_shapes as queue_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import NO_CURSOR, REFUSALS, AfterQueue, Limit, api, viewer_of
from jobs_admin import queues
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import VIEWER


@api.get("/queues", response={200: shapes.Listed[queue_shapes.Queue], **REFUSALS}, tags=["queues"])
@needs(VIEWER)
def list_queues(request: HttpRequest, after: AfterQueue = None, limit: Limit = 100) -> Any:
    """Return the queues, most dead jobs first, then most failed attempts."""
    if after and not queues.is_cursor(after):
        raise Refused("invalid", NO_CURSOR, "after")
    page = queues.queue_page(viewer_of(request), after=after, limit=limit)
    return shapes.listed(page.rows, queue_shapes.queue, next=page.next, count=page.count)
