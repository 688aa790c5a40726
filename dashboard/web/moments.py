"""Times as people and programs name them, in the zone of the page. Times out of range are refused before any calculation.

The zone of the page is Django's current one: UTC, or what its reader has chosen (dashboard.web.middleware.time_zone).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from jobs_admin.core import time_text

FIRST_YEAR, LAST_YEAR = 2000, 2999
BOUNDS = f"The year must be between {FIRST_YEAR} and {LAST_YEAR}"


def sane(at: datetime) -> datetime:
    """The same moment, in UTC where it names its zone. Raises ValueError with BOUNDS."""
    try:
        found = at.astimezone(UTC) if at.tzinfo is not None else at
    except (OverflowError, ValueError):
        raise ValueError(BOUNDS) from None
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(BOUNDS)
    return found


def local(at: datetime) -> datetime:
    """The same moment, in the zone of the page."""
    return at.astimezone(timezone.get_current_timezone())


def zone_id() -> str:
    """Return the name of the page's zone in the IANA database."""
    return str(timezone.get_current_timezone())


def zone_name(at: datetime | None = None) -> str:
    """Return the name of the page's zone at a moment, now if none is given: UTC, CET, or UTC+05:30 where it has no letters."""
    found = local(at or timezone.now())
    name = found.tzname() or ""
    return name if name.isalpha() else f"UTC{found.isoformat()[-6:]}"


_UTC_TIME = re.compile(
    r"\b(?:(?P<date>\d{4}-\d\d-\d\d) |(?P<day>\d{1,2}) (?P<month>[A-Z][a-z]{2})(?: (?P<year>\d{4}))? )?"
    r"(?P<time>\d\d:\d\d(?::\d\d)?) UTC\b"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def in_zone(text: str, now: datetime | None = None) -> str:
    """Return a sentence of the engine with its times, which are in UTC, in the zone of the page."""
    if "UTC" not in text or zone_id() == "UTC":
        return text
    beside = now or timezone.now()
    return type(text)(_UTC_TIME.sub(lambda found: _format_here(found, beside), text))  # safe HTML stays safe


def _format_here(found: re.Match[str], now: datetime) -> str:
    """Return such a time in the zone of the page. Without a day it is of today, without a year of the nearest."""
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
    except ValueError:  # no time after all
        return found[0]
    with_seconds = found["time"].count(":") == 2
    shown = clock(at, now, with_seconds)
    if found["date"]:
        shown = local(at).strftime("%Y-%m-%d %H:%M:%S" if with_seconds else "%Y-%m-%d %H:%M")
    elif found["day"]:
        shown = time_text.dated(at, now, with_seconds, timezone.get_current_timezone())
    return f"{shown} {zone_name(at)}"


def from_field(text: str) -> datetime:
    """Read what a field of a day and a time holds, in UTC: `2026-11-20T10:00`, in the zone of the page where it names none.

    A time that clocks skip is as much later; of one that comes twice it is the first.

    Raises ValueError.
    """
    found = datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        found = sane(found).replace(tzinfo=timezone.get_current_timezone())
    return sane(found)


def as_field(at: datetime) -> str:
    """Return a moment as such a field holds it, in the zone of the page."""
    return local(at).strftime("%Y-%m-%dT%H:%M")


def clock(at: datetime, beside: datetime, with_seconds: bool = False) -> str:
    """Return `core.time_text.clock` in the zone of the page."""
    return time_text.clock(at, beside, with_seconds, timezone.get_current_timezone())


def dated(at: datetime, beside: datetime) -> str:
    """Return `core.time_text.dated` in the zone of the page, with its name."""
    return f"{time_text.dated(at, beside, zone=timezone.get_current_timezone())} {zone_name(at)}"
