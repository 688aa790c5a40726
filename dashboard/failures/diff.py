"""Two attempts of a failure side by side: what they failed with, and what they were called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.failures.timeline import ENDED, short
from dashboard.web.differences import Difference, of_texts, of_values
from dashboard.web.figures import duration
from jobs_admin.core.fingerprint import Explanation, differences, explain, fingerprint
from jobs_admin.db import grouping_rules
from jobs_admin.failures import contents
from jobs_admin.failures.histories import Ended
from jobs_admin.models import Attempt, Failure


@dataclass(frozen=True, slots=True)
class Section:
    """One thing that is compared. `why_not` says why it could not be."""

    name: str
    difference: Difference | None = None
    why_not: str = ""
    nothing: str = ""  # what is said where nothing differs


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    left: str
    right: str

    @property
    def is_same(self) -> bool:
        return self.left == self.right


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of two errors by the current rules: the same or not, and the parts that differ."""

    is_one: bool
    parts: list[tuple[str, str, str]]  # what, left, right


def grouping(failure: Failure, left: Attempt, right: Attempt) -> Grouping | None:
    """None where one of them did not fail."""
    if not left.error_type or not right.error_type:
        return None
    (one, parts_of_one), (other, parts_of_other) = _printed(failure, left), _printed(failure, right)
    parts = [] if one == other else [(d.place, d.left, d.right) for d in differences(parts_of_one, parts_of_other)]
    return Grouping(one == other, parts)


def _printed(failure: Failure, attempt: Attempt) -> tuple[str, Explanation]:
    rules = grouping_rules.current()
    trace = attempt.traceback.text if attempt.traceback else ""
    facts = {name: getattr(failure, name) for name in ("task", "queue", "source", "tenant")}
    facts["release"] = attempt.release or failure.release
    error = attempt.error_type, attempt.message, trace, rules, facts
    return fingerprint(*error).value, explain(*error)


def facts(left: Attempt, right: Attempt) -> list[Fact]:
    """Return the facts of both attempts that at least one of them has."""
    found = [Fact(name, *(_fact(one, name) for one in (left, right))) for name in _FACTS]
    return [fact for fact in found if fact.left or fact.right]


_FACTS = ("Ended", "Error", "Took", "Worker", "Host", "Release", "Policy", "Reason")


def _fact(one: Attempt, name: str) -> str:
    return {
        "Ended": ENDED.get(one.kind, one.kind),
        "Error": one.error_type,
        "Took": "" if one.duration_s is None else duration(one.duration_s),
        "Worker": one.worker,
        "Host": one.host,
        "Release": one.release,
        "Policy": one.policy,
        "Reason": one.reason,
    }[name]


def sections(failure: Failure, left: Attempt, right: Attempt) -> list[Section]:
    stacks = [one.traceback.text if one.traceback else "" for one in (left, right)]
    return [
        Section("Message", of_texts(left.message, right.message), nothing="The messages are the same."),
        Section(
            "Traceback",
            of_texts(*stacks),
            nothing="The tracebacks are the same." if stacks[0] else "Neither attempt has a traceback.",
        ),
        *_of_runs(failure, left.run, right.run),
    ]


def _of_runs(failure: Failure, left: int, right: int) -> list[Section]:
    names = {"args": "Arguments", "kwargs": "Keyword arguments", "headers": "Headers"}
    if left == right:
        return [
            Section("Arguments", why_not=f"Both attempts belong to run {left}, so arguments and headers are the same.")
        ]
    try:
        one, other = contents.message(failure, left), contents.message(failure, right)
    except contents.Unreadable as error:
        return [Section("Arguments", why_not=f"{error} Arguments and headers cannot be compared.")]
    return [
        Section(name, of_values(getattr(one, field), getattr(other, field)), nothing=f"{name}: no differences.")
        for field, name in names.items()
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    pk: int
    words: str


def choices(ended: Sequence[Ended | Attempt]) -> list[Choice]:
    """Attempts to choose from, the latest first."""
    known = {one.pk: one for one in ended}
    order = sorted(known.values(), key=lambda one: (one.run, one.attempt, one.pk), reverse=True)
    return [
        Choice(
            one.pk, f"run {one.run}, attempt {one.attempt}: {short(one.error_type) or ENDED.get(one.kind, one.kind)}"
        )
        for one in order
    ]
