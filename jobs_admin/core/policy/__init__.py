"""The retries of a task: what a policy says, the bounds it is held to, and reading one from JSON."""

from jobs_admin.core.policy.parsing import Problem, is_name, parse
from jobs_admin.core.policy.shape import (
    BACKOFFS,
    CLASSES,
    ENFORCE,
    EXHAUSTED,
    JITTERS,
    LONGEST_S,
    MODES,
    MOST_ATTEMPTS,
    MOST_CLASSES,
    MOST_DELAYS,
    OBSERVE,
    PERMANENT,
    RATE_LIMITED,
    TRANSIENT,
    Backoff,
    Budget,
    Concurrency,
    ErrorClass,
    Jitter,
    Match,
    Poison,
    Policy,
    RateLimit,
    RetryAfter,
    document,
)  # fmt: skip

__all__ = [
    "BACKOFFS", "CLASSES", "ENFORCE", "EXHAUSTED", "JITTERS", "LONGEST_S",
    "MODES", "MOST_ATTEMPTS", "MOST_CLASSES", "MOST_DELAYS", "OBSERVE",
    "PERMANENT", "RATE_LIMITED", "TRANSIENT",
    "Backoff", "Budget", "Concurrency", "ErrorClass", "Jitter", "Match",
    "Poison", "Policy", "Problem", "RateLimit", "RetryAfter",
    "document", "is_name", "parse",
]  # fmt: skip
