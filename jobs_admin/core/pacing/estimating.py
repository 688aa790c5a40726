"""How long a replay takes where nothing fails and nothing slows it down."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs_admin.core.pacing.pace import Pace, settled
from jobs_admin.core.pacing.steering import GROWTH, RAMP_S

# Where at_once has no rate to reckon with, what one sender does on a small machine (bench/results.md).
AT_ONCE_GUESS = 3_000.0


@dataclass(frozen=True, slots=True)
class Estimate:
    duration_s: float
    peak_per_second: float


def estimate(jobs: int, pace: Pace) -> Estimate:
    """How long sending takes, in seconds, and the most jobs in any one second."""
    if not jobs:
        return Estimate(0.0, 0.0)
    pace = settled(pace, jobs=jobs)
    if pace.highest is None:
        return Estimate(jobs / AT_ONCE_GUESS, min(float(jobs), AT_ONCE_GUESS))
    if pace.ramp is None:
        return Estimate((jobs - 1) / pace.highest, min(float(jobs), max(1.0, pace.highest)))
    return _climbing(jobs, pace)


def _climbing(jobs: int, pace: Pace) -> Estimate:
    """Second by second, as the steering goes up where all runs well."""
    low, high = pace.lowest or 0.0, pace.highest or 0.0
    canary = min(jobs, pace.canary.jobs if pace.canary else 0)
    rate, gone_s, left = low, canary / low, float(jobs - canary)
    while left > 0 and rate < high:
        gone_s, left = gone_s + min(1.0, left / rate), left - rate
        rate = min(high, rate + min(rate * GROWTH, (high - low) / RAMP_S))
    return Estimate(gone_s + max(0.0, left) / high, min(float(jobs), max(1.0, math.ceil(rate))))
