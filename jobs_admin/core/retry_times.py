"""Times of retries, if every attempt failed at once: their distributions, totals of a policy, and the herds of many jobs.

Computed, not drawn: a picture of it does not flicker while someone types. The wait of each attempt is uniform, and adding
a uniform wait to a distribution is a difference of its integral, which is exact at every point of the new grid. Whole
seconds (celery, sidekiq) are treated as if every fraction were possible, half a step to either side. A wait of a
decorrelated backoff depends on the wait before; its distributions are those of `_PATHS` paths, drawn with a fixed seed in
equal layers.
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

MOST_RETRIES = 48  # laws are made of so many retries, and a picture shows so many
_CELLS = 256
_UNLIKELY = 1e-9  # what is beyond this share at either end is cut off, so that the grid lies where something happens
_NARROW = 1e-6  # of the law's own width: so little a spread is only a shift
_LIKE_NORMAL = 12  # uniform waits with the same mean and variance stand for any number of smaller ones
_PATHS, _LEAST_PATHS = 4_096, 256
_DRAWS = 32_768


@dataclass(frozen=True, slots=True)
class Law:
    """The distribution of a time in seconds: a distribution function on an even grid, straight in between."""

    start: float
    cell: float = 0.0  # width of one cell; 0: it is certain to be `start`
    shares: tuple[float, ...] = (1.0,)  # of times up to each point of the grid
    _areas: tuple[float, ...] = field(default=(0.0,))  # integral of the function up to each point

    @property
    def end(self) -> float:
        return self.start + self.cell * (len(self.shares) - 1)

    def share_until(self, at: float) -> float:
        """The share of times before `at`."""
        if at <= self.start:
            return 0.0
        if at >= self.end:
            return 1.0
        place = (at - self.start) / self.cell
        i = min(int(place), len(self.shares) - 2)
        return self.shares[i] + (place - i) * (self.shares[i + 1] - self.shares[i])

    def quantile(self, share: float) -> float:
        """The time before which so large a share of times lies."""
        i = bisect_left(self.shares, share)
        if i == 0 or not self.cell:
            return self.start
        i = min(i, len(self.shares) - 1)
        low, high = self.shares[i - 1], self.shares[i]
        return self.start + self.cell * (i - 1 + ((share - low) / (high - low) if high > low else 1.0))

    def later(self, wait: Spread) -> Law:
        """The law of this time and a wait together."""
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
    """Return when retries 1, 2 … start: that of retry n is the time after n waits. At most MOST_RETRIES."""
    retries = min(policy.max_attempts - 1, MOST_RETRIES)
    if policy.backoff.kind == "decorrelated":
        return _of_paths(policy.backoff.first_delay_s, policy.longest_s, retries)
    return _of_spreads(tuple(backoff.spread(policy, n) for n in range(1, retries + 1)))


def total_time(policy: Policy) -> Law:
    """Return when the last retry of all starts; the failure itself where there is none."""
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
        # In which order waits are added is all one to their sum. The widest are added one by one; the many others have
        # together nearly a normal law, which a dozen uniform ones have too.
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
    """Cut to where something happens; no share is less than the one before, whatever rounding did."""
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
    """The times of the failure and of each retry on many paths. In every step each path draws from a layer of its own."""
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
    """From the first failure to the last attempt. p1 is the time that 1 of 100 jobs does not reach."""

    shortest_s: float
    p1_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Survival:
    """The time during which everything may fail, counted from a job's first attempt, while its last attempt still comes
    later.
    """

    surely_s: float  # every job outlives this
    probably_s: float  # 99 of 100 jobs outlive this


def totals(policy: Policy) -> Totals:
    """All zero where nothing is retried. Percentiles are of the law of the sum (`total_time`), the other figures exact.

    With a decorrelated backoff percentiles are good to about 2 %. Budgets, limits and what servers ask for are not in it.
    """
    steps = schedule(policy)
    shortest, longest = fsum(one.shortest_s for one in steps), fsum(one.longest_s for one in steps)
    last = total_time(policy)
    p1, p50, p99 = (min(longest, max(shortest, last.quantile(share))) for share in (0.01, 0.5, 0.99))
    return Totals(shortest, p1, p50, p99, longest, fsum(one.mean_s for one in steps))


def survives(policy: Policy) -> Survival:
    """With full jitter surely nothing: a job may draw its shortest waits one after another."""
    found = totals(policy)
    return Survival(found.shortest_s, found.p1_s)


# Retries that come back at once when many jobs fail together: starts in each second, and starts in the same instant.
# Expected numbers by the law of each retry, not one throw of the dice: where 750 are expected in each of sixty
# seconds, chance alone makes some second of them reach 830. Every attempt is taken to fail at once.

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
_LEAST_STARTS = 0.005  # fewer expected starts are left out of the picture
_PLACES = 32  # looked at for the busiest second of one retry
_INTEGER_SECONDS = ("celery", "sidekiq")


@dataclass(frozen=True, slots=True)
class Herd:
    """The retries of jobs that failed together at second 0."""

    points: list[tuple[int, float]]  # (second, starts expected in the `step_s` seconds from it on), without empty ones
    step_s: int
    peak_per_s: float  # starts expected in the busiest second …
    peak_at_s: float  # … which begins here
    retries: int  # that the picture shows: all of a job, or the first `law.MOST_RETRIES`


def herd(policy: Policy, jobs: int, least_step_s: int = 1) -> Herd:
    """The picture for `jobs` jobs, in steps of a second or, where it would have more than 240 of them, of more.

    `least_step_s`: steps of another picture, which this one is to be drawn over.
    """
    times = laws(policy)
    # Who waits whole seconds starts in the middle of a second of the picture, wherever rounding puts him.
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
    """Return how many pairs of jobs are expected to start in the same `within_s` seconds after they failed attempt `attempt` together.

    Of the n (n - 1) / 2 pairs the share within_s / width of the jitter. For seconds, that is about n² / (2 width).
    Whole-second jitter has no instants between the seconds: there the share is one by the number of them.
    """
    return jobs * (jobs - 1) / 2 * _chance(spread(policy, attempt), within_s)


def lost_capacity_s(crashes: int, seconds_each: float) -> float:
    """Return what a poison pill costs before it is quarantined: each crash takes a worker away until it runs again."""
    return crashes * seconds_each


def _chance(wait: Spread, within_s: float) -> float:
    if wait.steps:
        gap = (wait.most - wait.least) / wait.steps
        return min(1.0, max(1.0, within_s / gap) / (wait.steps + 1))
    width = wait.most - wait.least
    return 1.0 if width <= within_s else within_s / width


def _share(times: tuple[Law, ...], at: float, length: float) -> float:
    """Retries of one job that start within `length` seconds from `at`, on average."""
    return sum(
        one.share_until(at + length) - one.share_until(at) for one in times if one.start < at + length and one.end >= at
    )


def _busy(one: Law) -> tuple[float, ...]:
    """Return where the busiest second may begin, as far as this retry goes: its own, and where others may lie over its ends."""
    room = max(0.0, one.end - one.start - 1)
    places = (one.start + room * i / _PLACES for i in range(_PLACES + 1))
    own = max(places, key=lambda at: one.share_until(at + 1) - one.share_until(at))
    return one.start, own, one.start + room
