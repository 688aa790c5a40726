"""Steering of a replay's rate: up in small steps while jobs succeed, down by a share when they fail.

Additive increase, multiplicative decrease (Chiu and Jain 1989), by the outcomes of first attempts. Three rules make it
safe for a service that fails at 1.3 times its capacity:

- a step waits for the outcomes of jobs sent *since the last step*, and is at most a tenth of the rate known to work;
- near a rate that failed it climbs slowly, and faster again beyond it (the curve of CUBIC, RFC 9438);
- failures are compared with the usual share, so that broken jobs do not slow down sound ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jobs_admin.core.pacing.evidence import FEWEST, Evidence, Judged, surely_above, surely_below

RAMP_S = 45.0  # minimum time from the lowest rate to the highest
GROWTH = 0.1  # of the rate, per second, maximum
STEP = 0.1  # of the rate, per step, maximum …
SLOW, SLOW_STEP = 5.0, 0.05  # … and below this rate, where a few requests matter
BACK = 0.85  # of the rate known to work: target of a decrease
FURTHEST_BACK = 0.5  # of the rate: largest decrease
CEILING = 0.95  # of the rate known to work: plateau of the next climb
CALM = 0.45  # of the rate at which trouble began: failures below it are not caused by the rate …
CALM_S, CALM_JOBS = 30.0, 60  # … if it stayed there for this time and number of jobs
MILD = 0.2  # certain share of failures above which it decreases further, even from there
CANARY_USUAL = 0.1  # maximum failure share of a canary that is taken as usual
EASED = 0.9  # of the rate: after the first unusual failure
PLATEAU_S, PLATEAU_JOBS = 12.0, 400  # time until the plateau is reached again …
PATIENCE = 64.0  # … multiplied by up to this factor, which doubles when trouble starts at no more than …
SAME = 1.2  # … this multiple of the rate at which it last started
FORGOTTEN = 1.25  # multiple of a ceiling above which the ceiling is dropped
TOLERATED = 0.01  # certain share of failures allowed beyond 1.5 times the usual share
SLOWER = 2.0  # multiple of the usual runtime that is too slow …
SLOWER_S = 0.1  # … if the difference is at least this
FIRST_RUNTIMES = 40  # number of runtimes that set the usual one
MOST_FRESH = 20  # first attempts between two steps up, or one second's
FRESH_OF_S = 4.0  # in a slow replay: those of this number of seconds
FRESH_OF_USUAL = 500  # additional ones, times the usual failure share, which hides the effect of the rate
SURE_OF_USUAL = 100  # minimum, times the usual failure share, for any conclusion
LONG_SUSPICIOUS = 300  # first attempts at one rate with more failures than usual, though not with confidence
CARRIED = 0.25  # share of the earlier evidence that remains after a step up
MEMORY = 400  # latest first attempts: an hour of success must not hide current failures
FRESH_S = 0.5  # until the sender uses a new rate


@dataclass(slots=True)
class Steering:
    """State of the steering: plain numbers, so that any process can continue."""

    rate: float
    changed_at: float
    down_at: float = 0.0  # jobs sent before the last decrease are not evidence
    fresh: int = 0  # outcomes of jobs sent since the last change
    well: float = 0.0  # successes of jobs sent since the last decrease; each step up reduces their weight
    failed: float = 0.0
    elapsed_s: float = 0.0  # since the last change
    usual: float = 0.0  # failure share at any rate
    usual_of: float = 0.0  # number of jobs behind it
    before: float = 0.0  # rate when trouble began; 0 once reached again
    calm_s: float = 0.0  # time at CALM of that rate or less …
    calm_judged: int = 0  # … first attempts sent then …
    calm_failed: int = 0  # … and failed ones
    eased: bool = False
    # it still fails at a lower rate, with confidence more than before the trouble and than usual
    has_fallen: bool = False
    quiet_well: float = 0.0  # first attempts without trouble: successes …
    quiet_failed: float = 0.0  # … and failures
    ceiling: float | None = None  # rate that worked when a higher one failed
    met: float = 0.0  # rate at which trouble last began
    patience: float = 1.0  # factor by how often the same ceiling was reached
    climbing_s: float = 0.0  # since the last decrease
    usual_runtime: float | None = None  # natural logarithm of seconds, like:
    runtime: float = 0.0  # … the sum, and
    runtime_squares: float = 0.0  # … the sum of squares, over
    runtimes: int = 0  # … this number of outcomes since the last change

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Steering:
        """Restore a state of any version: unknown fields are dropped, missing ones start at their defaults."""
        known = {one.name for one in fields(Steering)}
        if values.get("downs") == 0:  # of a version in which `before` outlasted the trouble, and `downs` ended it
            known.discard("before")
        return Steering(**{name: value for name, value in values.items() if name in known})

    @property
    def fastest(self) -> float:
        """Rate at which the trouble began; without trouble, the current one."""
        return self.before or self.rate

    def steer(
        self,
        judged: Sequence[Judged],
        passed_s: float,
        now: float,
        low: float,
        high: float,
        most_usual: float = 1.0,
        *,
        is_canary: bool = False,
    ) -> Evidence | None:
        """Set the rate by the outcomes. Return evidence only for a decrease.

        At most the share `most_usual` is taken as usual. A canary's rate only decreases after many failures.
        """
        self.rate = min(max(self.rate, low), high)
        self.elapsed_s += passed_s
        self.climbing_s += passed_s
        self._note(judged, passed_s)
        self._learn_usual(most_usual)
        if why := self._trouble():
            if self.rate <= low:
                self._judge_from(now)  # stay here until as many jobs succeed as for a step up
            elif self._is_bad or not (is_canary or self._is_calm):
                return self._down(why, judged, now, low)
        elif self._is_suspicious and not (self.eased or is_canary or self._is_calm):
            self.rate, self.eased = max(low, EASED * self.rate), True
        if self.fresh >= self._enough:
            self._adapt()
            if self.rate < high and not self._is_suspicious:
                self._up(now, low, high)
        return None

    def leave_canary(self, failed: int, judged: int) -> None:
        """Take the canary's failure share as usual, if small."""
        if judged >= 4 * FEWEST and failed <= CANARY_USUAL * judged:
            self.usual, self.usual_of = failed / judged, judged
            self.well = self.failed = 0.0

    @property
    def _is_calm(self) -> bool:
        """Return whether the rate is far below the one at which trouble began: a lower rate would not help."""
        return self.rate <= CALM * self.before

    @property
    def _is_bad(self) -> bool:
        total = self.well + self.failed
        return total >= 2 * FEWEST and surely_above(self.failed, total) > MILD

    @property
    def _is_suspicious(self) -> bool:
        """Return whether more failed than usual, though not with confidence: wait.

        Current failures return as native retries.
        """
        return self.failed > self._borne * (self.well + self.failed)

    @property
    def _borne(self) -> float:
        """Allowed failure share: the usual share's upper bound."""
        return surely_below(self.usual * self.usual_of, self.usual_of) + TOLERATED if self.usual else TOLERATED

    @property
    def _enough(self) -> float:
        """First attempts at this rate before the next step."""
        least = MOST_FRESH + FRESH_OF_USUAL * self.usual
        return max(1.0, self.rate / 2, least if self.met else min(least, FRESH_OF_S * self.rate))

    def _note(self, judged: Sequence[Judged], passed_s: float) -> None:
        is_calm = self._is_calm
        self.calm_s += passed_s if is_calm else 0.0
        for one in judged:
            if one.sent_at < self.down_at:
                continue
            self.fresh += one.n if one.sent_at >= self.changed_at else 0
            if is_calm:
                self.calm_judged += one.n
                self.calm_failed += 0 if one.ok else one.n
            if not self.before:
                self.quiet_well += one.n if one.ok else 0
                self.quiet_failed += 0 if one.ok else one.n
            if one.ok:
                self.well += one.n
                self._time(one)
            else:
                self.failed += one.n
        if (total := self.well + self.failed) > MEMORY:
            self.well, self.failed = MEMORY * self.well / total, MEMORY * self.failed / total

    def _time(self, one: Judged) -> None:
        if one.ok and one.runtime_s is not None:
            runtime = math.log(max(one.runtime_s, 1e-3))
            self.runtime += runtime * one.n
            self.runtime_squares += runtime * runtime * one.n
            self.runtimes += one.n
            if self.usual_runtime is None and self.runtimes >= FIRST_RUNTIMES:
                self.usual_runtime = self.runtime / self.runtimes

    def _trouble(self) -> Evidence | None:
        total = self.well + self.failed
        is_sure = total >= SURE_OF_USUAL * self.usual and surely_above(self.failed, total) > self._borne
        if self.failed >= 1.5 and (is_sure or (self._is_suspicious and total >= LONG_SUSPICIOUS)):
            return Evidence("backed_off", failed=round(self.failed), judged=round(total), limit=self._borne)
        return self._slowness()

    def _slowness(self) -> Evidence | None:
        """Return evidence of runtimes above twice the usual one, with confidence: jobs of one replay may vary
        widely.
        """
        if self.usual_runtime is None or self.runtimes < MOST_FRESH:
            return None
        mean = self.runtime / self.runtimes
        spread = math.sqrt(max(0.0, self.runtime_squares / self.runtimes - mean * mean) / self.runtimes)
        usual_s = math.exp(self.usual_runtime)
        if math.exp(mean - 2 * spread) > SLOWER * usual_s and math.exp(mean) > usual_s + SLOWER_S:
            return Evidence("slower", runtime_s=math.exp(mean), usual_s=usual_s)
        return None

    def _learn_usual(self, most: float) -> None:
        """Learn the usual failure share at a much lower rate, after long enough."""
        if self.calm_s < CALM_S or self.calm_judged < CALM_JOBS or not self._is_calm:
            return
        if self.calm_failed <= most * self.calm_judged:
            if self._borne < self.calm_failed / self.calm_judged <= MILD:
                self.ceiling, self.met, self.patience = None, 0.0, 1.0  # the rate was not the cause
            self.usual, self.usual_of = self.calm_failed / self.calm_judged, self.calm_judged
        if self._slowness():
            self.usual_runtime = self.runtime / self.runtimes

    def _leave_trouble(self) -> None:
        self.before = self.calm_s = 0.0
        self.calm_judged = self.calm_failed = 0

    def _down(self, why: Evidence, judged: Sequence[Judged], now: float, low: float) -> Evidence:
        total = self.well + self.failed
        share = max(self.failed / total if total else 0.0, _share_failed(judged))
        worked = self.rate * (1 - max(0.0, share - self.usual))
        quiet = self.quiet_well + self.quiet_failed
        # A few failures near the capacity become suspicious over time; that is no outage.
        is_new = surely_above(self.failed, total) > max(self._borne, surely_below(self.quiet_failed, quiet))
        is_no_higher = bool(self.ceiling) and self.changed_at == self.down_at
        self.has_fallen = is_no_higher and self.climbing_s < PLATEAU_S and is_new
        if not self.before or self._is_calm:
            self._leave_trouble()
            self.before = self.rate
        if self.climbing_s >= PLATEAU_S:
            self.patience = min(PATIENCE, 2 * self.patience) if self.rate < SAME * self.met else 1.0
            self.met = self.rate
        before, self.rate = self.rate, max(low, BACK * worked, FURTHEST_BACK * self.rate)
        self.ceiling, self.climbing_s = max(CEILING * worked, self.rate), 0.0
        self._judge_from(now + FRESH_S)
        return Evidence(**{**why.as_dict(), "rate": before, "to_rate": self.rate})

    def restart(self, rate: float) -> None:
        """Continue at a much lower rate, and climb without a ceiling: the climb has another limit."""
        self.rate, self.ceiling = rate, None

    def _judge_from(self, at: float) -> None:
        """Restart the evidence: jobs sent before do not count."""
        self.well = self.failed = 0.0
        self.down_at = at
        self._change(at)

    def _up(self, now: float, low: float, high: float) -> None:
        most = SLOW_STEP if self.rate < SLOW else STEP
        step = min(self.rate * min(GROWTH * self.elapsed_s, most), (high - low) / RAMP_S * self.elapsed_s)
        rate = self.rate + step
        if self.ceiling is not None:
            plateau_s = self.patience * max(PLATEAU_S, PLATEAU_JOBS / self.ceiling)
            way = (self.climbing_s - plateau_s) / plateau_s
            rate = min(rate, self.ceiling * (1 + (1 - BACK) * way**3))
            if rate > FORGOTTEN * self.ceiling:
                self.ceiling = None
        self.rate = min(high, max(self.rate, rate))
        if self.ceiling is None or self.rate >= self.before:
            self._leave_trouble()
        self.well, self.failed = CARRIED * self.well, CARRIED * self.failed
        self._change(now)

    def _adapt(self) -> None:
        """Lower the usual failure share and runtime, never raise them: otherwise a slight excess would gradually
        become usual.
        """
        total = self.well + self.failed
        share = self.failed / max(1.0, total)
        if share < self.usual:
            # Clearly fewer: the share taken as usual was a partial outage.
            self.usual = min(self.usual, surely_below(self.failed, total))
            self.usual += min(0.0, share - self.usual) * min(0.1, self.fresh / 1000)
        if self.usual_runtime is not None and self.runtimes:
            runtime = self.runtime / self.runtimes
            self.usual_runtime += min(0.0, runtime - self.usual_runtime) * min(0.1, self.fresh / 1000)

    def _change(self, at: float) -> None:
        self.changed_at, self.fresh, self.elapsed_s = at, 0, 0.0
        self.eased = self.eased and self.failed > 0
        if self.usual_runtime is not None:
            self.runtime, self.runtime_squares, self.runtimes = 0.0, 0.0, 0


def _share_failed(judged: Sequence[Judged]) -> float:
    """Return the failure share of the outcomes just reported, the most recent evidence; 0 if too few."""
    total = sum(one.n for one in judged)
    return sum(one.n for one in judged if not one.ok) / total if total >= FEWEST else 0.0
