"""The pages for what is not there, not allowed, or broken. htmx gets the sentence alone."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from dashboard.web.access import record_refusal
from dashboard.web.htmx import render_error
from dashboard.web.middleware.entrance import page_of, turned_away


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Django's own 404 carries a dict of tried addresses; ours carries a sentence.
    message = exception.args[0] if exception.args and isinstance(exception.args[0], str) else ""
    return render_error(request, 404, message or "The record may have been pruned, or the address is misspelled.")


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Refused; an act that was refused is written down."""
    record_refusal(request, str(exception))
    return render_error(request, 403, str(exception) or "You are not allowed to do this.")


def failed(request: HttpRequest) -> HttpResponse:
    return render_error(request, 500, "The request failed. The error was logged.")


def took_too_long(request: HttpRequest, sentence: str) -> HttpResponse:
    """The request's time was over (`dashboard.web.limits`)."""
    return render_error(request, 503, sentence)


def forgery(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The form is too old, or came from another site; or one of ours came from a page whose session ended."""
    if not request.user.is_authenticated and page_of(request):
        return turned_away(request)
    return render_error(request, 403, "This form has expired or was not sent from this desk. Reload the page.")
