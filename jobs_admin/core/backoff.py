"""Delay after a failed attempt, in seconds. Attempts count from 1: the first delay follows attempt 1.

The backoff grows, the cap cuts it, then jitter spreads it, never beyond the cap: docs/policies.md has the formulas with
their sources. Nothing overflows at any attempt, and no delay is negative, NaN, or above `policy.longest_s`, except one
that a server requested.

Decorrelated backoff: each delay is uniform from the first delay to three times the previous one (Marc Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015: `min(cap, uniform(base, 3 * before))`). Here the cap
limits the range, not the drawn value: as published, two thirds of all jobs at the cap would wait exactly the cap and
wake together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from jobs_admin.core.policy.shape import Backoff, Policy

TIMES = 3.0
_CELLS = 200
_STEPS = 2_000  # after this many attempts the distribution no longer changes, whatever the cap
_SETTLED = 1e-7  # relative change of the mean from one attempt to the next


def span(first_s: float, cap_s: float, attempt: int, previous_s: float | None) -> tuple[float, float]:
    """Return the shortest and longest delay after `attempt`, given the previous delay (None: unknown).

    The previous delay may have been a server's request; it counts at most as much as this backoff could have produced.
    """
    before = min(max(first_s, previous_s or 0.0), longest_s(first_s, cap_s, attempt - 1))
    return first_s, min(cap_s, TIMES * before)


def longest_s(first_s: float, cap_s: float, attempt: int) -> float:
    """Return the longest delay that can follow `attempt`, whatever was drawn before."""
    try:
        return min(cap_s, first_s * math.pow(TIMES, attempt))
    except OverflowError:
        return cap_s


def mean_s(first_s: float, cap_s: float, attempt: int) -> float:
    """Return the mean delay after `attempt` over all earlier draws, to about one part in a thousand."""
    if longest_s(first_s, math.inf, attempt) <= cap_s:
        return first_s * (2 * math.pow(TIMES / 2, attempt) - 1)  # solution of E(n) = (first + 3 E(n-1)) / 2
    if TIMES * first_s >= cap_s:
        return (first_s + cap_s) / 2
    means = _means(first_s, cap_s)
    return means[min(attempt, len(means)) - 1]


@lru_cache(maxsize=64)
def _means(first: float, cap: float) -> tuple[float, ...]:
    """Return the means after attempts 1, 2 … until they are constant.

    The delay's distribution is computed from attempt to attempt, in cells.
    """
    edges = [first * (cap / first) ** (i / _CELLS) for i in range(_CELLS)] + [cap]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    tops = [min(cap, TIMES * middle) for middle in middles]
    last = [min(max(1, bisect_left(edges, top)), _CELLS) - 1 for top in tops]  # the cell that contains a top
    found = [(first + TIMES * first) / 2]
    masses = _spread([1.0], [TIMES * first], [bisect_left(edges, TIMES * first) - 1], edges)
    while len(found) < _STEPS and (len(found) < 2 or abs(found[-1] - found[-2]) > _SETTLED * found[-1]):
        found.append(sum(mass * (first + top) / 2 for mass, top in zip(masses, tops, strict=True)))
        masses = _spread(masses, tops, last, edges)
    return tuple(found)


def _spread(masses: list[float], tops: list[float], last: list[int], edges: list[float]) -> list[float]:
    """Return the mass per cell of masses that are each spread evenly from the first edge to their own top."""
    first = edges[0]
    ends, parts = [0.0] * _CELLS, [0.0] * _CELLS
    for mass, top, cell in zip(masses, tops, last, strict=True):
        density = mass / (top - first)
        ends[cell] += density
        parts[cell] += density * (top - edges[cell])
    found, above = [0.0] * _CELLS, 0.0
    for cell in reversed(range(_CELLS)):
        found[cell] = above * (edges[cell + 1] - edges[cell]) + parts[cell]
        above += ends[cell]
    return found


_DRAWN = 10  # sidekiq: rand(10)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of delays after one attempt, equally likely unless the backoff is decorrelated."""

    shortest_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Step:
    attempt: int  # the delay follows this attempt
    shortest_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Uniform distribution from `least` to `most`, in `steps` equal steps (0: continuous)."""

    least: float
    most: float
    steps: int = 0

    def at(self, u: float) -> float:
        """Return the delay for a number in [0, 1)."""
        width = self.most - self.least
        # Divide last: whole seconds stay whole. Rounding may exceed `most`.
        added = width * min(math.floor(u * (self.steps + 1)), self.steps) / self.steps if self.steps else width * u
        return min(self.most, self.least + added)


def spread(policy: Policy, attempt: int, previous_s: float | None = None) -> Spread:
    """Return the distribution of the delay after `attempt`.

    `previous_s`: the delay before it, for a decorrelated backoff.
    """
    attempt, cap = _bounded(attempt), policy.longest_s
    if policy.backoff.kind == "decorrelated":
        return Spread(*span(policy.backoff.first_delay_s, cap, attempt, previous_s))
    return _SPREADS[policy.jitter.kind](policy, min(cap, envelope(policy.backoff, attempt)), cap, attempt)


def envelope(backoff: Backoff, attempt: int) -> float:
    """Return the backoff's growth without cap and jitter; `inf` on overflow. Never decreases, except in a table."""
    n = _bounded(attempt)
    match backoff.kind:
        case "exponential":
            return _product(backoff.first_delay_s, _power(backoff.factor, n - 1))
        case "linear":
            return backoff.first_delay_s * n
        case "table":
            return backoff.delays_s[min(n, len(backoff.delays_s)) - 1]
        case "polynomial":
            return _product(backoff.first_delay_s, _power(n - 1, backoff.power)) + backoff.plus_s
        case _:  # fixed; also the start of decorrelated
            return backoff.first_delay_s


def delay(
    policy: Policy,
    attempt: int,
    random: Callable[[], float],
    previous_s: float | None = None,
    wish_s: float | None = None,
) -> float:
    """Return the delay after `attempt`, drawn with one call of `random` (in [0, 1)).

    With a server's requested delay `wish_s`, the result is at least the request plus a random share, or the backoff if
    that is longer. So a server that always requests a second does not use up all attempts within seconds.
    """
    u = random()
    own = spread(policy, attempt, previous_s).at(u)
    return own if wish_s is None else max(own, wish_spread(policy, wish_s).at(u))


def wish_spread(policy: Policy, wish_s: float) -> Spread:
    """Return the distribution from the requested delay to a share more, limited by the cap for requests."""
    wish = policy.retry_after
    return Spread(wish_s, max(wish_s, min(wish_s * (1 + wish.jitter), wish.cap_s)))


def bounds(policy: Policy, attempt: int) -> Range:
    """Return the range of the delay after `attempt`, whatever the previous delays."""
    if policy.backoff.kind == "decorrelated":
        known = policy.backoff.first_delay_s, policy.longest_s, _bounded(attempt)
        return Range(known[0], longest_s(*known), mean_s(*known))
    found = spread(policy, attempt)
    return Range(found.least, found.most, (found.least + found.most) / 2)


def schedule(policy: Policy) -> list[Step]:
    """Return the delays after attempts 1 to max_attempts - 1; none follows the last."""
    ranges = ((n, bounds(policy, n)) for n in range(1, policy.max_attempts))
    return [Step(n, one.shortest_s, one.longest_s, one.mean_s) for n, one in ranges]


def _without_jitter(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait, wait)


def _full(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(0.0, wait)


def _equal(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait / 2, wait)


def _down(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return Spread(wait * (1 - policy.jitter.fraction), wait)


def _plus_minus(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    # The range is limited, not the drawn value: otherwise half of all capped jobs would wait exactly the cap and wake
    # together.
    fraction = policy.jitter.fraction
    return Spread(wait * (1 - fraction), min(cap, wait * (1 + fraction)))


def _additive(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    return _below(cap, wait, policy.jitter.seconds)


def _celery(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    steps = math.floor(wait)  # randrange(whole + 1): includes the end
    return Spread(0.0, float(steps), steps)


def _sidekiq(policy: Policy, wait: float, cap: float, attempt: int) -> Spread:
    most = _DRAWN - 1  # rand(10) * (count + 1), where count starts at 0
    found = _below(cap, wait, float(most * attempt))
    return Spread(found.least, found.most, most)


def _below(cap: float, wait: float, width: float) -> Spread:
    """Return the range from the delay to `width` more; at the cap, `width` below it, so that capped jobs keep their
    jitter.
    """
    return Spread(wait, wait + width) if wait + width <= cap else Spread(max(0.0, cap - width), cap)


_SPREADS: dict[str, Callable[[Policy, float, float, int], Spread]] = {
    "none": _without_jitter,
    "full": _full,
    "equal": _equal,
    "down": _down,
    "plus_minus": _plus_minus,
    "additive": _additive,
    "celery": _celery,
    "sidekiq": _sidekiq,
}


def _bounded(attempt: int) -> int:
    """Return the attempt, at least 1 and at most the largest exact float integer."""
    return max(1, min(attempt, 2**53))


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _product(one: float, other: float) -> float:
    return 0.0 if one == 0 or other == 0 else one * other  # 0 * inf is NaN
