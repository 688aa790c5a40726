"""The page of an incident, from the first failure to the last recovered job, and its files."""

from __future__ import annotations

import json

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.incidents import document as texts
from dashboard.incidents import report as incident_report
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
    """Nothing leaves the desk that the page does not show."""
    now = timezone.now()
    try:
        where = texts.span_from_query(request.viewer, request.GET, now)
    except Refused as error:
        return HttpResponse(error.message, status=400, content_type="text/plain; charset=utf-8")
    if where is None:
        return HttpResponse("No incident found.", status=404, content_type="text/plain; charset=utf-8")
    incident = incidents.incident(request.viewer, where, now)
    body = texts.markdown(incident) if form == "markdown" else json.dumps(texts.document(incident), indent=1)
    ending, content_type = _TYPES[form]
    response = HttpResponse(body, content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="incident-{where.since:%Y%m%dT%H%MZ}.{ending}"'
    return response
