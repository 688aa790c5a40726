"""The fields of a pace: the spread of a replay over time, and the conditions on which it stops automatically."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta, timezone
from typing import Any

CAREFUL, STEADY, AT_ONCE = "careful", "steady", "at_once"
STYLES = (CAREFUL, STEADY, AT_ONCE)

SLOWEST, FASTEST = 0.001, 100_000.0  # jobs per second that a pace may name
DEFAULT: dict[str, Any] = {"style": STEADY, "rate": 50}
CAREFUL_ABOVE = 100  # jobs: more than these are replayed carefully, unless somebody says otherwise

# What `careful` takes where nothing else is said. The canary's rate is one that also a service bears which has just
# come back; what a queue usually manages is not known where nothing ran well in the last hour.
CANARY_JOBS = 50
CANARY_RATE = 5.0  # jobs per second
LEAST_KNOWN = CANARY_RATE  # jobs per second: a queue that managed less in the last hour had little to do
UNKNOWN_TO = 1_000.0  # jobs per second: where nothing else bounds it, outcomes do
IN_FLIGHT_S = 30  # so many seconds of work may be sent and not settled …
IN_FLIGHT_LEAST = 100  # … or so many jobs, where that is more
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Canary:
    jobs: int = CANARY_JOBS
    success: float = 0.7  # the share of first attempts that must run well
    within: float = 300.0  # seconds without any news after which it is held

    def as_dict(self) -> dict[str, Any]:
        return {"jobs": self.jobs, "success": _plain(self.success), "within": _plain(self.within)}


@dataclass(frozen=True, slots=True)
class Ramp:
    """From one rate to another, jobs per second. None until `settled` knows."""

    start: float | None
    to: float | None

    def as_dict(self) -> dict[str, Any]:
        ends = {"from": self.start, "to": self.to}
        return {name: _plain(rate) for name, rate in ends.items() if rate is not None}


@dataclass(frozen=True, slots=True)
class Stop:
    """Held when it is beyond doubt that more than the share `failed` of first attempts fail."""

    failed: float = 0.3
    of_last: int = 200
    new_groups: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {"failed": _plain(self.failed), "of_last": self.of_last, "new_groups": self.new_groups}


@dataclass(frozen=True, slots=True)
class PerKey:
    """A limit for each customer, tenant or whatever `key` names: jobs at once, jobs per second."""

    key: str  # tenant, queue, task, or a path such as kwargs.customer_id or args.0.id
    concurrency: int | None = None
    rate: float | None = None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"key": self.key}
        if self.concurrency is not None:
            found["concurrency"] = self.concurrency
        if self.rate is not None:
            found["rate"] = _plain(self.rate)
        return found


@dataclass(frozen=True, slots=True)
class Pace:
    """The spread of a replay over time. Rates in jobs per second, times in seconds; None is no such bound."""

    style: str  # careful, steady, at_once
    rate: float | None = None
    over: float | None = None  # instead of a rate: spread over so long
    jitter: float = 0.0
    canary: Canary | None = None
    ramp: Ramp | None = None  # where there is one, it decides and not `rate`
    in_flight: int | None = None
    per_key: PerKey | None = None
    queue_cap: int | None = None  # no more wait in the target queue
    stop: Stop | None = None
    window: Window | None = None
    priority: int | str | None = None  # the queue system's number, or a level (core.priority)
    shuffle: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the pace as the API writes it, without the fields that were not given."""
        found: dict[str, Any] = {"style": self.style}
        for name in ("rate", "over", "in_flight", "queue_cap", "priority"):
            if (value := getattr(self, name)) is not None:
                found[name] = value if isinstance(value, str) else _plain(value)
        if self.jitter:
            found["jitter"] = _plain(self.jitter)
        for name in ("canary", "ramp", "per_key", "stop", "window"):
            if (part := getattr(self, name)) is not None:
                found[name] = part.as_dict()
        return {**found, "shuffle": True} if self.shuffle else found

    @property
    def lowest(self) -> float | None:
        """The rate that it begins with; None is without bound."""
        return self.ramp.start if self.ramp else self.rate

    @property
    def highest(self) -> float | None:
        """The rate that it never exceeds; None is without bound."""
        return self.ramp.to if self.ramp else self.rate


def default_for(jobs: int) -> Pace:
    """The pace of a replay of `jobs` jobs for which none was requested."""
    return Pace(CAREFUL) if jobs > CAREFUL_ABOVE else Pace(STEADY, rate=float(DEFAULT["rate"]))


def settled(pace: Pace, *, jobs: int, median_per_s: float | None = None, workers_per_s: float | None = None) -> Pace:
    """The same pace with a number for everything that it left open: what a replay keeps and is steered by.

    `median_per_s`: the last hour's median throughput of successes of what is replayed to; None where it is not known.
    `workers_per_s`: what the workers can carry, jobs per second; None where it is not known.
    """
    if pace.over is not None:
        pace = replace(pace, over=None, rate=_within(jobs / pace.over))
    if pace.style == AT_ONCE:
        return pace
    if pace.style == CAREFUL or pace.ramp:
        pace = _with_ramp(pace, median_per_s, workers_per_s)
    if pace.style == CAREFUL:
        failed = (pace.stop or Stop()).failed
        canary = pace.canary or Canary(jobs=min(CANARY_JOBS, max(1, math.ceil(jobs / 2))), success=round(1 - failed, 4))
        most = max(IN_FLIGHT_LEAST, math.ceil((pace.highest or UNKNOWN_TO) * IN_FLIGHT_S))
        pace = replace(pace, canary=canary, in_flight=most if pace.in_flight is None else pace.in_flight)
    return replace(pace, stop=pace.stop or Stop())


def _with_ramp(pace: Pace, median_per_s: float | None, workers_per_s: float | None) -> Pace:
    """Fill in the ramp. An idle queue's median is ignored: then outcomes decide, up to the workers' capacity."""
    ramp = pace.ramp or Ramp(None, None)
    is_known = median_per_s is not None and median_per_s >= LEAST_KNOWN
    to = ramp.to or pace.rate or _within((median_per_s if is_known else workers_per_s) or UNKNOWN_TO)
    start = ramp.start or max(SLOWEST, min(CANARY_RATE, to / 10))
    return replace(pace, rate=None, ramp=Ramp(min(start, to), to))


def _within(rate: float) -> float:
    return min(FASTEST, max(SLOWEST, rate))


def _plain(number: float) -> float:
    """50 rather than 50.0: what a person wrote comes back as they wrote it."""
    return int(number) if number == int(number) else number


# The hours of a day in which a replay may send.


@dataclass(frozen=True, slots=True)
class Window:
    """From a time of day until another, in UTC, on days of the week. One that goes past midnight belongs to the day it opens on."""

    opens: time
    closes: time  # not included; the same as `opens` means a whole day
    days: tuple[str, ...] = DAYS  # those on which it opens

    def as_dict(self) -> dict[str, Any]:
        """Return the window as the API writes it."""
        hours = {"from": f"{self.opens:%H:%M}", "to": f"{self.closes:%H:%M}"}
        return hours if self.days == DAYS else {**hours, "days": list(self.days)}

    def is_open(self, at: datetime) -> bool:
        return any(opened <= at < closing for opened, closing in self._around(at))

    def opens_at(self, at: datetime) -> datetime:
        """`at` itself while it is open, else when it opens next."""
        if self.is_open(at):
            return at
        return min(opened for opened, _ in self._around(at) if opened > at)

    def _around(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """Opening and closing, from the day before until a week ahead."""
        today = at.astimezone(timezone.utc).date()
        found = []
        for ahead in range(-1, 8):
            day = today + timedelta(days=ahead)
            if DAYS[day.weekday()] in self.days:
                closing_day = day if self.closes > self.opens else day + timedelta(days=1)
                found.append(
                    (
                        datetime.combine(day, self.opens, tzinfo=timezone.utc),
                        datetime.combine(closing_day, self.closes, tzinfo=timezone.utc),
                    )
                )
        return found
