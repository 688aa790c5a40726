"""What is broken now, and is it getting worse?"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.access import can
from dashboard.htmx import render_page
from jobs_admin.models.access import VIEWER


@require_GET
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return render_page(request, "overview/index.html", {}, part="overview")
