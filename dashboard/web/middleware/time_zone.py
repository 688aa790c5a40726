"""Pages in UTC, or in the time zone that their reader has chosen. The API, exports, notices and the terminal are always in UTC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

COOKIE = "redrive-time-zone"  # set by the switch of the page: a name of the IANA database, such as Europe/Berlin
HEADER, FIELD = "X-Time-Zone", "time_zone"


class TimeZoneMiddleware:
    """Activate the zone of the page for the request; UTC if none is named.

    An open page stays in its zone when another tab switches: its script sends the zone along, as a header or with the form.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with timezone.override(UTC):
            return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: object, kwargs: object
    ) -> None:
        if getattr(view, "is_call", False):
            return
        sent = request.POST if request.method == "POST" else request.GET
        named = request.headers.get(HEADER) or sent.get(FIELD) or request.COOKIES.get(COOKIE, "")
        if zone := _zone(named[:64]):
            timezone.activate(zone)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | None:
    # The name comes from outside: ZoneInfo opens no file outside its folders, and raises one of these for the rest.
    with suppress(ValueError, OSError, KeyError):
        # Browsers know no others: without a region, such as `localtime`, they are of this server.
        return ZoneInfo(name) if "/" in name and not name.startswith(("posix/", "right/")) else None
    return None
