"""One rule and one thing it looks at: from where it stands and the next value to where it stands then, and what to do.

The same steps judge what is sampled now and, for a preview, what was sampled last week. Times are seconds since 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

KEEP, FIRE, CLEAR = "keep", "fire", "clear"  # what no data means


class Phase(Enum):
    QUIET = "quiet"
    PENDING = "pending"  # true, not yet for long enough
    FIRING = "firing"


class Act(Enum):
    OPEN = "open"  # it became true
    DROP = "drop"  # it was true, and not for long enough
    FIRE = "fire"
    RESOLVE = "resolve"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a rule. It is true above `threshold`; `clear` is None where that is the same number."""

    threshold: float
    clear: float | None = None
    for_s: float = 0.0
    keep_firing_s: float = 0.0
    no_data: str = KEEP

    @property
    def clears_at(self) -> float:
        return self.threshold if self.clear is None else self.clear


@dataclass(frozen=True, slots=True)
class Stand:
    """The state of a rule for one queue, or for another subject."""

    phase: Phase = Phase.QUIET
    opened_at: float | None = None  # since when it is true
    below_since: float | None = None  # while firing: at or below `clear` since then, without a break
    judged_at: float = -math.inf  # the moment of the value that it was judged by last
    value: float | None = None  # that value; of moments without data the last before
    peak: float = 0.0


QUIET = Stand()


def step(
    stand: Stand, value: float | None, at: float, numbers: Numbers, *, is_blocked: bool = False
) -> tuple[Stand, Act | None]:
    """Return where it stands after a value of the moment `at`, and what to do, if anything.

    `value` is None where there is no data. A value that is not younger than the last changes nothing. While it is held
    (what it looks at cannot be trusted) it neither fires nor resolves nor passes; it may become true.
    """
    if at <= stand.judged_at:
        return stand, None
    if value is not None and math.isnan(value):
        value = None
    seen = stand if value is None else replace(stand, value=value)
    seen = replace(seen, judged_at=at)
    is_above = value > numbers.threshold if value is not None else numbers.no_data == FIRE
    if seen.phase is not Phase.QUIET and value is not None and value > seen.peak:
        seen = replace(seen, peak=value)
    if is_blocked and value is None:
        is_above = False
    if seen.phase is Phase.QUIET:
        return _begin(seen, at, numbers, is_blocked) if is_above else (seen, None)
    if is_blocked:
        return replace(seen, below_since=None), None
    if value is None and numbers.no_data == KEEP:
        return replace(seen, below_since=None), None
    if seen.phase is Phase.PENDING:
        return _waiting(seen, at, numbers, is_above)
    is_below = not is_above and (value is None or value <= numbers.clears_at)
    return _firing(seen, at, numbers, is_below)


def _begin(seen: Stand, at: float, numbers: Numbers, is_blocked: bool) -> tuple[Stand, Act]:
    fires = numbers.for_s <= 0 and not is_blocked
    begun = replace(
        seen, phase=Phase.FIRING if fires else Phase.PENDING, opened_at=at, below_since=None, peak=seen.value or 0.0
    )
    return begun, Act.FIRE if fires else Act.OPEN


def _waiting(seen: Stand, at: float, numbers: Numbers, is_above: bool) -> tuple[Stand, Act | None]:
    if not is_above:
        return Stand(judged_at=at, value=seen.value), Act.DROP
    if seen.opened_at is not None and at - seen.opened_at >= numbers.for_s:
        return replace(seen, phase=Phase.FIRING), Act.FIRE
    return seen, None


def _firing(seen: Stand, at: float, numbers: Numbers, is_below: bool) -> tuple[Stand, Act | None]:
    if not is_below:
        return replace(seen, below_since=None), None
    since = at if seen.below_since is None else seen.below_since
    if at - since >= numbers.keep_firing_s:
        return Stand(judged_at=at, value=seen.value, peak=seen.peak), Act.RESOLVE
    return replace(seen, below_since=since), None
