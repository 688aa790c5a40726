"""Decisions of policies: which policy matches a job, which class an error has, and retry or dead letter after a failed attempt.

In a glob `*` matches anything, and nothing else is special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jobs_admin.core import backoff
from jobs_admin.core.policy.shape import PERMANENT, TRANSIENT, Match, Policy

_BUILT_IN = "builtins."


def matches(glob: str, name: str) -> bool:
    """Return whether the glob matches the whole name. In linear time, whatever the glob: each part is looked for once."""
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


def chosen(policies: Iterable[Policy], source: str, queue: str, task: str) -> Policy | None:
    """The policy for a job: the most particular one by task, then by queue, then by source.

    Exact is more particular than any glob, and of two globs that with the longer text before its first `*`.
    """
    fitting = [
        one
        for one in policies
        if matches(one.match.task, task) and matches(one.match.queue, queue) and matches(one.match.source, source)
    ]
    # Two that are equal are refused when they are saved; should they meet all the same, every worker takes the same.
    return max(fitting, key=lambda one: (_rank(one.match), one.name), default=None)


def equal(policy: Policy, others: Iterable[Policy]) -> Policy | None:
    """One of the others that is as particular and could match the same job, so that it is undefined which decides."""
    for other in others:
        if (
            _rank(policy.match) == _rank(other.match)
            and _meet(policy.match.task, other.match.task)
            and _meet(policy.match.queue, other.match.queue)
            and _meet(policy.match.source, other.match.source)
        ):
            return other
    return None


def class_of(policy: Policy, error_names: Sequence[str]) -> str:
    """The class of an error, from the names of its class and of all bases of it (its MRO).

    The first entry of `policy.classes` that fits any of the names decides; without one the error is transient. A glob
    with a dot is compared with the whole name (`requests.exceptions.Timeout`), one without with the last part (`Timeout`).
    """
    names = [name.removeprefix(_BUILT_IN) for name in error_names]
    short = [name.rpartition(".")[2] for name in names]
    for one in policy.classes:
        glob = one.error.removeprefix(_BUILT_IN)
        if any(matches(glob, name) for name in (names if "." in glob else short)):
            return one.as_
    return TRANSIENT


def names_of(error: type[BaseException]) -> tuple[str, ...]:
    """The names of an error's class and of its bases, nearest first, as `class_of` wants them."""
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


def _meet(one: str, other: str) -> bool:
    """Return whether some name fits both globs."""
    below = [set(other[j:]) <= {"*"} for j in range(len(other) + 1)]  # whether the ends from here on meet
    for i in reversed(range(len(one))):
        row = [set(one[i:]) <= {"*"}]
        for j in reversed(range(len(other))):
            if one[i] == "*" or other[j] == "*":
                row.append(row[-1] or below[j])  # the star takes a character of the other, or ends
            else:
                row.append(one[i] == other[j] and below[j + 1])
        below = row[::-1]
    return below[0]


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
    wish_s: float | None = None  # what the server asked for, where that was heeded


@dataclass(frozen=True, slots=True)
class Dead:
    reason: str  # one of REASONS
    cls: str


def judge(policy: Policy, ended: Ended, random: Callable[[], float], budget: Callable[[], bool]) -> Again | Dead:
    """Return what becomes of the job. `random` gives a number from 0 up to, not including, 1, and is asked at most once.

    `budget` spends one retry and says whether there was one; it is asked last, only where all else says again.
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
    """A wish that counts. Nothing, less than nothing and NaN are no wishes."""
    return seconds if policy.retry_after.respect and seconds is not None and seconds > 0 else None
