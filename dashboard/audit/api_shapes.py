"""API shapes of the audit. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin.models import AuditEvent


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
