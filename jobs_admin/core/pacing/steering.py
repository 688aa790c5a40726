"""How fast to go: up by small steps while what was sent runs well, down by a share when it does not.

Additive increase, multiplicative decrease (Chiu and Jain 1989), on the outcomes of first attempts. Three things make it
gentle enough for a service that falls over at 1.3 times what it bears:

- a step waits until jobs sent *since the last step* came home, and is never more than a tenth of the rate that was seen to work;
- near a rate that failed it goes slowly, and faster again once that is behind (the curve of CUBIC, RFC 9438);
- what failed is judged against what usually fails, so that broken jobs do not slow down whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jobs_admin.core.pacing.evidence import FEWEST, Evidence, Judged, surely_above

RAMP_S = 45.0  # from the lowest rate to the highest at the soonest
GROWTH = 0.1  # of the rate, a second, at most
STEP = 0.1  # of the rate, at once, at most
BACK = 0.85  # of what was seen to work: where a decrease goes
FURTHEST_BACK = 0.5  # of the rate
CEILING = 0.95  # of what was seen to work: where the climb after it becomes flat
IN_VAIN = 3  # decreases in a row …
HELPED = 0.7  # … after which not even this much of the first share of failures is gone
PLATEAU_S = 12.0  # until a ceiling is reached again
FORGOTTEN = 1.25  # times a ceiling: then it is none any more
TOLERATED = 0.01  # of first attempts may fail, for sure, beyond 1.5 times what usually does
SLOWER = 2.0  # times the usual runtime: too slow …
SLOWER_S = 0.1  # … if it is by so much
MOST_FRESH = 20  # first attempts between two steps up, at most
KEPT = 0.25  # of what was known, after a step up
FRESH_S = 0.5  # until the sender goes at a new rate


@dataclass(slots=True)
class Steering:
    """What it remembers; plain numbers, so that any process can go on."""

    rate: float
    changed_at: float
    down_at: float = 0.0  # what was sent before the last step down is no evidence any more
    fresh: int = 0  # came home of what was sent since the last change
    well: float = 0.0  # of what was sent since the last step down; with each step up less of it counts
    failed: float = 0.0
    elapsed_s: float = 0.0  # since the last change
    usual: float = 0.0  # the share that fails whatever the rate
    downs: int = 0  # in a row, without a step up in between
    share: float = 0.0  # that failed at the first of these
    before: float = 0.0  # the rate before the first of these
    ceiling: float | None = None  # what worked where it failed
    climbing_s: float = 0.0  # since it went down
    usual_runtime: float | None = None  # natural logarithm of seconds, as are:
    runtime: float = 0.0  # … the sum, and
    runtime_squares: float = 0.0  # … that of the squares, over
    runtimes: int = 0  # … so many that came home since the last change

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Steering:
        """What another version wrote and this one does not know is left out; what it did not know begins anew."""
        known = {one.name for one in fields(Steering)}
        return Steering(**{name: value for name, value in values.items() if name in known})

    def learn(self, judged: Sequence[Judged]) -> None:
        """From the canary: its runtimes are the usual ones."""
        for one in judged:
            self._time(one)
        if self.runtimes:
            self.usual_runtime = self.runtime / self.runtimes

    @property
    def fastest(self) -> float:
        """The rate that its trouble began at; without any, the present one."""
        return self.before if self.downs else self.rate

    def begin(self, at: float, usual: float) -> None:
        """The canary is through; such a share of it failed."""
        self.usual, self.down_at = usual, at
        self._change(at)

    def steer(self, judged: Sequence[Judged], passed_s: float, now: float, low: float, high: float) -> Evidence | None:
        """Look at what came home and set the rate. Evidence only where it goes down."""
        self.rate = min(max(self.rate, low), high)
        self.elapsed_s += passed_s
        self.climbing_s += passed_s
        self._note(judged)
        if self.rate > low and (why := self._trouble()):
            if not self._is_not_the_rate(why):
                return self._down(why, judged, now, low)
            self._take_as_usual(why)
        if self.fresh >= self._enough(high):
            self._adapt(low)
            if self.rate < high and not self._is_suspicious:
                self._up(now, low, high)
        return None

    @property
    def _is_suspicious(self) -> bool:
        """More failed than usual, if not for sure: wait and see. Of jobs that fail now, each comes back as native retries."""
        return self.failed > self._borne * (self.well + self.failed)

    @property
    def _borne(self) -> float:
        """The share that may fail: what usually does is not known better than that."""
        return 1.5 * self.usual + TOLERATED

    def _enough(self, high: float) -> float:
        """First attempts at this rate before the next step: half a second's, and more of them the nearer the top is."""
        return min(MOST_FRESH, max(1.0, self.rate / 2, 4 * MOST_FRESH * self.rate / high))

    def _note(self, judged: Sequence[Judged]) -> None:
        for one in judged:
            if one.sent_at < self.down_at:
                continue
            self.fresh += one.n if one.sent_at >= self.changed_at else 0
            if one.ok:
                self.well += one.n
                self._time(one)
            else:
                self.failed += one.n

    def _time(self, one: Judged) -> None:
        if one.ok and one.runtime_s is not None:
            runtime = math.log(max(one.runtime_s, 1e-3))
            self.runtime += runtime * one.n
            self.runtime_squares += runtime * runtime * one.n
            self.runtimes += one.n

    def _trouble(self) -> Evidence | None:
        total = self.well + self.failed
        if self.failed >= 1.5 and surely_above(self.failed, total) > self._borne:
            return Evidence("backed_off", failed=round(self.failed), judged=round(total), limit=self._borne)
        return self._slowness()

    def _slowness(self) -> Evidence | None:
        """Beyond doubt more than twice the usual: jobs of one replay may take very different times."""
        if self.usual_runtime is None or self.runtimes < MOST_FRESH:
            return None
        mean = self.runtime / self.runtimes
        spread = math.sqrt(max(0.0, self.runtime_squares / self.runtimes - mean * mean) / self.runtimes)
        usual_s = math.exp(self.usual_runtime)
        if math.exp(mean - 2 * spread) > SLOWER * usual_s and math.exp(mean) > usual_s + SLOWER_S:
            return Evidence("slower", runtime_s=math.exp(mean), usual_s=usual_s)
        return None

    def _is_not_the_rate(self, why: Evidence) -> bool:
        """Going slower did not help, again and again."""
        share = self.failed / max(1.0, self.well + self.failed)
        return self.downs >= IN_VAIN and (why.kind == "slower" or share > HELPED * self.share)

    def _take_as_usual(self, why: Evidence) -> None:
        self.downs = 0
        if why.kind == "slower":
            self.usual_runtime = self.runtime / self.runtimes
        else:
            self.usual = self.failed / (self.well + self.failed)

    def _down(self, why: Evidence, judged: Sequence[Judged], now: float, low: float) -> Evidence:
        total = self.well + self.failed
        share = max(self.failed / total if total else 0.0, _share_failed(judged))
        worked = self.rate * (1 - max(0.0, share - self.usual))
        if not self.downs:
            self.share, self.before = share, self.rate
        self.downs += 1
        before, self.rate = self.rate, max(low, BACK * worked, FURTHEST_BACK * self.rate)
        self.ceiling, self.climbing_s = max(CEILING * worked, self.rate), 0.0
        self.well = self.failed = 0.0
        self.down_at = now + FRESH_S
        self._change(self.down_at)
        return Evidence(**{**why.as_dict(), "rate": before, "to_rate": self.rate})

    def _up(self, now: float, low: float, high: float) -> None:
        step = min(self.rate * min(GROWTH * self.elapsed_s, STEP), (high - low) / RAMP_S * self.elapsed_s)
        rate = self.rate + step
        if self.ceiling is not None:
            way = (self.climbing_s - PLATEAU_S) / PLATEAU_S
            rate = min(rate, self.ceiling * (1 + (1 - BACK) * way**3))
            if rate > FORGOTTEN * self.ceiling:
                self.ceiling = None
        self.rate, self.downs = min(high, max(self.rate, rate)), 0
        self.well, self.failed = KEPT * self.well, KEPT * self.failed
        self._change(now)

    def _adapt(self, low: float) -> None:
        """What fails, and how long it takes, without trouble is usual. At the lowest rate it cannot be the rate."""
        weight = min(0.5, self.fresh / 50) if self.rate <= low else min(0.1, self.fresh / 1000)
        share = self.failed / max(1.0, self.well + self.failed)
        # Upwards only there: else a little too much, for long, would become usual bit by bit.
        if self.rate <= low or share < self.usual:
            self.usual += (share - self.usual) * weight
        if self.runtimes:
            runtime = self.runtime / self.runtimes
            usual = runtime if self.usual_runtime is None else self.usual_runtime
            if self.rate <= low or runtime < usual:
                usual += (runtime - usual) * weight
            self.usual_runtime = usual

    def _change(self, at: float) -> None:
        self.changed_at, self.fresh, self.elapsed_s = at, 0, 0.0
        self.runtime, self.runtime_squares, self.runtimes = 0.0, 0.0, 0


def _share_failed(judged: Sequence[Judged]) -> float:
    """Of what came home just now, which is nearer to how it stands than all that is known; 0 of too few."""
    total = sum(one.n for one in judged)
    return sum(one.n for one in judged if not one.ok) / total if total >= FEWEST else 0.0
