"""Pages of what the engine does not find or refuses, where a view does not show it beside what was asked."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from dashboard.web import error_pages
from dashboard.web.htmx import render_error
from jobs_admin.core.refused import NotFound, Refused


class RefusalMiddleware:
    """Answers what is missing, forbidden or refused with its sentence. The API does so itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, (NotFound, Http404)):
            return error_pages.not_found(request, exception)
        if isinstance(exception, PermissionDenied):
            return error_pages.not_allowed(request, exception)
        if isinstance(exception, Refused):
            return render_error(request, exception.status, exception.message.removesuffix(" Nothing was changed."))
        return None
