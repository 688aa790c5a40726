"""What a server asked for with `Retry-After`: seconds, or a date. Nothing here raises, whatever an error carries."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

_UTC = timezone.utc  # noqa: UP017  (workers may run Python 3.10)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|nan)\Z", re.IGNORECASE)
_LONGEST = 1_000  # characters of a header that are looked at
_HEADER = "retry-after"

Wish = int | float | Decimal | str | timedelta | datetime
_WISHES = (int, float, Decimal, str, timedelta, datetime)


def seconds(wish: object, now: float) -> float | None:
    """So many seconds from `now` (since 1970) a server asked to wait; None where that cannot be read.

    `wish` is seconds as a number or a text, an HTTP date (RFC 9110 section 10.2.3), or a timedelta or datetime. What is
    negative, NaN or past is 0. It may be infinite, and is not bounded here: the policy's cap is the judge's business.
    """
    try:
        found = _seconds(wish, now)
    except (ValueError, ArithmeticError, TypeError, IndexError):
        return None
    return None if found is None else found if found > 0 else 0.0  # NaN is not above 0


def asked(error: BaseException) -> Wish | None:
    """What an exception carries: its own `retry_after`, else the header `Retry-After` of its response, or its own headers.

    Found by the shape of things, so that requests, httpx, aiohttp, urllib, botocore and their like all do.
    """
    response = _get(error, "response")
    headers = (_get(response, "headers"), _botocore(response), _get(error, "headers"))
    for found in (_get(error, "retry_after"), *map(_header, headers)):
        if isinstance(found, _WISHES) and not isinstance(found, bool):
            return found
    return None


def _seconds(wish: object, now: float) -> float | None:
    if isinstance(wish, bool):
        return None
    if isinstance(wish, (int, float, Decimal)):
        return _float(wish)
    if isinstance(wish, timedelta):
        return wish.total_seconds()
    if isinstance(wish, datetime):
        return (wish if wish.tzinfo else wish.replace(tzinfo=_UTC)).timestamp() - now
    if not isinstance(wish, str) or len(wish) > _LONGEST:
        return None
    text = wish.strip()
    if _NUMBER.match(text):
        return float(text)
    at = parsedate_to_datetime(text)
    return (at if at.tzinfo else at.replace(tzinfo=_UTC)).timestamp() - now


def _float(number: int | float | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else 0.0


def _header(headers: Any) -> object:
    """The header, however its name is written: not every mapping is indifferent to that."""
    try:
        for name, value in headers.items() if hasattr(headers, "items") else ():
            if str(name).lower() == _HEADER:
                return value
    except Exception:  # somebody else's object, in a worker that must go on
        return None
    return None


def _botocore(response: object) -> object:
    """Its response is a dict, and the headers lie inside."""
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None


def _get(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of somebody else's, in a worker that must go on
        return None
