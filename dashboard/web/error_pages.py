"""Error pages for requests that found nothing, were refused or failed, and the middleware that returns them.

htmx only gets the message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse

from dashboard.web.access import READS, record_refusal
from dashboard.web.htmx import render_error, render_to_string
from jobs_admin.core.refused import NotFound, Refused

NO_DATABASE = (
    "The desk's database is unreachable, locked or full. Workers and queues are not affected: reports wait until the database is back. "
    "Check the database; the error is in the desk's log."
)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Django's own 404 carries a dict of URLs it tried; Redrive's carries a message.
    message = exception.args[0] if exception.args and isinstance(exception.args[0], str) else ""
    return render_error(request, 404, message or "The record may have been pruned, or the address is misspelled.")


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the page of a refusal; a refused act is recorded."""
    record_refusal(request, str(exception))
    return render_error(request, 403, str(exception) or "You are not allowed to do this.")


def failed(request: HttpRequest) -> HttpResponse:
    """Return the page for a request that raised an exception; without a database, a page that does not read it."""
    if not _is_without_database(sys.exc_info()[1]):
        return render_error(request, 500, "The request failed. The error was logged.")
    if request.resolver_match and getattr(request.resolver_match.func, "is_call", False):
        from dashboard.web.api import errors  # requires loaded apps

        return errors.answer(503, "unreachable", NO_DATABASE)
    if request.headers.get("HX-Request"):
        return HttpResponse(NO_DATABASE, content_type="text/plain; charset=utf-8", status=503)
    is_change = request.method not in READS
    text = render_to_string("redrive/no_database.html", {"sentence": NO_DATABASE, "is_change": is_change})
    return HttpResponse(text, status=503)


# SQLite's primary codes: busy, locked, I/O error, full, cannot open. PostgreSQL's classes: connection, resources,
# operator intervention; a failed connection has no state.
_SQLITE_CODES = frozenset({5, 6, 10, 13, 14})
_SQL_STATES = ("08", "53", "57P")


def _is_without_database(error: BaseException | None) -> bool:
    """Return whether the database did not answer or could not store; False for a statement that it rejected."""
    if not isinstance(error, (OperationalError, InterfaceError)):
        return False
    code, state = getattr(error.__cause__, "sqlite_errorcode", None), getattr(error.__cause__, "sqlstate", None)
    return code & 0xFF in _SQLITE_CODES if code is not None else state is None or state.startswith(_SQL_STATES)


class RefusalMiddleware:
    """Middleware that answers missing, forbidden or refused requests with a message. The API does so itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, (NotFound, Http404)):
            return not_found(request, exception)
        if isinstance(exception, PermissionDenied):
            return not_allowed(request, exception)
        if isinstance(exception, Refused):
            return render_error(request, exception.status, exception.message.removesuffix(" Nothing was changed."))
        return None
