"""How a replay is spread over time: what a pace may say, when the next job may go, and how long it takes.

Pure: a clock's reading in seconds is passed in, and nothing here sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLOWEST, FASTEST = 0.001, 100_000.0  # jobs per second that a pace may name
DEFAULT: dict[str, Any] = {"style": "steady", "rate": 50}

# Keys and styles of the contract that this version does not act on. Refused by name: a limit that is
# accepted and not kept would be worse than none.
_LATER = (
    "over", "jitter", "canary", "ramp", "in_flight", "per_key", "queue_cap", "stop", "window", "priority", "shuffle",
)  # fmt: skip

# Where at_once has no rate to reckon with, what one sender does on a small machine (bench/results.md).
_AT_ONCE_GUESS = 3_000.0


class PaceRefused(ValueError):
    """The pace cannot be used. `field` names the part of it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Pace:
    style: str  # steady, at_once
    rate: float | None  # jobs per second; None: as fast as the queue takes them

    def as_dict(self) -> dict[str, Any]:
        """As the contract writes it."""
        return {"style": self.style} if self.rate is None else {"style": self.style, "rate": self.rate}


@dataclass(frozen=True, slots=True)
class Estimate:
    duration_s: float
    peak_per_second: float


def parse(pace: object) -> Pace:
    """The pace that somebody asked for; None or empty is the default. Raises PaceRefused."""
    if pace is None or pace == {}:
        pace = DEFAULT
    if not isinstance(pace, Mapping):
        raise PaceRefused("pace", 'A pace is an object such as {"style": "steady", "rate": 50}.')
    style = pace.get("style", "steady")
    if style == "careful":
        raise PaceRefused("style", "The careful style is not available yet. Choose steady (with a rate) or at_once.")
    if style not in ("steady", "at_once"):
        raise PaceRefused("style", "Choose steady (with a rate) or at_once.")
    for name in pace:
        if name in _LATER:
            raise PaceRefused(str(name), f"{name} is not available yet. Leave it out; rate or every set the pace.")
        if name not in {"style", "rate", "every"}:
            raise PaceRefused(str(name), f"A pace has no {str(name)[:40]!r}. It has style, and rate or every.")
    if style == "at_once":
        for name in ("rate", "every"):
            if pace.get(name) is not None:
                raise PaceRefused(name, f"at_once has no {name}. Choose steady to set one.")
        return Pace("at_once", None)
    return Pace("steady", _rate(pace))


def _rate(pace: Mapping[Any, Any]) -> float:
    rate, every = pace.get("rate"), pace.get("every")
    if rate is not None and every is not None:
        raise PaceRefused("every", "Give rate (jobs per second) or every (seconds between jobs), not both.")
    if every is not None:
        return 1 / _number("every", every, 1 / FASTEST, 1 / SLOWEST, "seconds between two jobs")
    return _number("rate", DEFAULT["rate"] if rate is None else rate, SLOWEST, FASTEST, "jobs per second")


def _number(field: str, value: object, least: float, most: float, unit: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not least <= number <= most:  # also false for NaN
        raise PaceRefused(field, f"{field} must be a number from {least:g} to {most:,.0f} ({unit}).")
    return number


def estimate(jobs: int, pace: Pace) -> Estimate:
    """How long sending takes, in seconds, and the most jobs in any one second."""
    if not jobs:
        return Estimate(0.0, 0.0)
    if pace.rate is None:
        return Estimate(jobs / _AT_ONCE_GUESS, min(float(jobs), _AT_ONCE_GUESS))
    return Estimate((jobs - 1) / pace.rate, min(float(jobs), max(1.0, pace.rate)))


class Bucket:
    """Says how many jobs may go now. In any one second at most 1.05 × the rate + 3, whatever happened before.

    Two buckets in one. The long one keeps the promised rate: what a short stall (under a second) held back is owed.
    The short one keeps the bound while that debt is paid: it fills hardly faster than the rate and holds what 40 ms
    let through, so neither a stall nor a pause is ever followed by a bunch.
    """

    _FORGIVEN_S = 1.0
    _FASTER = 1.005
    _HELD_S = 0.04

    def __init__(self, rate: float | None, now: float) -> None:
        """`rate` in jobs per second, None without bound; `now` in seconds on any clock that does not jump."""
        self._rate = rate
        self._at = now
        self._owed = self._ready = 1.0

    @property
    def rate(self) -> float | None:
        return self._rate

    def change(self, rate: float | None, now: float) -> None:
        """Go on at another rate. What was owed at the old one is forgiven."""
        self._fill(now)
        self._rate = rate
        self._owed = min(self._owed, 1.0)
        self._ready = min(self._ready, 1.0)

    def take(self, wanted: int, now: float) -> int:
        """How many of the wanted jobs go now. They count as sent."""
        self._fill(now)
        if self._rate is None:
            return wanted
        granted = max(0, min(wanted, int(min(self._owed, self._ready))))
        self._owed -= granted
        self._ready -= granted
        return granted

    def ahead(self, seconds: float, now: float) -> int:
        """How many jobs will be granted within so many seconds; at least 0. Takes none."""
        self._fill(now)
        if self._rate is None:
            return 2**31
        return int(min(self._owed + seconds * self._rate, self._ready + seconds * self._rate * self._FASTER))

    def wait(self, now: float) -> float:
        """Seconds until the next job may go; 0 when one may go now."""
        self._fill(now)
        if self._rate is None:
            return 0.0
        # A hair more, so that rounding does not wake the caller just too early.
        return max(0.0, (1 - self._owed) / self._rate, (1 - self._ready) / (self._rate * self._FASTER)) * (1 + 1e-9)

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        if self._rate is not None:
            self._owed = min(self._owed + passed * self._rate, 1 + self._rate * self._FORGIVEN_S)
            self._ready = min(self._ready + passed * self._rate * self._FASTER, 1.5 + self._HELD_S * self._rate)
