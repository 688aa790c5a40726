"""Pages and their parts: what htmx gets, what a browser without it gets, and what stays the same between two looks."""

from __future__ import annotations

import hashlib
import re

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, HttpResponseRedirect
from django.utils.cache import patch_vary_headers

from dashboard.web.templates import render_to_string

# The CSRF token is masked anew in each answer: what differs only by it is the same part.
_TOKEN = re.compile(rb'csrfmiddlewaretoken" value="[^"]*"')

LONGEST_URL = 8_000


def render_page(request: HttpRequest, page: str, context: dict, *, part: str, status: int = 200) -> HttpResponse:
    """Render `page`, or only its `part` when htmx asked for a swap.

    The back button is a page, not a swap: htmx re-fetches a forgotten entry with
    HX-Request set, and would put a bare part where the document belongs.
    A part that is what the asker already has (If-None-Match) is answered with 304.
    """
    swap = request.htmx and not request.htmx.history_restore_request and not request.htmx.boosted
    text = render_to_string(f"{page}#{part}" if swap else page, context, request)
    # Half of a surrogate pair, which JSON may hold, stands as JSON's own escape: UTF-8 has no bytes for it.
    response = HttpResponse(text.encode("utf-8", "backslashreplace"), status=status)
    if swap:
        # Read only now: rendering may have added messages.
        messages = render_to_string("redrive/parts/messages_out_of_band.html", request=request)
        if messages.strip():
            response.write(messages)
        elif request.method == "GET" and status == 200:
            response = _unless_known(request, response)
    patch_vary_headers(response, ["HX-Request", "HX-History-Restore-Request"])
    return response


def stay(request: HttpRequest) -> HttpResponse:
    """Return a refusal for htmx: the message alone, so that the page keeps its selection and typed text."""
    messages = render_to_string("redrive/parts/messages_out_of_band.html", request=request)
    return HttpResponse(messages, status=422, headers={"HX-Reswap": "none"})


def go(request: HttpRequest, url: str) -> HttpResponse:
    """After an act: on to `url`, for a form and for htmx alike (a redirect would be followed inside the swap).

    Where a search would make the address longer than servers read, the page without it.
    """
    if len(url) > LONGEST_URL:
        url = url.partition("?")[0]
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def _unless_known(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    digest = hashlib.sha256(_TOKEN.sub(b"", response.content)).hexdigest()[:32]
    etag = f'"{digest}"'
    # Compression makes it weak (W/"…") on its way out, and so it comes back.
    if request.headers.get("If-None-Match", "").removeprefix("W/") == etag:
        return HttpResponseNotModified(headers={"ETag": etag})
    response.headers["ETag"] = etag
    return response


def render_error(request: HttpRequest, status: int, sentence: str) -> HttpResponse:
    """The page of what is not there, not allowed, or broken; for htmx the sentence alone."""
    if request.headers.get("HX-Request"):
        return HttpResponse(sentence, content_type="text/plain; charset=utf-8", status=status)
    # A refusal for another reason than a missing right is shown like one.
    template = f"redrive/{status if status in (403, 404, 500, 503) else 403}.html"
    return HttpResponse(render_to_string(template, {"sentence": sentence}, request), status=status)
