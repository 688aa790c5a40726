"""Pages in UTC, or in the time zone that their reader has chosen. The API, exports, notices and the terminal are always in UTC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

COOKIE = "redrive-time-zone"  # set by the switch of the page: a name of the IANA database, such as Europe/Berlin


class TimeZoneMiddleware:
    """Make the zone of the cookie the current one of Django; without a cookie, or one that names no zone, it is UTC."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        zone = _zone(request.COOKIES.get(COOKIE, "")[:64])
        if zone is None:
            return self.get_response(request)
        with timezone.override(zone):
            return self.get_response(request)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | None:
    # The name comes from outside: ZoneInfo opens no file outside its folders, and raises one of these for the rest.
    with suppress(ValueError, OSError, KeyError):
        return ZoneInfo(name) if name else None
    return None
