"""The one decision over a failed attempt: again, and when, or dead, and why.

Workers that enforce a policy ask it, workers that observe one, and a backtest on stored failures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs_admin.core import backoff
from jobs_admin.core.matching import class_of
from jobs_admin.core.policy.shape import PERMANENT, Policy

EXHAUSTED, BUDGET, TOO_LATE = "exhausted", "budget", "retry-after"
REASONS = (PERMANENT, EXHAUSTED, TOO_LATE, BUDGET)


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that failed."""

    attempt: int  # of the run, counted from 1
    error_names: tuple[str, ...] = ()  # of the class and its bases: matching.names_of
    retry_after_s: float | None = None  # what the server asked for; None or 0: nothing
    previous_s: float | None = None  # the wait before this attempt; None before the first, or where nobody knows


@dataclass(frozen=True, slots=True)
class Again:
    delay_s: float
    cls: str  # transient or rate_limited
    asked_s: float | None = None  # what the server asked for, where that was heeded


@dataclass(frozen=True, slots=True)
class Dead:
    reason: str  # one of REASONS
    cls: str


def judge(policy: Policy, ended: Ended, random: Callable[[], float], budget: Callable[[], bool]) -> Again | Dead:
    """What becomes of the job. `random` gives a number from 0 up to, not including, 1, and is asked at most once.

    `budget` spends one retry and says whether there was one; it is asked last, only where all else says again.
    """
    cls = class_of(policy, ended.error_names)
    asked_s = _asked_s(policy, ended.retry_after_s)
    if cls == PERMANENT:
        return Dead(PERMANENT, cls)
    if ended.attempt >= policy.max_attempts:
        return Dead(EXHAUSTED, cls)
    if asked_s is not None and asked_s > policy.retry_after.cap_s:
        return Dead(TOO_LATE, cls)
    if not budget():
        return Dead(BUDGET, cls)
    return Again(backoff.delay(policy, ended.attempt, random, ended.previous_s, asked_s), cls, asked_s)


def _asked_s(policy: Policy, seconds: float | None) -> float | None:
    """A wish that counts. Nothing, less than nothing and NaN are no wishes."""
    return seconds if policy.retry_after.respect and seconds is not None and seconds > 0 else None
