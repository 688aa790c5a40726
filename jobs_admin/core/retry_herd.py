"""Retries that come back at once when many jobs fail together: starts in each second, and starts in the same instant.

Expected numbers by the law of each retry (`retry_times.py`), not one throw of the dice: where 750 are expected in each
of sixty seconds, chance alone makes some second of them reach 830. Every attempt is taken to fail at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs_admin.core.backoff import Spread, spread
from jobs_admin.core.policy.shape import Policy
from jobs_admin.core.retry_times import Law, laws

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
