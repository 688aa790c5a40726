"""Quantities of a policy as people write them: `10 min`, `20 %`, `1, 5, 30`.

Anything else stays text, which the engine refuses with the bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([\d.,]+(?:e[+-]?\d+)?)\s*(ms|s|sec|min|m|h|d)", re.IGNORECASE)
_WRITTEN = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def number(text: str) -> Any:
    """Parse a number: `1,000` -> 1000; an integer if possible."""
    try:
        found = float(text.replace(",", "").replace("_", ""))
        return int(found) if found == int(found) and abs(found) < 1e15 else found
    except (ValueError, OverflowError):  # also infinity and NaN: the engine names the bounds
        return _odd(text)


def _odd(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def seconds(text: str) -> Any:
    """Parse seconds: `90` and `90 s` -> 90; `1 h 30 min` -> 5400."""
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text).strip():
        return number(text)
    found = [number(amount) for amount, _ in parts]
    if any(isinstance(one, str) for one in found):
        return text
    total = sum(amount * _UNITS[unit.lower()] for amount, (_, unit) in zip(found, parts, strict=True))
    return number(repr(round(total, 9)))


def share(text: str) -> Any:
    """Parse per cent: `20` and `20 %` -> 0.2."""
    found = number(text.removesuffix("%").strip())
    return found if isinstance(found, str) else round(found / 100, 9)


def spans(text: str) -> Any:
    """Parse a list of durations: `1, 5, 2 min` -> [1, 5, 120]."""
    return [seconds(one.strip()) for one in text.split(",") if one.strip()]


def plain(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def in_seconds(value: Any) -> str:
    """Format seconds: 5400 -> `90 min`, in the largest unit in which the number is an integer."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        return plain(value)
    size, unit = next(((size, unit) for size, unit in _WRITTEN if value % size == 0), (1, "s"))
    return f"{plain(value / size)} {unit}"


def in_per_cent(value: Any) -> str:
    return plain(round(value * 100, 7)) if isinstance(value, (int, float)) else str(value)


def in_spans(value: Any) -> str:
    return ", ".join(map(in_seconds, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, slots=True)
class Kind:
    """Format of a value, with `read` and `write` as inverses."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


TEXT = Kind(str, str)
NUMBER = Kind(number, plain)
SECONDS = Kind(seconds, in_seconds)
SHARE = Kind(share, in_per_cent)
SPANS = Kind(spans, in_spans)
