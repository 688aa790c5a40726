"""How long a job is retried before it is given up, and what outage it outlives. Seconds, without the time that runs take."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from jobs_admin.core import law
from jobs_admin.core.backoff import schedule
from jobs_admin.core.policy.shape import Policy


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
    """How long everything may fail from a job's first attempt on, and its last one still comes later."""

    surely_s: float  # every job outlives this
    probably_s: float  # 99 of 100 jobs outlive this


def totals(policy: Policy) -> Totals:
    """All zero where nothing is retried. Percentiles are of the law of the sum (`law.py`), the other figures exact.

    With a decorrelated backoff percentiles are good to about 2 %. Budgets, limits and what servers ask for are not in it.
    """
    steps = schedule(policy)
    shortest, longest = fsum(one.shortest_s for one in steps), fsum(one.longest_s for one in steps)
    whole = law.whole(policy)
    p1, p50, p99 = (min(longest, max(shortest, whole.quantile(share))) for share in (0.01, 0.5, 0.99))
    return Totals(shortest, p1, p50, p99, longest, fsum(one.mean_s for one in steps))


def survives(policy: Policy) -> Survival:
    """With full jitter surely nothing: a job may draw its shortest waits one after another."""
    found = totals(policy)
    return Survival(found.shortest_s, found.p1_s)
