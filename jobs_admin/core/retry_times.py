"""Times of retries if every attempt fails at once: distributions, totals of a policy, and the herds of many jobs.

Computed, not sampled, so a chart does not flicker while someone types. The delay of each attempt is uniform; adding a
uniform delay to a distribution is a difference of its integral, which is exact at each point of the new grid. Whole
seconds (celery, sidekiq) are treated as continuous, half a step to either side. In a decorrelated backoff each delay
depends on the previous one; its distributions come from `_PATHS` paths, sampled with a fixed seed in equal strata.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from math import fsum
from random import Random

from jobs_admin.core import backoff
from jobs_admin.core.backoff import TIMES, Spread, schedule, spread
from jobs_admin.core.policy.shape import Policy

MOST_RETRIES = 48  # maximum retries with a distribution, and in a chart
_CELLS = 256
_UNLIKELY = 1e-9  # tails below this share at either end are cut off, to keep the grid fine
_NARROW = 1e-6  # of the distribution's width: a smaller spread only shifts it
_LIKE_NORMAL = 12  # uniform delays with the same mean and variance that replace any number of smaller ones
_PATHS, _LEAST_PATHS = 4_096, 256
_DRAWS = 32_768


@dataclass(frozen=True, slots=True)
class Law:
    """Distribution of a time in seconds: a distribution function on an even grid, linear in between."""

    start: float
    cell: float = 0.0  # width of a cell; 0: the time is exactly `start`
    shares: tuple[float, ...] = (1.0,)  # share of times up to each point of the grid
    _areas: tuple[float, ...] = field(default=(0.0,))  # integral of the distribution function up to each point

    @property
    def end(self) -> float:
        return self.start + self.cell * (len(self.shares) - 1)

    def share_until(self, at: float) -> float:
        """Return the share of times before `at`."""
        if at <= self.start:
            return 0.0
        if at >= self.end:
            return 1.0
        place = (at - self.start) / self.cell
        i = min(int(place), len(self.shares) - 2)
        return self.shares[i] + (place - i) * (self.shares[i + 1] - self.shares[i])

    def quantile(self, share: float) -> float:
        """Return the time below which this share of times is."""
        i = bisect_left(self.shares, share)
        if i == 0 or not self.cell:
            return self.start
        i = min(i, len(self.shares) - 1)
        low, high = self.shares[i - 1], self.shares[i]
        return self.start + self.cell * (i - 1 + ((share - low) / (high - low) if high > low else 1.0))

    def later(self, wait: Spread) -> Law:
        """Return the distribution of this time plus a delay."""
        half = (wait.most - wait.least) / wait.steps / 2 if wait.steps else 0.0
        least, most = wait.least - half, wait.most + half
        if most - least <= _NARROW * (self.end - self.start) or most == least:
            middle = (least + most) / 2
            return Law(self.start + middle, self.cell, self.shares, self._areas)
        start, cell = self.start + least, (self.end - self.start + most - least) / _CELLS
        points = [start + cell * i for i in range(_CELLS + 1)]
        width = most - least
        return _law(start, cell, [(self._area(x - least) - self._area(x - most)) / width for x in points])

    def _area(self, at: float) -> float:
        if at <= self.start:
            return 0.0
        if at >= self.end:
            return self._areas[-1] + at - self.end
        place = (at - self.start) / self.cell
        i = min(int(place), len(self.shares) - 2)
        part = place - i
        low, high = self.shares[i], self.shares[i + 1]
        return self._areas[i] + self.cell * part * (low + part * (high - low) / 2)


def laws(policy: Policy) -> tuple[Law, ...]:
    """Return the distributions of the starts of retries 1, 2 …: retry n starts after n delays. At most MOST_RETRIES."""
    retries = min(policy.max_attempts - 1, MOST_RETRIES)
    if policy.backoff.kind == "decorrelated":
        return _of_paths(policy.backoff.first_delay_s, policy.longest_s, retries)
    return _of_spreads(tuple(backoff.spread(policy, n) for n in range(1, retries + 1)))


def total_time(policy: Policy) -> Law:
    """Return the distribution of the last retry's start; 0 without retries."""
    retries = policy.max_attempts - 1
    if policy.backoff.kind == "decorrelated":
        return _of_path(policy.backoff.first_delay_s, policy.longest_s, retries)
    return _of_sum(tuple(backoff.spread(policy, n) for n in range(1, retries + 1)))


@lru_cache(maxsize=64)
def _of_spreads(waits: tuple[Spread, ...]) -> tuple[Law, ...]:
    return tuple(accumulate(waits, Law.later, initial=Law(0.0)))[1:]


@lru_cache(maxsize=64)
def _of_sum(waits: tuple[Spread, ...]) -> Law:
    if len(waits) > MOST_RETRIES:
        # The order of delays does not change their sum. The widest are added one by one; the others together are nearly
        # normal, as is a sum of a dozen uniform ones.
        waits = tuple(sorted(waits, key=_variance, reverse=True))
        waits = (*waits[: MOST_RETRIES - _LIKE_NORMAL], *_as_a_dozen(waits[MOST_RETRIES - _LIKE_NORMAL :]))
    return (Law(0.0), *_of_spreads(waits))[-1]


def _as_a_dozen(waits: Iterable[Spread]) -> list[Spread]:
    listed = list(waits)
    middle = sum(one.least + one.most for one in listed) / 2 / _LIKE_NORMAL
    half = (3 * sum(map(_variance, listed)) / _LIKE_NORMAL) ** 0.5
    return [Spread(middle - half, middle + half)] * _LIKE_NORMAL


def _variance(wait: Spread) -> float:
    width = wait.most - wait.least
    return width * width / 12 * ((wait.steps + 2) / wait.steps if wait.steps else 1)


def _law(start: float, cell: float, shares: list[float]) -> Law:
    """Return the distribution without negligible tails. Shares never decrease, despite rounding."""
    shares = list(accumulate((min(1.0, max(0.0, share)) for share in shares), max))
    first = max(0, bisect_left(shares, _UNLIKELY) - 1)
    last = min(len(shares) - 1, bisect_left(shares, 1 - _UNLIKELY))
    cut = shares[first : last + 1]
    cut[0], cut[-1] = 0.0, 1.0
    areas = accumulate((cell * (low + high) / 2 for low, high in pairwise(cut)), initial=0.0)
    return Law(start + cell * first, cell, tuple(cut), tuple(areas))


@lru_cache(maxsize=16)
def _of_paths(first: float, cap: float, retries: int) -> tuple[Law, ...]:
    return tuple(map(_of_times, _paths(first, cap, retries)))[1:]


@lru_cache(maxsize=16)
def _of_path(first: float, cap: float, retries: int) -> Law:
    return _of_times(deque(_paths(first, cap, retries), maxlen=1).pop())


def _paths(first: float, cap: float, retries: int) -> Iterator[list[float]]:
    """Yield the times of the failure and of each retry on many paths.

    In each step, every path draws from its own stratum.
    """
    random = Random(5)
    paths = max(_LEAST_PATHS, min(_PATHS, _DRAWS // max(1, retries)))
    layers = [(i + 0.5) / paths for i in range(paths)]
    before, times = [first] * paths, [0.0] * paths
    yield times
    for _ in range(retries):
        random.shuffle(layers)
        before = [first + u * (min(cap, TIMES * one) - first) for u, one in zip(layers, before, strict=True)]
        times = [time + wait for time, wait in zip(times, before, strict=True)]
        yield times


def _of_times(times: list[float]) -> Law:
    ordered = sorted(times)
    start, end = ordered[0], ordered[-1]
    if end == start:
        return Law(start)
    cell = (end - start) / _CELLS
    return _law(start, cell, [bisect_left(ordered, start + cell * i) / len(ordered) for i in range(_CELLS)] + [1.0])


@dataclass(frozen=True, slots=True)
class Totals:
    """Time from the first failure to the last attempt. p1: 1 of 100 jobs is faster."""

    shortest_s: float
    p1_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Survival:
    """Outage that a policy survives: everything fails from a job's first attempt on, and its last attempt comes
    later.
    """

    surely_s: float  # all jobs survive this
    probably_s: float  # 99 of 100 jobs survive this


def totals(policy: Policy) -> Totals:
    """Return the totals; all zero without retries. Percentiles come from `total_time`, the other values are exact.

    With a decorrelated backoff, percentiles are accurate to about 2 %. Budgets, limits and delays requested by servers
    are not included.
    """
    steps = schedule(policy)
    shortest, longest = fsum(one.shortest_s for one in steps), fsum(one.longest_s for one in steps)
    last = total_time(policy)
    p1, p50, p99 = (min(longest, max(shortest, last.quantile(share))) for share in (0.01, 0.5, 0.99))
    return Totals(shortest, p1, p50, p99, longest, fsum(one.mean_s for one in steps))


def survives(policy: Policy) -> Survival:
    """Return the survived outage.

    With full jitter the certain one is 0: a job may draw its shortest delays in sequence.
    """
    found = totals(policy)
    return Survival(found.shortest_s, found.p1_s)


# Herds: retries that return together when many jobs fail at once, as starts per second and in the same instant.
# Expected numbers from each retry's distribution, not one sample: with 750 expected in each of sixty seconds, chance
# alone raises one of these seconds to 830. Every attempt is assumed to fail at once.

_MOST_POINTS = 240
_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14_400,
    43_200,
    *(n * 86_400 for n in (1, 2, 5, 10)),
)
_LEAST_STARTS = 0.005  # columns with fewer expected starts are omitted
_PLACES = 32  # positions checked for the busiest second of a retry
_INTEGER_SECONDS = ("celery", "sidekiq")


@dataclass(frozen=True, slots=True)
class Herd:
    """Retries of jobs that failed together at second 0."""

    points: list[tuple[int, float]]  # (second, expected starts in the `step_s` seconds from there), without empty ones
    step_s: int
    peak_per_s: float  # expected starts in the busiest second …
    peak_at_s: float  # … and its start
    retries: int  # retries in the chart: all of a job, or the first `law.MOST_RETRIES`


def herd(policy: Policy, jobs: int, least_step_s: int = 1) -> Herd:
    """Return the chart for `jobs` jobs, in steps of a second, or longer ones if there were more than 240.

    `least_step_s`: step of another chart that this one is drawn over.
    """
    times = laws(policy)
    # Whole-second delays start in the middle of a second of the chart, so that rounding does not move them.
    early = 0.5 if policy.jitter.kind in _INTEGER_SECONDS else 0.0
    end = max((one.end + early for one in times), default=0.0)
    step = next((one for one in _STEPS_S if one >= least_step_s and end < one * _MOST_POINTS), _STEPS_S[-1])
    columns = ((second, jobs * _share(times, second - early, step)) for second in range(0, math.floor(end) + 1, step))
    points = [(second, round(starts, 2)) for second, starts in columns if starts >= _LEAST_STARTS]
    places = [max(0.0, at + early) for one in times for at in _busy(one)] + [float(second) for second, _ in points]
    peaks = ((jobs * _share(times, at - early, 1), at) for at in places)
    peak_per_s, peak_at_s = max(peaks, key=lambda peak: (peak[0], -peak[1]), default=(0.0, 0.0))
    return Herd(points, step, peak_per_s, peak_at_s, len(times))


def collisions(policy: Policy, jobs: int, within_s: float = 0.001, attempt: int = 1) -> float:
    """Return the expected number of pairs of jobs that start within the same `within_s` seconds, after failing attempt
    `attempt` together.

    The share within_s / width of the jitter, of n (n - 1) / 2 pairs: about n² / (2 width) for one second. Whole-second
    jitter has no instants between seconds: the share is one divided by the number of seconds.
    """
    return jobs * (jobs - 1) / 2 * _chance(spread(policy, attempt), within_s)


def lost_capacity_s(crashes: int, seconds_each: float) -> float:
    """Return the cost of a poison pill until quarantine: each crash stops a worker until it runs again."""
    return crashes * seconds_each


def _chance(wait: Spread, within_s: float) -> float:
    if wait.steps:
        gap = (wait.most - wait.least) / wait.steps
        return min(1.0, max(1.0, within_s / gap) / (wait.steps + 1))
    width = wait.most - wait.least
    return 1.0 if width <= within_s else within_s / width


def _share(times: tuple[Law, ...], at: float, length: float) -> float:
    """Return the expected retries of one job that start within `length` seconds from `at`."""
    return sum(
        one.share_until(at + length) - one.share_until(at) for one in times if one.start < at + length and one.end >= at
    )


def _busy(one: Law) -> tuple[float, ...]:
    """Return candidate starts of the busiest second for this retry: its own, and its ends, where others may overlap."""
    room = max(0.0, one.end - one.start - 1)
    places = (one.start + room * i / _PLACES for i in range(_PLACES + 1))
    own = max(places, key=lambda at: one.share_until(at + 1) - one.share_until(at))
    return one.start, own, one.start + room
