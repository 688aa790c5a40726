"""The page of an incident, from the first failure to the last recovered job, and its files."""

from __future__ import annotations

import json
from datetime import UTC
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.incidents import document as texts
from dashboard.incidents import report as incident_report
from dashboard.web import moments
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin import incidents
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import VIEWER

_TYPES = {"markdown": ("md", "text/markdown; charset=utf-8"), "json": ("json", "application/json")}


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    now, refusal, where = timezone.now(), None, None
    try:
        where = texts.span_from_query(request.viewer, request.GET, now)
    except Refused as error:
        refusal = error
    is_local = "time_zone" in request.GET or moments.zone_id() != "UTC"
    if where and is_local and (shared := texts.shared_query(request.GET)) != request.GET.dict():
        # What was typed in the reader's zone would be another time for whom the address is sent to.
        return HttpResponseRedirect(f"{request.path}?{urlencode(shared)}")
    incident = incidents.incident(request.viewer, where, now) if where else None
    context = {
        "report": incident_report.report(incident, now) if incident else None,
        "form_values": incident_report.form_values(request.GET, where),
        "refusal": refusal,
        "is_of_place": bool(request.GET.get("source")),
        "has_times": bool(request.GET.get("since") or request.GET.get("until")),
    }
    return render_page(
        request, "redrive/incidents/report.html", context, part="incident", status=400 if refusal else 200
    )


@require_safe
@can(VIEWER)
def as_text(request: HttpRequest, form: str) -> HttpResponse:
    """Return the report as Markdown or JSON, in UTC, with only what the page shows."""
    now = timezone.now()
    try:
        where = texts.span_from_query(request.viewer, request.GET, now)
    except Refused as error:
        return HttpResponse(error.message, status=400, content_type="text/plain; charset=utf-8")
    if where is None:
        return HttpResponse("No incident found.", status=404, content_type="text/plain; charset=utf-8")
    with timezone.override(UTC):
        incident = incidents.incident(request.viewer, where, now)
        body = texts.markdown(incident) if form == "markdown" else json.dumps(texts.document(incident), indent=1)
    ending, content_type = _TYPES[form]
    response = HttpResponse(body, content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="incident-{where.since:%Y%m%dT%H%MZ}.{ending}"'
    return response
