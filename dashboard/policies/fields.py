"""Inputs of the editor: label, value, and the default shown while empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboard.policies.forms import KINDS, PLACES, Draft, Row, value_at
from jobs_admin.core.policy import BACKOFFS, JITTERS, PERMANENT, RATE_LIMITED, TRANSIENT
from jobs_admin.core.policy.shape import BACKOFF_FIELDS, JITTER_FIELDS

SPARE_ROWS = 2

LABELS = {
    "name": "Name",
    "match.task": "Task",
    "match.queue": "Queue",
    "match.source": "Source",
    "mode": "Mode",
    "max_attempts": "Max attempts",
    "backoff": "Backoff",
    "backoff.kind": "Delays grow",
    "backoff.first_delay_s": "First delay",
    "backoff.factor": "Factor",
    "backoff.power": "Power",
    "backoff.plus_s": "Added constant",
    "backoff.delays_s": "Delays",
    "cap_s": "Max delay",
    "jitter": "Jitter",
    "jitter.kind": "Jitter kind",
    "jitter.fraction": "Share",
    "jitter.seconds": "At most",
    "retry_after": "Retry-After",
    "retry_after.respect": "Respect Retry-After",
    "retry_after.jitter": "Extra wait up to",
    "retry_after.cap_s": "Give up above",
    "classes": "Errors",
    "budget": "Budget",
    "budget.per_minute": "Retries per minute",
    "budget.burst": "Burst",
    "budget.group": "Shared name",
    "poison": "Poison pills",
    "poison.crashes": "Quarantine after",
    "poison.window_s": "Within",
    "concurrency": "Concurrency",
    "concurrency.key": "Concurrency per",
    "concurrency.limit": "Max concurrent jobs",
    "rate_limit": "Rate limit",
    "rate_limit.max": "Max starts",
    "rate_limit.per_s": "Per",
    "breaker": "Breaker",
    "breaker.dependency": "Dependency",
    "breaker.max_hold_s": "Longest hold",
    "exhausted": "When exhausted",
    "retries": "Retries",
    "file_lost": "Records lost jobs",
    "native": "Celery’s own retries",
    "expires_at": "Expires",
    "note": "Purpose",
}
_CHOICES = {
    "backoff.kind": dict(
        zip(
            BACKOFFS,
            (
                "exponentially",
                "linearly",
                "never (fixed)",
                "as listed (table)",
                "polynomially",
                "decorrelated",
            ),
            strict=True,
        )
    ),
    "jitter.kind": dict(
        zip(
            JITTERS,
            (
                "none",
                "full: 0 to the delay",
                "equal: half to the full delay",
                "a share earlier (BullMQ)",
                "± a share",
                "up to a time later",
                "Celery’s: full, in whole seconds",
                "Sidekiq’s: up to 9 s × attempt later",
            ),
            strict=True,
        )
    ),
    "exhausted": {"dead": "dead", "escalate": "dead, and channels with “jobs escalated by their policy” are notified"},
    "native": {"replace": "replaced by this policy", "after": "first, then this policy"},
}
_UNITS = {
    "max_attempts": "including the first",
    "jitter.fraction": "%",
    "retry_after.jitter": "%",
    "poison.crashes": "worker crashes",
    "concurrency.limit": "jobs",
    "rate_limit.max": "jobs",
}
_EMPTY = {
    "match.task": "* (all tasks)",
    "match.queue": "* (all queues)",
    "match.source": "* (all sources)",
    "cap_s": "30 d",
    "backoff.delays_s": "1 s, 5 s, 30 s, 2 min",
    "jitter.fraction": "10",
    "jitter.seconds": "10 s",
    "budget.per_minute": "no budget",
    "budget.burst": "a tenth of that",
    "budget.group": "not shared",
    "concurrency.key": "tenant, kwargs.customer_id …",
    "concurrency.limit": "no limit",
    "rate_limit.max": "no limit",
    "rate_limit.per_s": "1 s",
    "breaker.dependency": "this policy",
    "breaker.max_hold_s": "until released",
    "poison.crashes": "never",
    "poison.window_s": "5 min",
    "name": "webhooks",
}
# Inputs completed from stored values: input -> qualifier of the search.
SUGGESTED = {"match.task": "task", "match.queue": "queue", "match.source": "source", "classes": "error"}
_LONG = {
    "match.task",
    "match.queue",
    "match.source",
    "concurrency.key",
    "budget.group",
    "backoff.delays_s",
    "breaker.dependency",
    "name",
}


@dataclass(frozen=True, slots=True)
class Field:
    path: str
    label: str
    unit: str
    value: str
    usual: str  # default while empty
    errors: list[str]
    choices: list[tuple[str, str]] = field(default_factory=list)
    of: str = ""  # kinds to which it applies, separated by blanks; "": always
    is_long: bool = False
    suggestions: str = ""  # list of completions

    @property
    def id(self) -> str:
        return slot(self.path)


@dataclass(frozen=True, slots=True)
class Place:
    title: str
    fields: list[Field]
    is_open: bool = True
    hint: str = ""


def slot(path: str) -> str:
    """Return a field's path as an element id, without dots, which selectors read as classes."""
    return "p-" + path.replace(".", "-").replace("_", "-")


def slots(draft: Draft, *, is_new: bool) -> list[tuple[str, list[str]]]:
    """Return the errors of every input, including empty ones, so that htmx clears them.

    Only a new policy has an input for its name.
    """
    return [(slot(path), draft.errors.get(path, [])) for path in PLACES if is_new or path != "name"]


def field_of(draft: Draft, usual: Mapping[str, Any], path: str) -> Field:
    """Return one input. `usual`: the normal form of the nearest policy."""
    value = draft.texts.get(path, "")
    choices = list(_CHOICES.get(path, {}).items())
    if choices and value not in dict(choices):
        standing = value_at(usual, path)
        value = value or str(standing or choices[0][0])
        choices += [] if value in dict(choices) else [(value, value)]  # a refused value stays visible
    return Field(
        path,
        LABELS[path],
        _UNITS.get(path, ""),
        value,
        _EMPTY.get(path) or _usual_text(usual, path),
        draft.errors.get(path, []),
        choices,
        _kinds_of(path),
        path in _LONG,
        SUGGESTED.get(path, ""),
    )


def _usual_text(document: Mapping[str, Any], path: str) -> str:
    value = value_at(document, path)
    return "" if value is None else KINDS[path].write(value)


def _kinds_of(path: str) -> str:
    part, _, name = path.partition(".")
    kinds = {"backoff": BACKOFF_FIELDS, "jitter": JITTER_FIELDS}.get(part, {})
    return "" if name == "kind" else " ".join(kind for kind, fields in kinds.items() if name in fields)


def scope(draft: Draft, usual: Mapping[str, Any]) -> list[Field]:
    return [field_of(draft, usual, path) for path in ("match.task", "match.queue", "match.source")]


def delays(draft: Draft, usual: Mapping[str, Any]) -> list[Field]:
    names = [f"backoff.{name}" for name in ("kind", "first_delay_s", "factor", "power", "plus_s", "delays_s")]
    jitter = [f"jitter.{name}" for name in ("kind", "fraction", "seconds")]
    return [field_of(draft, usual, path) for path in ("max_attempts", *names, "cap_s", *jitter)]


_FOLDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Budget and limits",
        "Across all workers. A retry above the budget is dead (reason: budget). A job above a limit waits without "
        "occupying a worker.",
        (
            "budget.per_minute", "budget.burst", "budget.group", "concurrency.key", "concurrency.limit",
            "rate_limit.max", "rate_limit.per_s",
        ),
    ),
    (
        "Poison pills",
        "Jobs that crash their worker this often are quarantined.",
        ("poison.crashes", "poison.window_s"),
    ),
    ("Exhaustion", "", ("exhausted", "native")),
)  # fmt: skip


def folds(draft: Draft, usual: Mapping[str, Any]) -> list[Place]:
    """Return the folded inputs that most policies leave empty, open if a field is set or refused."""
    found = []
    for title, hint, paths in _FOLDS:
        is_set = any(_is_set(draft, path) for path in paths)
        found.append(Place(title, [field_of(draft, usual, path) for path in paths], is_set, hint))
    return found


def _is_set(draft: Draft, path: str) -> bool:
    value = draft.texts.get(path, "")
    return path in draft.errors or bool(value and value != next(iter(_CHOICES.get(path, {})), ""))


def retry_after(draft: Draft, usual: Mapping[str, Any]) -> Place:
    fields = [field_of(draft, usual, f"retry_after.{name}") for name in ("jitter", "cap_s")]
    return Place("Retry-After", fields, draft.refused_in("retry_after"))


def breaker(draft: Draft, usual: Mapping[str, Any]) -> Place:
    fields = [field_of(draft, usual, f"breaker.{name}") for name in ("dependency", "max_hold_s")]
    return Place("Breaker", fields, draft.has_breaker or draft.refused_in("breaker"))


def rows(draft: Draft) -> list[Row]:
    """Return the rows of error classes, and some empty ones."""
    return [*draft.rows, *(Row() for _ in range(SPARE_ROWS))]


CLASS_WORDS = {name: name.replace("_", " ") for name in (PERMANENT, RATE_LIMITED, TRANSIENT)}
