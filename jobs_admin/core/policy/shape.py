"""Fields of a policy and their bounds. Durations are seconds; attempts count from 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

OBSERVE, ENFORCE = "observe", "enforce"
MODES = (OBSERVE, ENFORCE)
BACKOFFS = ("exponential", "linear", "fixed", "table", "polynomial", "decorrelated")
JITTERS = ("none", "full", "equal", "down", "plus_minus", "additive", "celery", "sidekiq")
TRANSIENT, PERMANENT, RATE_LIMITED = "transient", "permanent", "rate_limited"
CLASSES = (TRANSIENT, PERMANENT, RATE_LIMITED)
DEAD, ESCALATE = "dead", "escalate"
EXHAUSTED = (DEAD, ESCALATE)
REPLACE, AFTER = "replace", "after"
NATIVE = (REPLACE, AFTER)

# Bounds of a policy's values. A delay without a cap is limited to LONGEST_S, so that nothing overflows at any attempt.
LONGEST_S = 30 * 86_400.0
MOST_ATTEMPTS = 1_000
LEAST_FACTOR, MOST_FACTOR = 1.0, 100.0
MOST_POWER = 10.0
MOST_DELAYS = 100  # entries of a table
MOST_CLASSES = 50
LEAST_CAP_S = 0.001
LEAST_DRAWN_S = 0.001  # minimum first delay of a decorrelated backoff
LEAST_PER_MINUTE, MOST_PER_MINUTE = 0.0001, 1_000_000.0  # the minimum is one retry a week; 0 is allowed too
MOST_BURST = 100_000
MOST_CRASHES = 100
LONGEST_WINDOW_S = 7 * 86_400.0
MOST_AT_ONCE = 100_000
MOST_STARTS = 1_000_000
SHORTEST_PER_S, LONGEST_PER_S = 0.001, 86_400.0
LEAST_HOLD_S = 1.0
LONGEST_TEXT = 200  # characters of a name, a glob, a key
LONGEST_NOTE = 2_000


@dataclass(frozen=True, slots=True)
class Match:
    """Jobs that a policy matches: globs in which only `*` is special."""

    source: str = "*"
    queue: str = "*"
    task: str = "*"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growth of the delay. `parsing.BACKOFF_FIELDS` lists the fields per kind; the formulas are in backoff.py."""

    kind: str = "exponential"
    first_delay_s: float = 2.0
    factor: float = 2.0  # exponential
    power: float = 1.0  # polynomial
    plus_s: float = 0.0  # polynomial
    delays_s: tuple[float, ...] = ()  # table; the last entry repeats


@dataclass(frozen=True, slots=True)
class Jitter:
    kind: str = "none"
    fraction: float = 0.0  # down, plus_minus: share of the delay, 0 to 1
    seconds: float = 0.0  # additive


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Treatment of a requested delay: it is respected, plus up to the share `jitter`; above the cap the job is dead."""

    respect: bool = True
    jitter: float = 0.2
    cap_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Class of errors whose type or a base type has this name. See `matching.class_of`."""

    error: str  # glob
    as_: str = TRANSIENT


@dataclass(frozen=True, slots=True)
class Budget:
    """Retries per minute, and at once. Zero per minute: none, every failure is dead at once."""

    per_minute: float
    burst: int
    group: str | None = None  # policies with the same group share a budget; None: the policy's own

    def most_in(self, seconds: float) -> float:
        """Return the maximum retries in any window of `seconds`."""
        return self.burst + self.per_minute * seconds / 60 if self.per_minute else 0.0


@dataclass(frozen=True, slots=True)
class Poison:
    """Number of starts without an orderly end, within the window, that quarantines the job."""

    crashes: int = 3
    window_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Concurrency:
    key: str  # tenant, queue, task, or a path such as kwargs.customer_id or args.0.tenant
    limit: int  # concurrent jobs per value of the key, over all workers


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate limit: at most `max` starts in `per_s` seconds, over all workers."""

    max: int
    per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """Breaker: jobs are put on hold while their dependency is unavailable (`core/breaker.py`)."""

    dependency: str | None = None  # policies with the same dependency share a breaker; None: the policy's own
    max_hold_s: float | None = None  # a job on hold for longer starts anyway; None: it waits


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for retrying matching tasks. Only `parse` creates one from a document."""

    name: str = ""  # "": an unnamed draft
    match: Match = Match()
    mode: str = OBSERVE
    retries: bool = (
        True  # whether it decides retries; False leaves them to the task, with max_attempts 1 (no retry by the policy)
    )
    native: str = REPLACE  # Celery's own retries: the policy replaces them, or applies after them
    max_attempts: int = 5  # total runs of the function, including the first
    backoff: Backoff = Backoff()
    cap_s: float | None = None  # None: only LONGEST_S
    jitter: Jitter = Jitter()
    retry_after: RetryAfter = RetryAfter()
    classes: tuple[ErrorClass, ...] = ()  # the first match decides; otherwise an error is transient
    budget: Budget | None = None
    poison: Poison | None = None
    concurrency: Concurrency | None = None
    rate_limit: RateLimit | None = None
    breaker: Breaker | None = None
    exhausted: str = DEAD
    file_lost: bool = False  # jobs acknowledged before they run are stored meanwhile, because their worker may die
    expires_at: datetime | None = None  # aware, UTC; then the previous version is in force again
    note: str = ""
    unknown: tuple[str, ...] = field(default=())  # fields of a newer Redrive that this version does not know

    @property
    def longest_s(self) -> float:
        """Longest delay that backoff and jitter produce."""
        return LONGEST_S if self.cap_s is None else self.cap_s

    @property
    def breaker_name(self) -> str | None:
        """Name of its breaker within a source; None without one."""
        return None if self.breaker is None else self.breaker.dependency or self.name


# Fields of a backoff and of a jitter that have an effect, by kind. Others are refused, because they would seem to.
BACKOFF_FIELDS = {
    "exponential": ("first_delay_s", "factor"),
    "linear": ("first_delay_s",),
    "fixed": ("first_delay_s",),
    "table": ("delays_s",),
    "polynomial": ("first_delay_s", "power", "plus_s"),
    "decorrelated": ("first_delay_s",),
}
_OPTIONAL = ("budget", "poison", "concurrency", "rate_limit", "breaker")
# Fields about retries. A policy without any of them leaves retries to the task.
OF_RETRIES = ("native", "max_attempts", "backoff", "cap_s", "jitter", "retry_after", "classes", "budget", "exhausted")
JITTER_FIELDS = {"down": ("fraction",), "plus_minus": ("fraction",), "additive": ("seconds",)}


def document(policy: Policy) -> dict[str, Any]:
    """Return the normal form for JSON. `parse` returns the same policy for it; fields without effect are omitted."""
    backoff = {"kind": policy.backoff.kind}
    found: dict[str, Any] = {
        "name": policy.name,
        "match": _parts(policy.match),
        "mode": policy.mode,
        "native": policy.native,
        "max_attempts": policy.max_attempts,
        "backoff": backoff | _parts(policy.backoff, BACKOFF_FIELDS[policy.backoff.kind]),
        "cap_s": policy.cap_s,
        "jitter": {"kind": policy.jitter.kind} | _parts(policy.jitter, JITTER_FIELDS.get(policy.jitter.kind, ())),
        "retry_after": _parts(policy.retry_after),
        "classes": [{"error": one.error, "as": one.as_} for one in policy.classes],
        **{name: _parts(part) for name in _OPTIONAL if (part := getattr(policy, name)) is not None},
        "exhausted": policy.exhausted,
        # Only if true: a worker that does not know the field would only observe the policy.
        "file_lost": policy.file_lost or None,
        "expires_at": _iso(policy.expires_at),
        "note": policy.note,
    }  # fmt: skip
    if not policy.retries:
        # Explicit: a worker that does not know the field observes the policy and decides no retries.
        found = {name: value for name, value in found.items() if name not in OF_RETRIES} | {"retries": False}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _parts(part: Any, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    values = {name: getattr(part, name) for name in (part.__dataclass_fields__ if names is None else names)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _iso(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """Return 2.0 as 2 and a tuple as a list, as a person would write them."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
