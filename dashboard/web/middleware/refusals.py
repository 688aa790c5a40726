"""Pages of what the engine does not find or refuses, where a view does not show it beside what was asked."""

from __future__ import annotations

from collections.abc import Callable

from django.http import Http404, HttpRequest, HttpResponse

from dashboard.web.htmx import render_error
from jobs_admin.core.refused import NotFound, Refused


class RefusalMiddleware:
    """Answers NotFound and Refused with their sentences. The API does so itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, NotFound):
            raise Http404(*exception.args) from exception
        if isinstance(exception, Refused):
            return render_error(request, exception.status, exception.message.removesuffix(" Nothing was changed."))
        return None
