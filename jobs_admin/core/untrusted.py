"""Parser of JSON from untrusted writers, such as workers in the store, into values that need no further checks.

A number is finite and fits 64 bits, a time is between 1970 and 2999, and a document of another type is empty.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from jobs_admin.core.text import representable, whole_number

MOST_INT = 2**63 - 1
FIRST, LAST = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1970, 3000))
_FIRST_S, _LAST_S = FIRST.timestamp(), LAST.timestamp()


def read(text: str | bytes | None) -> Any:
    """Return the JSON value in `text`, with impossible numbers as None; None if there is none."""
    if not text:
        return None
    try:
        return json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def read_object(text: str | bytes | None) -> dict[str, Any]:
    """Return the JSON object in `text`; an empty one for anything else."""
    value = read(text)
    return value if isinstance(value, dict) else {}


def read_objects(text: str | bytes | None) -> list[dict[str, Any]]:
    """Return the objects in the JSON list in `text`; [] for anything else."""
    value = read(text)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def texts(value: dict[str, Any], most: int) -> dict[str, str]:
    """Return the members of a parsed object that are text, at most `most` of them."""
    found = [(name, one) for name, one in value.items() if isinstance(one, str)]
    return {representable(name)[:200]: representable(one)[:2_000] for name, one in found[:most]}


def text(value: object, most: int) -> str:
    """Return a parsed text or number as at most `most` storable characters; "" for anything else."""
    return representable(str(value))[:most] if isinstance(value, str | int | float) else ""


def number(value: object) -> float | None:
    """Return a parsed value as a finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_INT:
        return None
    return value


def integer(digits: str | bytes | None) -> int | None:
    """Return ASCII digits as a number of at most 18 digits, which fits 64 bits; None for anything else."""
    return whole_number(digits.decode("ascii", "replace") if isinstance(digits, bytes) else digits)


def moment(value: object) -> datetime | None:
    """Return Unix seconds as a UTC time; None for anything else, and for times outside 1970 to 2999."""
    seconds = number(value)
    if seconds is None or not _FIRST_S <= seconds < _LAST_S:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc)


def iso_seconds(value: object) -> float | None:
    """Return an ISO 8601 time, UTC by default, as Unix seconds; None as for `moment`."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python before 3.11 does not parse Z
        seconds = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if moment(seconds) is not None else None


def _integer(digits: str) -> int | None:
    found = int(digits) if len(digits) <= 20 else None
    return found if found is not None and abs(found) <= MOST_INT else None


def _finite(digits: str) -> float | None:
    return number(float(digits))


def _no_number(name: str) -> None:
    return None
