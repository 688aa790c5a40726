"""How fast to go: up by small steps while what was sent runs well, down by a share when it does not.

Additive increase, multiplicative decrease (Chiu and Jain 1989), on the outcomes of first attempts. Three things make it
gentle enough for a service that falls over at 1.3 times what it bears:

- a step waits until jobs sent *since the last step* came home, and is never more than a fifth of what was seen to work;
- near a rate that failed it goes slowly, and faster again once that is behind (the curve of CUBIC, RFC 9438);
- what failed is judged against what usually fails, so that broken jobs do not slow down whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs_admin.core.pacing.evidence import Evidence, Judged, surely_above

RAMP_S = 60.0  # from the lowest rate to the highest at the soonest
GROWTH = 0.1  # of the rate, a second, at most
STEP = 0.2  # of the rate, at once, at most
BACK = 0.85  # of what was seen to work: where a decrease goes
FURTHEST_BACK = 0.5  # of the rate
PLATEAU_S = 15.0  # until a ceiling is reached again
FORGOTTEN = 1.25  # times a ceiling: then it is none any more
TOLERATED = 0.01  # of first attempts may fail beyond what usually does, for sure
SLOWER = 2.0  # times the usual runtime: too slow …
SLOWER_S = 0.1  # … if it is by so much
FRESH_S = 0.5  # until the sender goes at a new rate


@dataclass(slots=True)
class Steering:
    """What it remembers; plain numbers, so that any process can go on."""

    rate: float
    changed_at: float
    fresh: int = 0  # came home of what was sent since the last change
    well: float = 0.0  # of these and, halved with each step up, of those before
    failed: float = 0.0
    elapsed_s: float = 0.0  # since the last change
    usual: float = 0.0  # the share that fails whatever the rate
    ceiling: float | None = None  # what worked where it failed
    below: float = 0.0  # the rate that it went down to then
    climbing_s: float = 0.0  # since then
    usual_runtime: float | None = None  # natural logarithm of seconds, as are:
    runtime: float = 0.0  # … the sum over
    runtimes: int = 0  # … so many that came home since the last change

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def learn(self, judged: Sequence[Judged]) -> None:
        """From the canary: its runtimes are the usual ones."""
        known = [(math.log(max(one.runtime_s, 1e-3)), one.n) for one in judged if one.ok and one.runtime_s is not None]
        for runtime, n in known:
            self.runtime += runtime * n
            self.runtimes += n
        if self.runtimes:
            self.usual_runtime = self.runtime / self.runtimes

    def steer(self, judged: Sequence[Judged], passed_s: float, now: float, low: float, high: float) -> Evidence | None:
        """Look at what came home and set the rate. Evidence only where it goes down."""
        self.rate = min(max(self.rate, low), high)
        self.elapsed_s += passed_s
        self.climbing_s += passed_s
        self._note(judged)
        if self.rate > low and (why := self._trouble()):
            return self._down(why, now, low)
        if self.fresh >= min(max(self.rate / 2, 1), 20):
            self._adapt(low)
            if self.rate < high:
                self._up(now, low, high)
        return None

    def _note(self, judged: Sequence[Judged]) -> None:
        for one in judged:
            if one.sent_at < self.changed_at:
                continue
            self.fresh += one.n
            if not one.ok:
                self.failed += one.n
                continue
            self.well += one.n
            if one.runtime_s is not None:
                self.runtime += math.log(max(one.runtime_s, 1e-3)) * one.n
                self.runtimes += one.n

    def _trouble(self) -> Evidence | None:
        total = self.well + self.failed
        if self.failed >= 1.5 and surely_above(self.failed, total) > self.usual + TOLERATED:
            return Evidence("backed_off", failed=round(self.failed), judged=round(total), limit=self.usual + TOLERATED)
        if self.usual_runtime is None or self.runtimes < 20:
            return None
        now_s, usual_s = math.exp(self.runtime / self.runtimes), math.exp(self.usual_runtime)
        if now_s > SLOWER * usual_s and now_s > usual_s + SLOWER_S:
            return Evidence("slower", runtime_s=now_s, usual_s=usual_s)
        return None

    def _down(self, why: Evidence, now: float, low: float) -> Evidence:
        total = self.well + self.failed
        worked = self.rate * (1 - max(0.0, self.failed / total - self.usual)) if total else self.rate
        before, self.rate = self.rate, max(low, BACK * worked, FURTHEST_BACK * self.rate)
        self.ceiling, self.below, self.climbing_s = max(worked, self.rate), self.rate, 0.0
        self.well = self.failed = 0.0
        self._change(now + FRESH_S)
        return Evidence(**{**why.as_dict(), "rate": before, "to_rate": self.rate})

    def _up(self, now: float, low: float, high: float) -> None:
        step = min(self.rate * min(GROWTH * self.elapsed_s, STEP), (high - low) / RAMP_S * self.elapsed_s)
        rate = self.rate + step
        if self.ceiling is not None:
            way = (self.climbing_s - PLATEAU_S) / PLATEAU_S
            rate = min(rate, self.ceiling + (self.ceiling - self.below) * way**3)
            if rate > FORGOTTEN * self.ceiling:
                self.ceiling = None
        self.rate = min(high, max(self.rate, rate))
        self.well, self.failed = self.well / 2, self.failed / 2
        self._change(now)

    def _adapt(self, low: float) -> None:
        """What fails, and how long it takes, without trouble is usual. At the lowest rate it cannot be the rate."""
        slow = self.rate <= low
        weight = min(0.5, self.fresh / 50) if slow else min(0.1, self.fresh / 1000)
        if total := self.well + self.failed:
            self.usual += (self.failed / total - self.usual) * weight
        if self.runtimes:
            runtime = self.runtime / self.runtimes
            self.usual_runtime = (
                runtime if self.usual_runtime is None else self.usual_runtime + (runtime - self.usual_runtime) * weight
            )

    def _change(self, at: float) -> None:
        self.changed_at, self.fresh, self.elapsed_s = at, 0, 0.0
        self.runtime, self.runtimes = 0.0, 0
