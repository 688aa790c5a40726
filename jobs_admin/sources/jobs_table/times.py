"""Forms of times in a jobs table's columns: parsed, and written in the same form.

SQLite has no time type, so the form is detected from the column's values; PostgreSQL has types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

# Text of SQLite's `datetime('now')` (UTC), ISO 8601 (JavaScript's toISOString), whole or fractional seconds,
# milliseconds; PostgreSQL's types.
SPACE, ISO, SECONDS, MILLISECONDS, MIXED = "space", "iso", "seconds", "milliseconds", "mixed"
WITH_ZONE, WITHOUT_ZONE = "timestamptz", "timestamp"

_MILLISECONDS_FROM = 10**11  # as seconds this would be the year 5138
_ZONE = re.compile(r"[A-Za-z0-9_+/-]+")
_LATEST = 253_402_300_799.0  # the last second of the year 9999


def zone(name: str) -> tzinfo | None:
    """Return the time zone with this name, which may also be part of a statement; None if unknown."""
    if name.upper().removeprefix("ETC/") in ("UTC", "GMT"):  # PostgreSQL ignores its case
        return UTC
    try:
        return ZoneInfo(name) if _ZONE.fullmatch(name) else None
    except (ValueError, OSError, KeyError):  # invalid or missing file name
        return None


def form(values: Iterable[object], otherwise: str = SPACE) -> str:
    """Return the common form of these values; MIXED if they differ, `otherwise` if there are none."""
    found = {_form(value) for value in values if value is not None}
    return found.pop() if len(found) == 1 else MIXED if found else otherwise


def _form(value: object) -> str:
    if isinstance(value, int | float):
        return MILLISECONDS if abs(value) >= _MILLISECONDS_FROM else SECONDS
    return ISO if "T" in str(value)[:11] else SPACE


def read(value: object, zone: tzinfo = UTC) -> float | None:
    """Return Unix seconds; None if it is not a time. Text without a zone is in `zone`: UTC, as in SQLite."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        if isinstance(value, int | float):
            seconds = value / 1000 if abs(value) >= _MILLISECONDS_FROM else float(value)
        else:
            moment = datetime.fromisoformat(str(value).strip())
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and abs(seconds) <= _LATEST else None


def format_time(seconds: float, form: str, zone: tzinfo = UTC) -> object:
    """Return a time in a column's form; rounded to seconds if the form has no fractions.

    `zone`: zone of WITHOUT_ZONE.
    """
    seconds = min(max(seconds, 0.0), _LATEST)
    if form == MILLISECONDS:
        return round(seconds * 1000)
    if form == SECONDS:
        return math.ceil(seconds)
    if form in (WITH_ZONE, WITHOUT_ZONE):
        moment = datetime.fromtimestamp(seconds, UTC)
        return moment if form == WITH_ZONE else moment.astimezone(zone).replace(tzinfo=None)
    if form == ISO:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # Rounded up: an earlier time would be due too soon.
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: object) -> object:
    """Return a driver's number (Decimal, text) as a number; other values as text."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        return float(str(value))
    except ValueError:
        return str(value)
