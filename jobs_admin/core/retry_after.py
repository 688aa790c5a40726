"""Delay that a server requests with `Retry-After`: seconds or a date. Never raises, whatever an error contains."""

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
_LONGEST = 1_000  # characters of a header that are read
_MOST_HEADERS = 1_000  # headers that are read
_HEADER = "retry-after"

Wish = int | float | Decimal | str | timedelta | datetime
_WISHES = (int, float, Decimal, str, timedelta, datetime)


def seconds(wish: object, now: float) -> float | None:
    """Return the requested delay in seconds from `now` (Unix seconds); None if it cannot be parsed.

    `wish` is seconds as a number or text, an HTTP date (RFC 9110 section 10.2.3), a timedelta or a datetime. A negative
    or past wish, or NaN, gives 0. The result may be infinite: the policy's cap is applied later.
    """
    try:
        found = _seconds(wish, now)
    except (ValueError, ArithmeticError, TypeError, IndexError):
        return None
    return None if found is None else found if found > 0 else 0.0  # NaN is not greater than 0


def find_wish(error: BaseException) -> Wish | None:
    """Return an exception's `retry_after`, else the header `Retry-After` of its response, or of its own headers.

    Found by duck typing, so it works for requests, httpx, aiohttp, urllib, botocore and similar libraries.
    """
    for found in _places(error):
        if _is_wish(found):
            return found  # type: ignore[return-value]
    return None


def _places(error: BaseException) -> Iterator[object]:
    """Yield candidates lazily: after a wish is found, no more are read, because reading may run other code."""
    yield _get(error, "retry_after")
    response = _get(error, "response")
    yield _header(_get(response, "headers"))
    yield _header(_botocore(response))
    yield _header(_get(error, "headers"))


def _is_wish(found: object) -> bool:
    return issubclass(type(found), _WISHES) and type(found) is not bool


def is_at_hand(error: BaseException) -> bool:
    """Return whether `find_wish` only reads plain attributes. Otherwise it runs other code, which may take any time."""
    if is_known(error):
        return True
    try:
        own = read_plain(error, "retry_after")
        if type(own) in _PLAIN and _is_wish(own):
            return True  # nothing else is read
        found = [own, read_plain(error, "headers")]
        response = read_plain(error, "response")
        if response is not None and not is_known(response):
            found.append(read_plain(response, "headers"))
    except Dynamic:
        return False
    return all(type(one) in _PLAIN or is_known(one) for one in found)


_PLAIN = frozenset({type(None), bool, dict, int, float, str, Decimal, timedelta, datetime})


# Libraries whose headers are known to be loaded already.
_KNOWN = frozenset(
    {"httpx", "requests", "urllib", "urllib3", "http", "email", "aiohttp", "multidict", "botocore", "starlette"}
)


def is_known(thing: object) -> bool:
    module = type.__getattribute__(type(thing), "__module__")
    return isinstance(module, str) and module.partition(".")[0] in _KNOWN


class Dynamic(Exception):
    """The attribute is computed by code."""


def read_plain(thing: object, name: str) -> Any:
    """Return an attribute read without running code; None if missing. Raises Dynamic if that is impossible."""
    classes = _lookup(type(thing))
    if any("__getattribute__" in own and module not in ("builtins", "types") for module, own in classes):
        raise Dynamic
    of_class = next((own[name] for _, own in classes if name in own), None)
    if isinstance(of_class, MemberDescriptorType | GetSetDescriptorType):
        try:
            return object.__getattribute__(thing, name)
        except AttributeError:
            of_class = None
    elif any("__set__" in own or "__delete__" in own for _, own in _lookup(type(of_class))):
        raise Dynamic  # such as a property: it precedes the object's own attributes
    else:
        try:
            lying = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            lying = {}  # object with slots only
        if name in lying:
            return lying[name]
    if any("__get__" in own for _, own in _lookup(type(of_class))):
        raise Dynamic
    if of_class is None and any("__getattr__" in own for _, own in classes):
        raise Dynamic  # called for missing attributes
    return of_class


def _lookup(kind: type) -> list[tuple[str, Mapping[str, Any]]]:
    """Return where Python looks for an attribute: module and namespace of each class."""
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
    """Return the header in any spelling: not every mapping ignores case."""
    try:
        for name, value in islice(headers.items(), _MOST_HEADERS) if hasattr(headers, "items") else ():
            if issubclass(type(name), str) and str.lower(name) == _HEADER:
                return value
    except Exception:  # another library's object, in a worker that must go on
        return None
    return None


def _botocore(response: object) -> object:
    """Return the headers of a response that is a dict."""
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None


def _get(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # another library's property, in a worker that must go on
        return None
