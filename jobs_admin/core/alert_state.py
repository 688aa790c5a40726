"""State of an alert rule for one subject: from a state and the next value to the new state and an action.

The same steps evaluate current samples and, for a preview, those of last week. Times are Unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

KEEP, FIRE, CLEAR = "keep", "fire", "clear"  # effect of missing data


class Phase(Enum):
    QUIET = "quiet"
    PENDING = "pending"  # the condition is true, but not yet for long enough
    FIRING = "firing"


class Act(Enum):
    OPEN = "open"  # the condition became true
    DROP = "drop"  # the condition was true, but not for long enough
    FIRE = "fire"
    RESOLVE = "resolve"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of a rule. The condition is true above `threshold`; `clear` None: same as `threshold`."""

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
    """State of a rule for one queue or other subject."""

    phase: Phase = Phase.QUIET
    opened_at: float | None = None  # start of the condition being true
    below_since: float | None = None  # while firing: start of the unbroken time at or below `clear`
    judged_at: float = -math.inf  # time of the latest evaluated value
    value: float | None = None  # that value; without data, the previous one
    peak: float = 0.0


QUIET = Stand()


def step(
    stand: Stand, value: float | None, at: float, numbers: Numbers, *, is_blocked: bool = False
) -> tuple[Stand, Act | None]:
    """Return the state after a value at the time `at`, and the action, if any.

    `value` is None without data. A value that is not newer than the last changes nothing. `is_blocked`: the subject
    cannot be trusted, so the alert neither fires nor resolves nor drops; its condition may become true.
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
