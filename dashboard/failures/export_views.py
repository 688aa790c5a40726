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
    response = downloads.failures(request.viewer, text, form)
    number = request.POST.get("download", "")
    if number.isdecimal() and number.isascii() and len(number) <= 20:
        # A download leaves the page as it is: by this cookie its button learns that the answer has begun (feedback.js).
        response.set_cookie("redrive-download", number, max_age=60, samesite="Lax")
    return response
