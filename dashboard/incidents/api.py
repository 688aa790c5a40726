"""The API call of an incident: the data of its page as one document."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Schema

from dashboard.incidents import document as texts
from dashboard.web.access import needs
from dashboard.web.api.base import REFUSALS, api
from jobs_admin import incidents
from jobs_admin.models.access import VIEWER


class Moment(Schema):
    at: str
    kind: str  # failing, calm, back, alert, release, policy, replay, group
    what: str  # began, over, fired, acknowledged, resolved, started, held, done …
    words: str
    who: str  # "": nobody, or the engine
    why: str
    url: str | None


class Act(Schema):
    at: str
    who: str
    act: str
    object: str
    reason: str
    allowed: bool


class Tenant(Schema):
    tenant: str  # "" of jobs that name none
    jobs: int


class IncidentDependency(Schema):
    dependency: str
    jobs: int  # of those that tenants are counted over


class IncidentCounts(Schema):
    attempts_failed: int
    times_died: int
    attempts_recovered: int
    jobs: dict[str, int]  # by state now, of those that were first heard of meanwhile
    jobs_are_capped: bool
    dead_most: int | None  # at once; null: no sample is kept, or no queue is named


class Incident(Schema):
    source: str
    queue: str  # "": every queue of the source
    since: str
    until: str
    is_going_on: bool
    url: str
    failures_url: str
    failing_since: str | None
    failing_until: str | None
    last_back_at: str | None  # when no more jobs lay dead than at the beginning
    counts: IncidentCounts
    tenants: list[Tenant]
    more_tenants: int
    dependencies: list[IncidentDependency]
    tenants_counted_over: int  # jobs, the newest
    timeline: list[Moment]  # the oldest first
    step_s: int
    series: list[tuple[str, int, int, int | None]]  # time, attempts failed, attempts recovered, dead
    acts: list[Act] | None  # null: the audit is read by auditors and admins of the source


@api.get("/incident", response={200: Incident, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_incident(request: HttpRequest, source: str = "", queue: str = "", since: str = "", until: str = "") -> Any:
    """Return one outage, from its first failure to the last recovered job. Without times, the latest outage."""
    now = timezone.now()
    given = {"source": source, "queue": queue, "since": since, "until": until}
    where = texts.span_from_query(request.auth, given, now)
    if where is None:
        raise Http404
    return texts.document(incidents.incident(request.auth, where, now))
