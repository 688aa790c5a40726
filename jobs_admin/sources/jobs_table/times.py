"""Forms of times in a column of a jobs table: parsed, and written back in the same form.

SQLite has no type for times, so their form is found by the column's values; PostgreSQL has a type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

# Text of SQLite's own `datetime('now')` (UTC), ISO 8601 (JavaScript's toISOString), whole or broken seconds, milliseconds;
# PostgreSQL's types.
SPACE, ISO, SECONDS, MILLISECONDS, MIXED = "space", "iso", "seconds", "milliseconds", "mixed"
WITH_ZONE, WITHOUT_ZONE = "timestamptz", "timestamp"

_MILLISECONDS_FROM = 10**11  # as seconds that would be the year 5138
_ZONE = re.compile(r"[A-Za-z0-9_+/-]+")
_LATEST = 253_402_300_799.0  # the last second of the year 9999


def zone(name: str) -> tzinfo | None:
    """The time zone of this name, which may be part of a statement too; None for one that is not known here."""
    if name.upper().removeprefix("ETC/") in ("UTC", "GMT"):  # PostgreSQL takes any case of it
        return UTC
    try:
        return ZoneInfo(name) if _ZONE.fullmatch(name) else None
    except (ValueError, OSError, KeyError):  # no name of a file, or none that is there
        return None


def form(values: Iterable[object], otherwise: str = SPACE) -> str:
    """The form that all of these have; MIXED where they do not agree, `otherwise` where there are none."""
    found = {_form(value) for value in values if value is not None}
    return found.pop() if len(found) == 1 else MIXED if found else otherwise


def _form(value: object) -> str:
    if isinstance(value, int | float):
        return MILLISECONDS if abs(value) >= _MILLISECONDS_FROM else SECONDS
    return ISO if "T" in str(value)[:11] else SPACE


def read(value: object, zone: tzinfo = UTC) -> float | None:
    """Seconds since 1970; None where it is no time. Text without a zone is in `zone`: UTC, as SQLite writes it."""
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
    """Value of a moment in a column of this form; whole seconds where the form has no others.

    `zone` is that of WITHOUT_ZONE.
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
    # Up, not down: a moment that is written down too early would be due before its time.
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: object) -> object:
    """A number that a driver gives as something else (Decimal, text) as one; anything else as text."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        return float(str(value))
    except ValueError:
        return str(value)
