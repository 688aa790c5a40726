"""REDRIVE_READ_ONLY: refuses every change by pages, forms of Django's admin and API calls."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from dashboard.web.access import READS, address_name
from jobs_admin import config
from jobs_admin.desk import overview

# Logging in and out stays possible; previews and backtests only read, but their arguments are too long for a URL; an
# export only reads, and is a POST because it is audited.
HARMLESS = frozenset(
    {
        "login",
        "login-code",
        "login-set-up",
        "logout",
        "admin:login",
        "admin:logout",
        "api:preview_replay",
        "api:preview_policy",
        "api:preview_reschedule",
        "api:preview_alert_rule",
        "api:backtest_policy",
        "audit-export",
        "failure-export",
        "slack",  # its answer is the refusal
        "policy-preview",
        "policy-backtest",
        "alert-rule-preview",
    }
)


class ReadOnlyMiddleware:
    """Middleware that refuses every request that could change something, before its view; services refuse it too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.method not in READS:
            overview.forget()  # the acting user sees the result at once
        return response

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: object, kwargs: object
    ) -> HttpResponse | None:
        if request.method in READS or not config.is_read_only() or _is_harmless(request):
            return None
        if getattr(view, "is_call", False):
            return _refused_call(request)
        raise PermissionDenied(config.READ_ONLY)


def _is_harmless(request: HttpRequest) -> bool:
    name = address_name(request.resolver_match)
    return name in HARMLESS or (name in {"replay-new", "reschedule-new"} and request.POST.get("step") != "start")


def _refused_call(request: HttpRequest) -> HttpResponse | None:
    """Return the refusal in the API's shape; None without a token, which the call itself refuses."""
    from dashboard.web import access  # requires loaded apps
    from dashboard.web.api import errors

    viewer = access.viewer_of_request(request)
    if viewer is None:
        return None
    errors.note_refusal(request, viewer, config.READ_ONLY)
    return errors.answer(403, "read_only", config.READ_ONLY)
