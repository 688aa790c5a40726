"""Who is not logged in: the way to the login, and from there back to a page that can be looked at.

A session ends while a page stands open, at the latest a day after it began. What is then pressed on that page changes
nothing, and loses as little as can be of what was typed there.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.templatetags.static import static
from django.urls import Resolver404, get_script_prefix, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

from dashboard.web.access import READS, address_name

LOGGED_OUT = "You are logged out. Nothing was changed."


class EntranceMiddleware(LoginRequiredMiddleware):
    """Whoever is not logged in comes no further than to the answer of `turned_away`."""

    def handle_no_permission(self, request: HttpRequest, view_func: Callable[..., HttpResponse]) -> HttpResponse:
        return turned_away(request)


def turned_away(request: HttpRequest) -> HttpResponse:
    """The login as a page; for htmx 401, the sentence, and where the login is: the page one is on stays as it is.

    The login leads on to what was asked for, or, where that was an act or a part, to the page that it was asked from.
    """
    is_part = bool(request.headers.get("HX-Request"))
    is_page = request.method in READS and not is_part
    after = (
        (page_at(request, request.get_full_path()) if is_page else "")
        or page_of(request)
        or reverse("redrive:overview")
    )
    login = f"{resolve_url(settings.LOGIN_URL)}?{urlencode({'next': after}, safe='/')}"
    if is_part:
        said = {
            "Redrive-Login": login,
            "Redrive-Script": static("redrive/js/logged_out.js"),
            "Cache-Control": "no-store",
        }
        answer = HttpResponse(LOGGED_OUT, content_type="text/plain; charset=utf-8", status=401, headers=said)
        # A page that stands open asks every few seconds: no news for the log.
        answer._has_been_logged = True
        return answer
    if request.method not in READS and request.path != reverse("redrive:logout"):
        messages.warning(request, f"{LOGGED_OUT} Log in, then do it again.")
    return HttpResponseRedirect(login)


def page_of(request: HttpRequest) -> str:
    """The page of this desk that the request was sent from; "" where it is not told, or is none."""
    return page_at(request, request.headers.get("HX-Current-URL") or request.headers.get("Referer") or "")


def page_at(request: HttpRequest, url: str) -> str:
    """Path and search of `url`, if it is a page of this desk that can be looked at by GET, and not the login; else ""."""
    from dashboard.web.rights import methods  # not before the apps are loaded

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
    name = address_name(match)
    if name == "login" or "GET" not in methods(match.func, name):
        return ""
    page = parts._replace(scheme="", netloc="", fragment="").geturl()
    # "//elsewhere/" as a path of this desk would be another's address.
    return page if url_has_allowed_host_and_scheme(page, None) else ""
