"""Lint rules, their findings, and the formatting of numbers in their sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs_admin.core.backoff import Range
from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where


def listed(waits: tuple[Range, ...] | tuple[float, ...], most: int = 5) -> str:
    """Return the first delays and the last: 1 s, 2 s, 4 s, 8 s, 16 s … 10 min."""
    longest = [one.longest_s if isinstance(one, Range) else one for one in waits]
    shown = ", ".join(map(exact_duration, longest[:most]))
    return (
        f"{shown} … {exact_duration(longest[-1])}"
        if len(longest) > most and longest[-1] != longest[most - 1]
        else shown
    )


def count(number: float, what: str) -> str:
    """Return a number with its noun: 1 retry, 3 retries; 1,200 jobs."""
    one = round(number) == 1
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,.0f} {what if one else plural}"


HIGH, MEDIUM, LOW = "high", "medium", "low"
SEVERITIES = (HIGH, MEDIUM, LOW)


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake in one place. `quoted`: the configuration, or "" if no single line contains it."""

    id: str
    severity: str
    title: str
    evidence: str
    fix: str
    source: str  # reference: documentation, a thread, a standard
    where: Where
    quoted: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The part of a finding that differs within a rule."""

    where: Where
    evidence: str
    quoted: str = ""
    severity: str | None = None  # None: the rule's own


@dataclass(frozen=True, slots=True)
class Rule:
    """Lint rule. `why` is for the documentation and states every threshold that `judge` uses."""

    id: str
    severity: str  # default; a finding may override it
    title: str
    why: str
    fix: str
    source: str
    judge: Callable[[Case], Iterator[Found]]


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: str, *, title: str, why: str, fix: str, source: str
) -> Callable[[Callable[[Case], Iterator[Found]]], Callable[[Case], Iterator[Found]]]:
    """Register a function that finds offences as a rule. Findings follow the order of registration."""

    def add(judge: Callable[[Case], Iterator[Found]]) -> Callable[[Case], Iterator[Found]]:
        assert id not in RULES, id
        RULES[id] = Rule(id, severity, title, why, fix, source, judge)
        return judge

    return add


def findings(case: Case) -> list[Finding]:
    """Return the findings of all rules, most severe first, in a stable order."""
    found = [
        Finding(
            rule.id, one.severity or rule.severity, rule.title, one.evidence, rule.fix, rule.source, one.where, one.quoted
        )
        for rule in RULES.values()
        for one in rule.judge(case)
    ]  # fmt: skip
    places = {name: place for place, name in enumerate(RULES)}
    return sorted(set(found), key=lambda f: (SEVERITIES.index(f.severity), places[f.id], f.where, f.evidence))
