"""The fields of a policy, and their bounds. Durations are seconds; attempts count from 1."""

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

# What a policy may say at most. A wait without a cap ends here too, so that nothing overflows at any attempt.
LONGEST_S = 30 * 86_400.0
MOST_ATTEMPTS = 1_000
LEAST_FACTOR, MOST_FACTOR = 1.0, 100.0
MOST_POWER = 10.0
MOST_DELAYS = 100  # entries of a table
MOST_CLASSES = 50
LEAST_CAP_S = 0.001
LEAST_DRAWN_S = 0.001  # what a decorrelated backoff grows from
LEAST_PER_MINUTE, MOST_PER_MINUTE = 0.0001, 1_000_000.0  # the least is one retry a week, or none at all
MOST_BURST = 100_000
MOST_CRASHES = 100
LONGEST_WINDOW_S = 7 * 86_400.0
MOST_AT_ONCE = 100_000
MOST_STARTS = 1_000_000
SHORTEST_PER_S, LONGEST_PER_S = 0.001, 86_400.0
LONGEST_TEXT = 200  # characters of a name, a glob, a key
LONGEST_NOTE = 2_000


@dataclass(frozen=True, slots=True)
class Match:
    """The jobs that a policy is for: globs in which `*` matches anything and nothing else is special."""

    source: str = "*"
    queue: str = "*"
    task: str = "*"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The growth of the wait. Which of the fields a kind reads is in `parsing.BACKOFF_FIELDS`; the formulas are in backoff.py."""

    kind: str = "exponential"
    first_delay_s: float = 2.0
    factor: float = 2.0  # exponential
    power: float = 1.0  # polynomial
    plus_s: float = 0.0  # polynomial
    delays_s: tuple[float, ...] = ()  # table; its last entry goes on


@dataclass(frozen=True, slots=True)
class Jitter:
    kind: str = "none"
    fraction: float = 0.0  # down, plus_minus: a share of the wait, 0 to 1
    seconds: float = 0.0  # additive


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """The treatment of a server's wish: waited for with up to the share `jitter` on top; above the cap the job is dead."""

    respect: bool = True
    jitter: float = 0.2
    cap_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Errors whose class, or one of its bases, is called so. See `matching.class_of`."""

    error: str  # a glob
    as_: str = TRANSIENT


@dataclass(frozen=True, slots=True)
class Budget:
    """The retries a minute, and how many at once. Zero a minute: none, every failure is dead at once."""

    per_minute: float
    burst: int
    group: str | None = None  # policies that name the same group spend from one budget; None: its own

    def most_in(self, seconds: float) -> float:
        """The most retries in any window of `seconds`, wherever it begins."""
        return self.burst + self.per_minute * seconds / 60 if self.per_minute else 0.0


@dataclass(frozen=True, slots=True)
class Poison:
    """The number of starts without an orderly end within the window at which the job is quarantined."""

    crashes: int = 3
    window_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Concurrency:
    key: str  # tenant, queue, task, or a path such as kwargs.customer_id or args.0.tenant
    limit: int  # jobs at once for each value of the key, over all workers


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `max` starts in `per_s` seconds, over all workers."""

    max: int
    per_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules by which the tasks that match are retried. Only `parse` makes one from a document."""

    name: str = ""  # "" is a draft that nobody has named
    match: Match = Match()
    mode: str = OBSERVE
    retries: bool = (
        True  # whether it decides retries; False leaves them to the task, with max_attempts 1 (no retry of its own)
    )
    native: str = REPLACE  # of Celery's own retries: the policy comes instead of them, or after them
    max_attempts: int = 5  # all runs of the function, the first included
    backoff: Backoff = Backoff()
    cap_s: float | None = None  # None: nothing but LONGEST_S
    jitter: Jitter = Jitter()
    retry_after: RetryAfter = RetryAfter()
    classes: tuple[ErrorClass, ...] = ()  # the first that fits decides; without one an error is transient
    budget: Budget | None = None
    poison: Poison | None = None
    concurrency: Concurrency | None = None
    rate_limit: RateLimit | None = None
    exhausted: str = DEAD
    file_lost: bool = False  # jobs that are acknowledged before they run are kept meanwhile: their worker may die
    expires_at: datetime | None = None  # aware, UTC; then the version before is in force again
    note: str = ""
    unknown: tuple[str, ...] = field(default=())  # fields that a newer Redrive wrote and this one does not know

    @property
    def longest_s(self) -> float:
        """No wait that backoff and jitter make is longer than this."""
        return LONGEST_S if self.cap_s is None else self.cap_s


# Which fields of a backoff and of a jitter mean something, by kind. Any other is refused: it would look as if it did.
BACKOFF_FIELDS = {
    "exponential": ("first_delay_s", "factor"),
    "linear": ("first_delay_s",),
    "fixed": ("first_delay_s",),
    "table": ("delays_s",),
    "polynomial": ("first_delay_s", "power", "plus_s"),
    "decorrelated": ("first_delay_s",),
}
_OPTIONAL = ("budget", "poison", "concurrency", "rate_limit")
# Fields that say how jobs are retried. A policy that sets none of them leaves retries to the task.
OF_RETRIES = ("native", "max_attempts", "backoff", "cap_s", "jitter", "retry_after", "classes", "budget", "exhausted")
JITTER_FIELDS = {"down": ("fraction",), "plus_minus": ("fraction",), "additive": ("seconds",)}


def document(policy: Policy) -> dict[str, Any]:
    """The normal form as JSON writes it. `parse` of it gives the same policy; what has no effect is left out."""
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
        # Only where it is true: a worker that does not know it would only observe the policy.
        "file_lost": policy.file_lost or None,
        "expires_at": _iso(policy.expires_at),
        "note": policy.note,
    }  # fmt: skip
    if not policy.retries:
        # Said, not only left out: a worker that does not know the field observes the policy, and decides no retry.
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
    """2.0 as 2, a tuple as a list: what a person would have written."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
