"""The wait that a server requests with `Retry-After`: seconds, or a date. Nothing here raises, whatever an error
carries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import parsedate_to_datetime
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

_UTC = timezone.utc
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|nan)\Z", re.IGNORECASE)
_LONGEST = 1_000  # characters of a header that are looked at
_MOST_HEADERS = 1_000  # that are looked at
_HEADER = "retry-after"

Wish = int | float | Decimal | str | timedelta | datetime
_WISHES = (int, float, Decimal, str, timedelta, datetime)


def seconds(wish: object, now: float) -> float | None:
    """The seconds from `now` (since 1970) that a server requested to wait; None where that cannot be read.

    `wish` is seconds as a number or a text, an HTTP date (RFC 9110 section 10.2.3), or a timedelta or datetime. A
    negative or past wish, or NaN, is 0. It may be infinite, and is not bounded here: the policy's cap is applied later.
    """
    try:
        found = _seconds(wish, now)
    except (ValueError, ArithmeticError, TypeError, IndexError):
        return None
    return None if found is None else found if found > 0 else 0.0  # NaN is not above 0


def find_wish(error: BaseException) -> Wish | None:
    """Return what an exception carries: its own `retry_after`, else the header `Retry-After` of its response, or its own headers.

    Found by the shape of things, so that requests, httpx, aiohttp, urllib, botocore and their like all do.
    """
    for found in _places(error):
        if _is_wish(found):
            return found  # type: ignore[return-value]
    return None


def _places(error: BaseException) -> Iterator[object]:
    """One after the other: what comes behind a wish is not looked at, which may be code of others."""
    yield _get(error, "retry_after")
    response = _get(error, "response")
    yield _header(_get(response, "headers"))
    yield _header(_botocore(response))
    yield _header(_get(error, "headers"))


def _is_wish(found: object) -> bool:
    return issubclass(type(found), _WISHES) and type(found) is not bool


def is_at_hand(error: BaseException) -> bool:
    """Return whether `find_wish` runs no code of others': all that it would read is in plain attributes. Else it may
    take any time.
    """
    if _is_known(error):
        return True
    try:
        own = _read_plain(error, "retry_after")
        if type(own) in _PLAIN and _is_wish(own):
            return True  # nothing else is looked at
        found = [own, _read_plain(error, "headers")]
        response = _read_plain(error, "response")
        if response is not None and not _is_known(response):
            found.append(_read_plain(response, "headers"))
    except _Dynamic:
        return False
    return all(type(one) in _PLAIN or _is_known(one) for one in found)


_PLAIN = frozenset({type(None), bool, dict, int, float, str, Decimal, timedelta, datetime})


# Of these libraries it is known that their headers are there already.
_KNOWN = frozenset(
    {"httpx", "requests", "urllib", "urllib3", "http", "email", "aiohttp", "multidict", "botocore", "starlette"}
)


def _is_known(thing: object) -> bool:
    module = type.__getattribute__(type(thing), "__module__")
    return isinstance(module, str) and module.partition(".")[0] in _KNOWN


class _Dynamic(Exception):
    """The attribute is computed by code."""


def _read_plain(thing: object, name: str) -> Any:
    """Return an attribute, read without running code; None where there is none. Raises _Dynamic where that is
    impossible.
    """
    classes = _lookup(type(thing))
    if any("__getattribute__" in own and module not in ("builtins", "types") for module, own in classes):
        raise _Dynamic
    of_class = next((own[name] for _, own in classes if name in own), None)
    if isinstance(of_class, MemberDescriptorType | GetSetDescriptorType):
        try:
            return object.__getattribute__(thing, name)
        except AttributeError:
            of_class = None
    elif any("__set__" in own or "__delete__" in own for _, own in _lookup(type(of_class))):
        raise _Dynamic  # such as a property: it comes before what lies in the object
    else:
        try:
            lying = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            lying = {}  # it has slots only
        if name in lying:
            return lying[name]
    if any("__get__" in own for _, own in _lookup(type(of_class))):
        raise _Dynamic
    if of_class is None and any("__getattr__" in own for _, own in classes):
        raise _Dynamic  # it is asked for what is nowhere
    return of_class


def _lookup(kind: type) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the places where Python finds an attribute: each class's module and its namespace."""
    mro = type.__dict__["__mro__"].__get__(kind)
    return [(type.__getattribute__(one, "__module__"), type.__getattribute__(one, "__dict__")) for one in mro]


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
        for name, value in islice(headers.items(), _MOST_HEADERS) if hasattr(headers, "items") else ():
            if issubclass(type(name), str) and str.lower(name) == _HEADER:
                return value
    except Exception:  # somebody else's object, in a worker that must go on
        return None
    return None


def _botocore(response: object) -> object:
    """Return the headers in a response that is a dict."""
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None


def _get(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of somebody else's, in a worker that must go on
        return None
