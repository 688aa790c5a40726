"""A backoff that grows from its own last draw: each wait is uniform from the first delay to three times the wait before.

From Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: `min(cap, uniform(base, 3 * before))`.
One thing is different here: the range is cut at the cap, not what is drawn from it. As published, two thirds of all jobs
that have reached the cap would wait exactly the cap, and wake together. Seconds; attempts count from 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise

TIMES = 3.0
_CELLS = 200
_STEPS = 2_000  # after so many attempts the law is the same for ever, whatever the cap
_SETTLED = 1e-7  # relative change of the mean from one attempt to the next


def span(first_s: float, cap_s: float, attempt: int, previous_s: float | None) -> tuple[float, float]:
    """The shortest and the longest wait after `attempt`, when the one before it was `previous_s` (None: not known).

    What was waited before may have been a server's wish; it counts no more than this backoff could have waited itself.
    """
    before = min(max(first_s, previous_s or 0.0), longest_s(first_s, cap_s, attempt - 1))
    return first_s, min(cap_s, TIMES * before)


def longest_s(first_s: float, cap_s: float, attempt: int) -> float:
    """The longest wait that can follow `attempt`, whatever was drawn before."""
    try:
        return min(cap_s, first_s * math.pow(TIMES, attempt))
    except OverflowError:
        return cap_s


def mean_s(first_s: float, cap_s: float, attempt: int) -> float:
    """The mean wait after `attempt`, over all that may have been drawn before. To about a part in a thousand."""
    if longest_s(first_s, math.inf, attempt) <= cap_s:
        return first_s * (2 * math.pow(TIMES / 2, attempt) - 1)  # of E(n) = (first + 3 E(n-1)) / 2
    if TIMES * first_s >= cap_s:
        return (first_s + cap_s) / 2
    means = _means(first_s, cap_s)
    return means[min(attempt, len(means)) - 1]


@lru_cache(maxsize=64)
def _means(first: float, cap: float) -> tuple[float, ...]:
    """After attempts 1, 2 … until it stays the same: the law of the wait is carried on from attempt to attempt, in cells."""
    edges = [first * (cap / first) ** (i / _CELLS) for i in range(_CELLS)] + [cap]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    tops = [min(cap, TIMES * middle) for middle in middles]
    last = [min(max(1, bisect_left(edges, top)), _CELLS) - 1 for top in tops]  # the cell that a top lies in
    found = [(first + TIMES * first) / 2]
    masses = _spread([1.0], [TIMES * first], [bisect_left(edges, TIMES * first) - 1], edges)
    while len(found) < _STEPS and (len(found) < 2 or abs(found[-1] - found[-2]) > _SETTLED * found[-1]):
        found.append(sum(mass * (first + top) / 2 for mass, top in zip(masses, tops, strict=True)))
        masses = _spread(masses, tops, last, edges)
    return tuple(found)


def _spread(masses: list[float], tops: list[float], last: list[int], edges: list[float]) -> list[float]:
    """What becomes of masses that are each spread evenly from the first edge to a top of their own: the mass of each cell."""
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
