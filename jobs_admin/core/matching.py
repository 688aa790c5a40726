"""Decisions of policies: the policy of a job, the class of an error, and retry or dead letter after a failed attempt.

In a glob, `*` matches any text; other characters are literal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from jobs_admin.core import backoff
from jobs_admin.core.policy.shape import PERMANENT, TRANSIENT, Match, Policy

_BUILT_IN = "builtins."


def matches(glob: str, name: str) -> bool:
    """Return whether the glob matches the complete name. Linear for any glob: each part is searched once."""
    first, *others = glob.split("*")
    if not others:
        return glob == name
    *middle, last = others
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Matched(Protocol):
    """A policy, or a record with its name and match."""

    @property
    def name(self) -> str: ...
    @property
    def match(self) -> Match: ...


_Matched = TypeVar("_Matched", bound=Matched)


def chosen(policies: Iterable[_Matched], source: str, queue: str, task: str) -> _Matched | None:
    """Return the policy of a job: the most specific one by task, then queue, then source.

    An exact name is more specific than any glob; of two globs, the one with more text before its first `*`.
    """
    fitting = [
        one
        for one in policies
        if matches(one.match.task, task) and matches(one.match.queue, queue) and matches(one.match.source, source)
    ]
    # Equally specific policies are refused on save; if there are any, every worker chooses the same one.
    return max(fitting, key=lambda one: (_rank(one.match), one.name), default=None)


def equal(policy: Policy, others: Iterable[Policy]) -> Policy | None:
    """Return another policy that is equally specific and could match the same job, so that the choice is undefined."""
    for other in others:
        if (
            _rank(policy.match) == _rank(other.match)
            and meet(policy.match.task, other.match.task)
            and meet(policy.match.queue, other.match.queue)
            and meet(policy.match.source, other.match.source)
        ):
            return other
    return None


def class_of(policy: Policy, error_names: Sequence[str]) -> str:
    """Return the class of an error from the names of its class and base classes (its MRO).

    The first entry of `policy.classes` that matches any of the names decides; without a match the error is transient. A
    glob with a dot is compared with the full name (`requests.exceptions.Timeout`), one without with the last part
    (`Timeout`).
    """
    return named_class_of(policy, error_names) or TRANSIENT


def named_class_of(policy: Policy, error_names: Sequence[str]) -> str | None:
    """Return the class that `policy.classes` assigns to an error; None if no entry matches."""
    names = [name.removeprefix(_BUILT_IN) for name in error_names]
    short = [name.rpartition(".")[2] for name in names]
    for one in policy.classes:
        glob = one.error.removeprefix(_BUILT_IN)
        if any(matches(glob, name) for name in (names if "." in glob else short)):
            return one.as_
    return None


def names_of(error: type[BaseException]) -> tuple[str, ...]:
    """Return the names of an error's class and base classes, nearest first, for `class_of`."""
    return tuple(
        one.__qualname__ if one.__module__ in ("builtins", "__main__") else f"{one.__module__}.{one.__qualname__}"
        for one in error.__mro__
        if one is not object
    )


def _rank(match: Match) -> tuple[tuple[bool, int], ...]:
    return tuple(
        (("*" not in glob), 0 if "*" not in glob else glob.index("*"))
        for glob in (match.task, match.queue, match.source)
    )


def meet(one: str, other: str) -> bool:
    """Return whether some name matches both globs."""
    below = [set(other[j:]) <= {"*"} for j in range(len(other) + 1)]  # whether the rests from here match
    for i in reversed(range(len(one))):
        row = [set(one[i:]) <= {"*"}]
        for j in reversed(range(len(other))):
            if one[i] == "*" or other[j] == "*":
                row.append(row[-1] or below[j])  # the star matches a character of the other, or ends
            else:
                row.append(one[i] == other[j] and below[j + 1])
        below = row[::-1]
    return below[0]


EXHAUSTED, BUDGET, TOO_LATE = "exhausted", "budget", "retry-after"
REASONS = (PERMANENT, EXHAUSTED, TOO_LATE, BUDGET)


@dataclass(frozen=True, slots=True)
class Ended:
    """A failed attempt."""

    attempt: int  # in the run, counted from 1
    error_names: tuple[str, ...] = ()  # of the class and its bases, by `names_of`
    retry_after_s: float | None = None  # delay requested by the server; None or 0: none
    previous_s: float | None = None  # delay before this attempt; None before the first, or if unknown


@dataclass(frozen=True, slots=True)
class Again:
    delay_s: float
    cls: str  # transient or rate_limited
    wish_s: float | None = None  # delay requested by the server, if respected


@dataclass(frozen=True, slots=True)
class Dead:
    reason: str  # one of REASONS
    cls: str


def judge(policy: Policy, ended: Ended, random: Callable[[], float], budget: Callable[[], bool]) -> Again | Dead:
    """Return the decision about the job. `random` returns a number in [0, 1) and is called at most once.

    `budget` spends one retry and returns whether there was one. It is called last, only if all else allows a retry.
    """
    cls = class_of(policy, ended.error_names)
    wish_s = _heeded_wish_s(policy, ended.retry_after_s)
    if cls == PERMANENT:
        return Dead(PERMANENT, cls)
    if ended.attempt >= policy.max_attempts:
        return Dead(EXHAUSTED, cls)
    if wish_s is not None and wish_s > policy.retry_after.cap_s:
        return Dead(TOO_LATE, cls)
    if not budget():
        return Dead(BUDGET, cls)
    return Again(backoff.delay(policy, ended.attempt, random, ended.previous_s, wish_s), cls, wish_s)


def _heeded_wish_s(policy: Policy, seconds: float | None) -> float | None:
    """Return a valid request for a delay; None for zero, negative values and NaN."""
    return seconds if policy.retry_after.respect and seconds is not None and seconds > 0 else None
