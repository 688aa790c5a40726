"""The calls for the audit. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import AfterValidator

from dashboard.web import downloads
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, api, viewer_of
from jobs_admin.core.text import representable
from jobs_admin.db import audit, audit_export
from jobs_admin.models.access import AUDITOR

Word = Annotated[str, Query(max_length=120), AfterValidator(representable)]
Id = Annotated[int, Query(ge=0, lt=2**63)]


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
    mac: str


@api.get("/audit", response={200: shapes.Listed[AuditItem], **REFUSALS}, tags=["audit"])
@needs(AUDITOR)
def list_audit_events(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    """Return the audit, latest first: changes and refused attempts with their user. Needs the role auditor
    or admin; with the role on one source, only its entries."""
    page = audit.list_events(viewer_of(request), after=after, limit=limit)
    return shapes.listed(
        page.rows, audit_export.document, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )


@api.get("/audit/export", response={200: None, **REFUSALS}, tags=["audit"])
@needs(AUDITOR)
def export_audit(
    request: HttpRequest, form: Literal["jsonl", "csv"] = "jsonl", act: Word = "", object: Word = "", after: Id = 0
) -> Any:
    """Export the audit as JSON lines or CSV, oldest first. `act` matches by prefix, `object` exactly; `after`: only
    entries with a higher id."""
    pieces = audit_export.stream(viewer_of(request), form, act=act.strip(), object=object.strip(), after=after)
    return downloads.stream(pieces, "audit", form)
