"""Comparison of two attempts of a failure: groups, errors and arguments."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.web.differences import Difference, of_texts, of_values
from jobs_admin.core.fingerprint import Explanation, differences, explain, fingerprint
from jobs_admin.db import grouping_rules
from jobs_admin.failures import contents
from jobs_admin.models import Attempt, Failure


@dataclass(frozen=True, slots=True)
class Section:
    """One compared field. `why_not`: why it could not be compared."""

    field: str  # message, traceback, args, kwargs, headers
    name: str
    difference: Difference | None = None
    why_not: str = ""
    nothing: str = ""  # text shown if nothing differs


@dataclass(frozen=True, slots=True)
class Grouping:
    """Comparison of the groups of two errors by the current rules, with the parts that differ."""

    is_one: bool
    parts: list[tuple[str, str, str]]  # name, left, right


def grouping(failure: Failure, left: Attempt, right: Attempt) -> Grouping | None:
    """Return whether both errors belong to one group, and why not; None if one of the attempts did not fail."""
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


def sections(failure: Failure, left: Attempt, right: Attempt) -> list[Section]:
    stacks = [one.traceback.text if one.traceback else "" for one in (left, right)]
    return [
        Section("message", "Message", of_texts(left.message, right.message), nothing="The messages are the same."),
        Section(
            "traceback",
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
            Section(
                "args",
                "Arguments",
                why_not=f"Both attempts belong to run {left}, so arguments and headers are the same.",
            )
        ]
    try:
        one, other = contents.message(failure, left), contents.message(failure, right)
    except contents.Unreadable as error:
        return [Section("args", "Arguments", why_not=f"{error} Arguments and headers cannot be compared.")]
    return [
        Section(field, name, of_values(getattr(one, field), getattr(other, field)), nothing=f"{name}: no differences.")
        for field, name in names.items()
    ]
