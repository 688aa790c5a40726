"""Rendering of pages and parts with Redrive's own template engine, independent of a project's TEMPLATES.

Defines what htmx gets, what a browser without it gets, and what is unchanged between two requests.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any

import django
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, HttpResponseRedirect
from django.template.backends.django import DjangoTemplates
from django.template.context import make_context
from django.utils.cache import patch_vary_headers

from dashboard import TEMPLATES
from dashboard.web import time_range

# The CSRF token is masked anew in each response: parts that differ only in it are equal.
_TOKEN = re.compile(rb'csrfmiddlewaretoken" value="[^"]*"')

LONGEST_URL = 8_000


def render_page(request: HttpRequest, page: str, context: dict, *, part: str, status: int = 200) -> HttpResponse:
    """Render `page`, or only its `part` if htmx requested a swap.

    The back button loads a page, not a part: htmx requests an evicted entry again with HX-Request set, and would show a
    bare part instead of the document. A part that the client already has (If-None-Match) is answered with 304.
    """
    # Imports the models, which are not loaded when the gateway imports this module.
    from dashboard.web import source_switcher

    swap = request.htmx and not request.htmx.history_restore_request and not request.htmx.boosted
    text = render_to_string(f"{page}#{part}" if swap else page, context, request)
    if swap and source_switcher.has_menus_to_update(request):
        text += render_to_string("redrive/parts/source_menus_out_of_band.html", request=request)
    # A lone surrogate, which JSON may contain, becomes JSON's own escape: UTF-8 cannot encode it.
    response = HttpResponse(text.encode("utf-8", "backslashreplace"), status=status)
    if swap:
        # Read last: rendering may have added messages.
        messages = render_to_string("redrive/parts/messages_out_of_band.html", request=request)
        if messages.strip():
            response.write(messages)
        elif request.method == "GET" and status == 200:
            response = _unless_known(request, response)
    else:
        time_range.remember(request, response)
    patch_vary_headers(response, ["HX-Request", "HX-History-Restore-Request"])
    return response


def stay(request: HttpRequest) -> HttpResponse:
    """Return a refusal for htmx: only the message, so that the page keeps its selection and typed text."""
    messages = render_to_string("redrive/parts/messages_out_of_band.html", request=request)
    return HttpResponse(messages, status=422, headers={"HX-Reswap": "none"})


def go(request: HttpRequest, url: str) -> HttpResponse:
    """Return the response that leads to `url` after an act, for forms and htmx (which would swap in a redirect).

    If the search makes the URL longer than servers accept, it leads to the page without the search.
    """
    if len(url) > LONGEST_URL:
        url = url.partition("?")[0]
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def _unless_known(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    digest = hashlib.sha256(_TOKEN.sub(b"", response.content)).hexdigest()[:32]
    etag = f'"{digest}"'
    # Compression makes the ETag weak (W/"…"), and the client sends it back in that form.
    if request.headers.get("If-None-Match", "").removeprefix("W/") == etag:
        return HttpResponseNotModified(headers={"ETag": etag})
    response.headers["ETag"] = etag
    return response


def render_error(request: HttpRequest, status: int, sentence: str) -> HttpResponse:
    """Return the page of what is missing, forbidden or failed; for htmx only the message."""
    if request.headers.get("HX-Request"):
        return HttpResponse(sentence, content_type="text/plain; charset=utf-8", status=status)
    # A refusal for a reason other than a missing right is shown the same way.
    template = f"redrive/{status if status in (403, 404, 500, 503) else 403}.html"
    return HttpResponse(render_to_string(template, {"sentence": sentence}, request), status=status)


@cache
def engine() -> DjangoTemplates:
    loader: Any = ("django.template.loaders.cached.Loader", ["django.template.loaders.filesystem.Loader"])
    builtins = []
    if django.VERSION < (6, 0):  # Django 6 has `{% partialdef %}` itself
        loader, builtins = ("template_partials.loader.Loader", [loader]), ["template_partials.templatetags.partials"]
    options = {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
        ],
        "builtins": builtins,
        "loaders": [loader],
        "libraries": {"redrive": "dashboard.templatetags.redrive"},
    }
    return DjangoTemplates({"NAME": "redrive", "DIRS": [TEMPLATES], "APP_DIRS": False, "OPTIONS": options})


def render_to_string(name: str, context: dict | None = None, request: HttpRequest | None = None) -> str:
    """Render a template, or the part of it that follows `#` in its name."""
    bound = make_context(context, request, autoescape=True)
    bound.use_l10n = False  # a project's separators would break numbers in URLs and charts
    return engine().get_template(name).template.render(bound)


def render(request: HttpRequest, name: str, context: dict | None = None, status: int = 200) -> HttpResponse:
    return HttpResponse(render_to_string(name, context, request), status=status)
