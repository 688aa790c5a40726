"""The call for the audit. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Schema

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, api, viewer_of
from jobs_admin.db import audit as audit_log
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import AUDITOR


class AuditItem(Schema):
    id: int
    who: str
    when: datetime
    act: str
    source: str
    object: str
    reason: str
    before: Any
    after: Any
    allowed: bool


def audit(row: AuditEvent) -> dict[str, Any]:
    same = ("id", "act", "source", "object", "reason", "before", "after", "allowed")
    return {name: getattr(row, name) for name in same} | {"who": row.actor, "when": row.at}


@api.get("/audit", response={200: shapes.Listed[AuditItem], **REFUSALS}, tags=["audit"])
@needs(AUDITOR)
def list_audit_events(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    """Return the audit, latest first: changes and refused attempts with their user. Needs the role auditor
    or admin; with the role on one source, only its entries."""
    page = audit_log.list_events(viewer_of(request), after=after, limit=limit)
    return shapes.listed(page.rows, audit, next=page.next, count=page.count, count_is_capped=page.count_is_capped)
