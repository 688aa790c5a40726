"""Requests without a login: the redirect to the login, and back to a readable page afterwards.

A session may end while a page is open, at the latest a day after it began. An act on that page then changes nothing,
and as little as possible of the typed text is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import Resolver404, get_script_prefix, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

from dashboard.web.access import READS, address_name
from jobs_admin import config

WAYS_IN = frozenset({"login", "login-code", "login-set-up", "sign-on", "sign-on-callback"})
LOGGED_OUT = "You are logged out. Nothing was changed."


class EntranceMiddleware(LoginRequiredMiddleware):
    """Middleware that answers anonymous requests with `turned_away`."""

    def handle_no_permission(self, request: HttpRequest, view_func: Callable[..., HttpResponse]) -> HttpResponse:
        return turned_away(request)


def turned_away(request: HttpRequest) -> HttpResponse:
    """Return the redirect to the login; for htmx a 401 with the message and the login's URL, so that the page stays.

    The login leads to the requested page, or for an act or part, to the page that sent the request.
    """
    is_part = bool(request.headers.get("HX-Request"))
    is_page = request.method in READS and not is_part
    after = (
        (page_at(request, request.get_full_path()) if is_page else "")
        or page_of(request)
        or reverse("redrive:overview")
    )
    login = resolve_url(settings.LOGIN_URL)
    if urlsplit(login).netloc not in {"", request.get_host()}:
        after = request.build_absolute_uri(after)
    login = redirect_to_login(after, login).url
    if is_part:
        extra = {"Redrive-Login": login, "Cache-Control": "no-store"}
        answer = HttpResponse(LOGGED_OUT, content_type="text/plain; charset=utf-8", status=401, headers=extra)
        # An open page polls every few seconds: not worth a log line each.
        answer._has_been_logged = True
        return answer
    if request.method not in READS and request.path != reverse("redrive:logout"):
        messages.warning(request, f"{LOGGED_OUT} Log in, then try again.")
    return HttpResponseRedirect(login)


def page_of(request: HttpRequest) -> str:
    """Return the page of this desk that sent the request; "" if the request names none."""
    return page_at(request, request.headers.get("HX-Current-URL") or request.headers.get("Referer") or "")


def page_at(request: HttpRequest, url: str) -> str:
    """Return path and query of `url` if it is a page of this desk that answers GET, and not the login; else ""."""
    from dashboard.web.rights import methods  # requires loaded apps

    if not url_has_allowed_host_and_scheme(url, {request.get_host()}):
        return ""
    parts = urlsplit(url)
    prefix = get_script_prefix()
    if not parts.path.startswith(prefix):
        return ""
    try:
        match = resolve("/" + parts.path.removeprefix(prefix))
    except Resolver404:
        return ""
    # Other pages of a host project are not the desk's; Django's admin is in Redrive's own project.
    if "redrive" not in match.app_names and not (config.is_own_project() and match.app_names == ["admin"]):
        return ""
    name = address_name(match)
    if name in WAYS_IN or "GET" not in methods(match.func, name):
        return ""
    page = parts._replace(scheme="", netloc="", fragment="").geturl()
    # "//elsewhere/", although a path of this desk, would be another host's URL.
    return page if url_has_allowed_host_and_scheme(page, None) else ""
