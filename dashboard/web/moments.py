"""Times as people and programs name them, in the zone of the page. Times out of range are refused before any calculation.

The zone of the page is Django's current one: UTC, or what its reader has chosen (dashboard.web.middleware.time_zone).
"""

from __future__ import annotations

from datetime import UTC, datetime

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
