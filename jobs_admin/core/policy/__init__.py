"""Policies: how a task is retried, the bounds of the fields, and the parser of JSON."""

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
    Breaker,
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
    "Backoff", "Breaker", "Budget", "Concurrency", "ErrorClass", "Jitter", "Match",
    "Poison", "Policy", "Problem", "RateLimit", "RetryAfter",
    "document", "is_name", "parse",
]  # fmt: skip
