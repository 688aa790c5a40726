"""Times in the zone of the page. Times out of range are refused before any calculation.

The zone of the page is Django's current one: UTC, or the reader's choice (`TimeZoneMiddleware`). The API, exports,
notices and the terminal always use UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from jobs_admin.core import figures

FIRST_YEAR, LAST_YEAR = 2000, 2999
BOUNDS = f"The year must be between {FIRST_YEAR} and {LAST_YEAR}"


def sane(at: datetime) -> datetime:
    """Return the time, in UTC if it has a zone. Raises ValueError with BOUNDS."""
    try:
        found = at.astimezone(UTC) if at.tzinfo is not None else at
    except (OverflowError, ValueError):
        raise ValueError(BOUNDS) from None
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(BOUNDS)
    return found


def local(at: datetime) -> datetime:
    """Return the time in the zone of the page."""
    return at.astimezone(timezone.get_current_timezone())


def zone_id() -> str:
    """Return the name of the page's zone in the IANA database."""
    return str(timezone.get_current_timezone())


def zone_name(at: datetime | None = None, zone: tzinfo | None = None) -> str:
    """Return the abbreviation of a zone at a time: UTC, CET, or UTC+05:30 without letters.

    By default of the page's zone, now.
    """
    found = (at or timezone.now()).astimezone(zone or timezone.get_current_timezone())
    name = found.tzname() or ""
    return name if name.isalpha() else f"UTC{found.isoformat()[-6:]}"


_UTC_TIME = re.compile(
    r"\b(?:(?P<date>\d{4}-\d\d-\d\d) |(?P<day>\d{1,2}) (?P<month>[A-Z][a-z]{2})(?: (?P<year>\d{4}))? )?"
    r"(?P<time>\d\d:\d\d(?::\d\d)?) UTC\b"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def in_zone(text: str, now: datetime | None = None) -> str:
    """Return a message of the engine with its times, which are in UTC, converted to the zone of the page."""
    if "UTC" not in text or zone_id() == "UTC":
        return text
    beside = now or timezone.now()
    return type(text)(_UTC_TIME.sub(lambda found: _format_here(found, beside), text))  # safe HTML stays safe


def _format_here(found: re.Match[str], now: datetime) -> str:
    """Return such a time in the zone of the page. Without a day it is today's, without a year the nearest."""
    today = now.astimezone(UTC)
    try:
        time = datetime.strptime(found["time"], "%H:%M:%S" if found["time"].count(":") == 2 else "%H:%M").time()
        if found["date"]:
            at = datetime.combine(datetime.fromisoformat(found["date"]), time, UTC)
        elif found["day"]:
            year = int(found["year"] or today.year)
            at = datetime(
                year,
                _MONTHS.index(found["month"]) + 1,
                int(found["day"]),
                time.hour,
                time.minute,
                time.second,
                tzinfo=UTC,
            )
            if not found["year"] and at - now > timedelta(days=180):
                at = at.replace(year=year - 1)
        else:
            at = datetime.combine(today, time, UTC)
    except ValueError:  # not a time
        return found[0]
    with_seconds = found["time"].count(":") == 2
    shown = clock(at, now, with_seconds)
    if found["date"]:
        shown = local(at).strftime("%Y-%m-%d %H:%M:%S" if with_seconds else "%Y-%m-%d %H:%M")
    elif found["day"]:
        shown = figures.dated(at, now, with_seconds, timezone.get_current_timezone())
    return f"{shown} {zone_name(at)}"


def from_field(text: str) -> datetime:
    """Parse a date and time field, `2026-11-20T10:00`, in the zone of the page unless it names one; return UTC.

    A time that clocks skip is shifted by the skipped amount; of an ambiguous time the first is used. Raises ValueError.
    """
    found = datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        found = sane(found).replace(tzinfo=timezone.get_current_timezone())
    return sane(found)


def as_field(at: datetime) -> str:
    """Return a time in the format of such a field, in the zone of the page."""
    return local(at).strftime("%Y-%m-%dT%H:%M")


def clock(at: datetime, beside: datetime, with_seconds: bool = False) -> str:
    """Return `core.figures.clock` in the zone of the page."""
    return figures.clock(at, beside, with_seconds, timezone.get_current_timezone())


def dated(at: datetime, beside: datetime) -> str:
    """Return `core.figures.dated` in the zone of the page, with its name."""
    return f"{figures.dated(at, beside, zone=timezone.get_current_timezone())} {zone_name(at)}"


COOKIE = "redrive-time-zone"  # set by the zone switch: a name of the IANA database, such as Europe/Berlin
HEADER, FIELD = "X-Time-Zone", "time_zone"


class TimeZoneMiddleware:
    """Middleware that activates the zone of the page for the request; UTC if none is set.

    An open page keeps its zone when another tab switches: its script sends the zone as a header or with the form.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with timezone.override(UTC):
            return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: object, kwargs: object
    ) -> None:
        if getattr(view, "csrf_exempt", False):
            return  # of a program, whose body is not parsed before its token or signature is checked
        sent = request.POST if request.method == "POST" else request.GET
        named = request.headers.get(HEADER) or sent.get(FIELD) or request.COOKIES.get(COOKIE, "")
        if zone := _zone(named[:64]):
            timezone.activate(zone)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo | None:
    # The name is user input: ZoneInfo opens no file outside its folders, and raises one of these for anything else.
    with suppress(ValueError, OSError, KeyError):
        # Browsers only have names with a region; others, such as `localtime`, describe this server.
        return ZoneInfo(name) if "/" in name and not name.startswith(("posix/", "right/")) else None
    return None
