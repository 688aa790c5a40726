"""JSON that others can write, such as workers in the store: read as hostile, into values that no reader has to check again.

A number is finite and fits 64 bits, a moment lies between 1970 and 2999, and a document of another shape is an empty one.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from jobs_admin.core.text import representable, whole_number

MOST_INT = 2**63 - 1
FIRST, LAST = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1970, 3000))


def read(text: str | bytes | None) -> Any:
    """Return the JSON value in `text`, its impossible numbers as None; None where there is none."""
    try:
        return json.loads(text or b"null", parse_int=_integer, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def read_object(text: str | bytes | None) -> dict[str, Any]:
    """Return the JSON object in `text`; an empty one where it holds anything else."""
    value = read(text)
    return value if isinstance(value, dict) else {}


def read_objects(text: str | bytes | None) -> list[dict[str, Any]]:
    """Return the objects in the JSON list in `text`; none where it holds anything else."""
    value = read(text)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def texts(value: dict[str, Any], most: int) -> dict[str, str]:
    """Return the members of a parsed object that are text, at most `most` of them."""
    found = [(name, one) for name, one in value.items() if isinstance(one, str)]
    return {representable(name)[:200]: representable(one)[:2_000] for name, one in found[:most]}


def text(value: object, most: int) -> str:
    """Return a parsed text or number as at most `most` characters that a table takes; "" for anything else."""
    return representable(str(value))[:most] if isinstance(value, str | int | float) else ""


def number(value: object) -> float | None:
    """Return a parsed value as a finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_INT:
        return None
    return value


def integer(digits: str | bytes | None) -> int | None:
    """Return plain digits as a number from 0 of at most 18 digits, which fits 64 bits; None for anything else."""
    return whole_number(digits.decode("ascii", "replace") if isinstance(digits, bytes) else digits)


def moment(value: object) -> datetime | None:
    """Return seconds since 1970 as a time in UTC; None for anything else, and for what lies outside 1970 to 2999."""
    seconds = number(value)
    if seconds is None or not FIRST.timestamp() <= seconds < LAST.timestamp():
        return None
    return datetime.fromtimestamp(seconds, timezone.utc)


def iso_seconds(value: object) -> float | None:
    """Return an ISO 8601 time, in UTC unless it names another zone, as seconds since 1970; None as for `moment`."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))  # before Python 3.11 no Z is read
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
