"""The page of sources: trusted sources and their keys, sources to accept, refused reports."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.queues.sources import signing as source_signing
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, VIEWER, Viewer
from jobs_admin.trust import admission


@require_safe
@can(ADMIN)
def index(request: HttpRequest) -> HttpResponse:
    context = source_signing.page(request.viewer, timezone.now())
    return render_page(request, "redrive/sources/list.html", context, part="sources")


@require_POST
@can(ADMIN_OF_ALL)
def accept(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.accept, "The source {source} is accepted. {count} to be filed.")


@require_POST
@can(ADMIN_OF_ALL)
def discard(request: HttpRequest, source: str) -> HttpResponse:
    return _act(
        request,
        source,
        admission.discard,
        "{count} of {source} deleted. The next report of {source} adds it to the list again.",
    )


@require_POST
@can(ADMIN)
def file(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.file_unsigned, "{count} of {source} to be filed.")


@require_POST
@can(ADMIN)
def discard_refused(request: HttpRequest, source: str) -> HttpResponse:
    return _act(request, source, admission.discard_refused, "{count} of {source} deleted.")


def _act(request: HttpRequest, source: str, act: Callable[[Viewer, str], int], done: str) -> HttpResponse:
    if not request.viewer.may(VIEWER, source):
        raise Http404("Source not found, or not visible to you.")
    try:
        count = act(request.viewer, source)
    except Refused as refused:
        if refused.code == "forbidden":
            raise PermissionDenied(refused.message) from refused
        add_toast(request, str(refused), level="error")
    else:
        add_toast(request, done.format(source=source, count=f"{count:,} report{'' if count == 1 else 's'}"))
    return go(request, reverse("redrive:source-list"))
