"""An incident as one thing to show or to write down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobs_admin.incidents.counts import Counts, counts
from jobs_admin.incidents.ids import first_since
from jobs_admin.incidents.moments import Moment, moments
from jobs_admin.incidents.over_time import OverTime, over_time
from jobs_admin.incidents.spans import Span
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import ADMIN, Viewer

MOST_ACTS = 100


@dataclass(frozen=True, slots=True)
class Act:
    """A row of the audit."""

    at: datetime
    who: str
    act: str
    object: str
    reason: str
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class Incident:
    where: Span
    timeline: list[Moment]  # the oldest first
    counts: Counts
    seen: OverTime
    acts: list[Act] | None  # the newest MOST_ACTS, the oldest first; None: only admins of the source read its audit
    has_more_acts: bool


def incident(viewer: Viewer, where: Span, now: datetime) -> Incident:
    """Return the incident of a span that `span` returned to this viewer."""
    seen = over_time(viewer, where, now)
    acts = _acts(where) if viewer.may(ADMIN, where.source) else None
    return Incident(
        where,
        moments(viewer, where, seen),
        counts(where, seen),
        seen,
        acts[-MOST_ACTS:] if acts is not None else None,
        acts is not None and len(acts) > MOST_ACTS,
    )


def _acts(where: Span) -> list[Act]:
    """Return the acts done, or refused, at the source meanwhile; oldest first, one more than MOST_ACTS at most."""
    lowest, highest = first_since(AuditEvent, "at", where.since), first_since(AuditEvent, "at", where.until)
    rows = AuditEvent.objects.filter(
        pk__gte=lowest, pk__lte=highest, source=where.source, at__gte=where.since, at__lte=where.until
    )
    columns = ("at", "actor", "act", "object", "reason", "allowed")
    return [Act(*row) for row in rows.order_by("-pk").values_list(*columns)[: MOST_ACTS + 1]][::-1]
