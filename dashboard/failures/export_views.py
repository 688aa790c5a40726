"""Any search as a file. A POST, because taking data out is written down, and a GET changes nothing."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from dashboard.failures import downloads
from dashboard.web.access import can
from jobs_admin.failures import exporting
from jobs_admin.models.access import VIEWER


@require_POST
@can(VIEWER)
def failures(request: HttpRequest, form: str) -> HttpResponse:
    text = request.POST.get("q", "").strip()
    exporting.note(request.viewer, text, form)
    return downloads.failures(request.viewer, text, form)
