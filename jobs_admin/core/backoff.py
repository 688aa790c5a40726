"""How long to wait after a failed attempt. Seconds; attempts count from 1: the first wait is that after attempt 1.

First the backoff grows, then the cap cuts it, then jitter spreads it, and jitter never goes beyond the cap: docs/policies.md
has the formulas with their sources. Nothing overflows at any attempt, and no wait is negative, NaN, or above
`policy.longest_s`, but for what a server asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jobs_admin.core import decorrelated
from jobs_admin.core.policy.shape import Backoff, Policy

_DRAWN = 10  # sidekiq: rand(10)


@dataclass(frozen=True, slots=True)
class Range:
    """The waits that may follow one attempt, all equally likely unless the backoff is decorrelated."""

    shortest_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Step:
    attempt: int  # the wait is the one after this attempt
    shortest_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A uniform law: from `least` to `most`, in as many equal `steps` (0 without steps: every number in between)."""

    least: float
    most: float
    steps: int = 0

    def at(self, u: float) -> float:
        """The wait for a number from 0 up to, not including, 1."""
        width = self.most - self.least
        # Steps last: whole seconds stay whole. And rounding may carry the sum past the end.
        added = width * min(math.floor(u * (self.steps + 1)), self.steps) / self.steps if self.steps else width * u
        return min(self.most, self.least + added)


def spread(policy: Policy, attempt: int, previous_s: float | None = None) -> Spread:
    """The law of the wait after `attempt`. `previous_s`, the wait before it, matters only to a decorrelated backoff."""
    attempt, cap = _counted(attempt), policy.longest_s
    if policy.backoff.kind == "decorrelated":
        return Spread(*decorrelated.span(policy.backoff.first_delay_s, cap, attempt, previous_s))
    return _SPREADS[policy.jitter.kind](policy, min(cap, envelope(policy.backoff, attempt)), cap, attempt)


def envelope(backoff: Backoff, attempt: int) -> float:
    """What the backoff grows to, without cap and jitter; `inf` where it is beyond every number. Never falls, but in a table."""
    n = _counted(attempt)
    match backoff.kind:
        case "exponential":
            return _product(backoff.first_delay_s, _power(backoff.factor, n - 1))
        case "linear":
            return backoff.first_delay_s * n
        case "table":
            return backoff.delays_s[min(n, len(backoff.delays_s)) - 1]
        case "polynomial":
            return _product(backoff.first_delay_s, _power(n - 1, backoff.power)) + backoff.plus_s
        case _:  # fixed; decorrelated begins with it
            return backoff.first_delay_s


def delay(
    policy: Policy,
    attempt: int,
    random: Callable[[], float],
    previous_s: float | None = None,
    asked_s: float | None = None,
) -> float:
    """The wait after `attempt`, drawn with one call of `random` (from 0 up to, not including, 1).

    Where a server asked for `asked_s` the wait is never shorter: what was asked with a share on top, or the backoff where
    that is longer. So a server that always asks for a second does not use up all attempts in seconds.
    """
    u = random()
    own = spread(policy, attempt, previous_s).at(u)
    return own if asked_s is None else max(own, asked(policy, asked_s).at(u))


def asked(policy: Policy, asked_s: float) -> Spread:
    """From what a server asked for to a share more, but no more than the cap of what may be asked for."""
    wish = policy.retry_after
    return Spread(asked_s, max(asked_s, min(asked_s * (1 + wish.jitter), wish.cap_s)))


def bounds(policy: Policy, attempt: int) -> Range:
    """What the wait after `attempt` may be, whatever was waited before."""
    if policy.backoff.kind == "decorrelated":
        known = policy.backoff.first_delay_s, policy.longest_s, _counted(attempt)
        return Range(known[0], decorrelated.longest_s(*known), decorrelated.mean_s(*known))
    found = spread(policy, attempt)
    return Range(found.least, found.most, (found.least + found.most) / 2)


def schedule(policy: Policy) -> list[Step]:
    """The waits after attempts 1 to max_attempts - 1; none after the last."""
    ranges = ((n, bounds(policy, n)) for n in range(1, policy.max_attempts))
    return [Step(n, one.shortest_s, one.longest_s, one.mean_s) for n, one in ranges]


def _none(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait, wait)


def _full(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(0.0, wait)


def _equal(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait / 2, wait)


def _down(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait * (1 - policy.jitter.fraction), wait)


def _plus_minus(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    # The range is cut, not what is drawn from it: else half of all capped jobs would wait exactly the cap, and wake together.
    fraction = policy.jitter.fraction
    return Spread(wait * (1 - fraction), min(cap, wait * (1 + fraction)))


def _additive(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return _below(cap, wait, policy.jitter.seconds)


def _celery(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    whole = math.floor(wait)  # randrange(whole + 1): the end is included
    return Spread(0.0, float(whole), whole)


def _sidekiq(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    most = _DRAWN - 1  # rand(10) * (count + 1), and count is from 0
    found = _below(cap, wait, float(most * attempt))
    return Spread(found.least, found.most, most)


def _below(cap: float, wait: float, width: float) -> Spread:
    """From the wait to `width` more; at the cap as far below it, so that capped jobs keep their jitter."""
    return Spread(wait, wait + width) if wait + width <= cap else Spread(max(0.0, cap - width), cap)


_SPREADS: dict[str, Callable[[Policy, float, float, int], Spread]] = {
    "none": _none,
    "full": _full,
    "equal": _equal,
    "down": _down,
    "plus_minus": _plus_minus,
    "additive": _additive,
    "celery": _celery,
    "sidekiq": _sidekiq,
}


def _counted(attempt: int) -> int:
    """Counted from 1, and no more than a float counts exactly."""
    return max(1, min(attempt, 2**53))


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _product(one: float, other: float) -> float:
    return 0.0 if one == 0 or other == 0 else one * other  # 0 * inf is NaN
