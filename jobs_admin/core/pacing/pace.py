"""Fields of a pace: the spread of a replay over time, and the conditions that stop it automatically."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta, timezone
from typing import Any

CAREFUL, STEADY, AT_ONCE = "careful", "steady", "at_once"
STYLES = (CAREFUL, STEADY, AT_ONCE)

SLOWEST, FASTEST = 0.001, 100_000.0  # bounds of a pace's rate, jobs/s
DEFAULT: dict[str, Any] = {"style": STEADY, "rate": 50}
CAREFUL_ABOVE = 100  # jobs: larger replays are careful by default
CAREFUL_IF_RISKY = 10  # jobs: from here on, if some are likely to fail again. A canary of half of fewer proves nothing

# Defaults of `careful`. The canary's rate suits a service that has just recovered. A queue's usual throughput is
# unknown if nothing succeeded in the last hour.
CANARY_JOBS = 50
CANARY_RATE = 5.0  # jobs/s
LEAST_KNOWN = CANARY_RATE  # jobs/s: a queue with less throughput in the last hour was idle
UNKNOWN_TO = 1_000.0  # jobs/s: without another limit, the outcomes limit it
IN_FLIGHT_S = 30  # seconds of work that may be sent and not settled …
IN_FLIGHT_LEAST = 100  # … or this number of jobs, if larger
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Canary:
    jobs: int = CANARY_JOBS
    success: float = 0.7  # required share of successful first attempts
    within: float = 300.0  # seconds without outcomes after which it is held

    def as_dict(self) -> dict[str, Any]:
        return {"jobs": self.jobs, "success": _plain(self.success), "within": _plain(self.within)}


@dataclass(frozen=True, slots=True)
class Ramp:
    """Ramp from one rate to another, jobs/s. None until `settled` sets it."""

    start: float | None
    to: float | None

    def as_dict(self) -> dict[str, Any]:
        ends = {"from": self.start, "to": self.to}
        return {name: _plain(rate) for name, rate in ends.items() if rate is not None}


@dataclass(frozen=True, slots=True)
class Stop:
    """Condition of a hold: with confidence, more than the share `failed` of first attempts fail."""

    failed: float = 0.3
    of_last: int = 200
    new_groups: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {"failed": _plain(self.failed), "of_last": self.of_last, "new_groups": self.new_groups}


@dataclass(frozen=True, slots=True)
class PerKey:
    """Limit per customer, tenant or other value of `key`: concurrent jobs, jobs/s."""

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
    """Spread of a replay over time. Rates in jobs/s, times in seconds; None: no such limit."""

    style: str  # careful, steady, at_once
    rate: float | None = None
    over: float | None = None  # instead of a rate: total duration
    jitter: float = 0.0
    canary: Canary | None = None
    ramp: Ramp | None = None  # if set, it decides instead of `rate`
    in_flight: int | None = None
    per_key: PerKey | None = None
    queue_cap: int | None = None  # maximum waiting jobs in the target queue
    stop: Stop | None = None
    window: Window | None = None
    priority: int | str | None = None  # queue system's number, or a level (core.priority)
    shuffle: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the pace as in the API, without fields that were not given."""
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
        """Starting rate; None: unlimited."""
        return self.ramp.start if self.ramp else self.rate

    @property
    def highest(self) -> float | None:
        """Maximum rate; None: unlimited."""
        return self.ramp.to if self.ramp else self.rate


def default_for(jobs: int, *, is_risky: bool = False) -> Pace:
    """Return the default pace of a replay of `jobs` jobs. `is_risky`: some of them are likely to fail again."""
    is_careful = jobs > CAREFUL_ABOVE or (is_risky and jobs >= CAREFUL_IF_RISKY)
    return Pace(CAREFUL) if is_careful else Pace(STEADY, rate=float(DEFAULT["rate"]))


def settled(pace: Pace, *, jobs: int, median_per_s: float | None = None, workers_per_s: float | None = None) -> Pace:
    """Return the pace with all open values set: the form in which a replay stores and uses it.

    `median_per_s`: median throughput of successes at the target in the last hour; None if unknown. `workers_per_s`:
    capacity of the workers, jobs/s; None if unknown.
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
    """Return the pace with its ramp set.

    An idle queue's median is ignored: outcomes then decide, up to the workers' capacity.
    """
    ramp = pace.ramp or Ramp(None, None)
    is_known = median_per_s is not None and median_per_s >= LEAST_KNOWN
    to = ramp.to or pace.rate or _within((median_per_s if is_known else workers_per_s) or UNKNOWN_TO)
    start = ramp.start or max(SLOWEST, min(CANARY_RATE, to / 10))
    return replace(pace, rate=None, ramp=Ramp(min(start, to), to))


def _within(rate: float) -> float:
    return min(FASTEST, max(SLOWEST, rate))


def _plain(number: float) -> float:
    """Return 50 rather than 50.0, as a person wrote it."""
    return int(number) if number == int(number) else number


# Hours of a day in which a replay may send.


@dataclass(frozen=True, slots=True)
class Window:
    """From one time of day to another, UTC, on days of the week. A window past midnight belongs to its opening day."""

    opens: time
    closes: time  # exclusive; equal to `opens` means a complete day
    days: tuple[str, ...] = DAYS  # opening days

    def as_dict(self) -> dict[str, Any]:
        """Return the window as in the API."""
        hours = {"from": f"{self.opens:%H:%M}", "to": f"{self.closes:%H:%M}"}
        return hours if self.days == DAYS else {**hours, "days": list(self.days)}

    def is_open(self, at: datetime) -> bool:
        return any(opened <= at < closing for opened, closing in self._around(at))

    def opens_at(self, at: datetime) -> datetime:
        """Return `at` if the window is open then, else its next opening."""
        if self.is_open(at):
            return at
        return min(opened for opened, _ in self._around(at) if opened > at)

    def _around(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """Return openings and closings, from the day before to a week ahead."""
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
