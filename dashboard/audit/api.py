"""The call for the audit."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from dashboard.audit import api_shapes as audit_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, api, viewer_of
from jobs_admin.db import audit as audit_log
from jobs_admin.models.access import ADMIN


@api.get("/audit", response={200: shapes.Listed[audit_shapes.AuditItem], **REFUSALS}, tags=["audit"])
@needs(ADMIN)
def list_audit_events(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    """Return the audit, latest first: changes and refused attempts with their user. Needs the role admin; admins
    of one source see its entries only."""
    page = audit_log.list_events(viewer_of(request), after=after, limit=limit)
    return shapes.listed(
        page.rows, audit_shapes.audit, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )
