"""Lint rules and their findings, and the spans and numbers in their sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs_admin.core.backoff import Range
from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.configuration import Where

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """0.5 s, 90 s, 5 min, 2 h 30 min."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    for n, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            amount, rest = divmod(round(seconds), size)
            smaller, small_unit = _UNITS[min(n + 1, len(_UNITS) - 1)]
            more = f" {rest // smaller} {small_unit}" if rest >= smaller and unit != "s" else ""
            return f"{amount:,} {unit}{more}"
    raise AssertionError(seconds)


def listed(waits: tuple[Range, ...] | tuple[float, ...], most: int = 5) -> str:
    """The first waits, and the last: 1 s, 2 s, 4 s, 8 s, 16 s … 10 min."""
    longest = [one.longest_s if isinstance(one, Range) else one for one in waits]
    shown = ", ".join(map(span, longest[:most]))
    return f"{shown} … {span(longest[-1])}" if len(longest) > most and longest[-1] != longest[most - 1] else shown


def count(number: float, what: str) -> str:
    """1 retry, 3 retries; 1,200 jobs."""
    one = round(number) == 1
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,.0f} {what if one else plural}"


HIGH, MEDIUM, LOW = "high", "medium", "low"
SEVERITIES = (HIGH, MEDIUM, LOW)


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in one place. `quoted` is the configuration as it stands, "" where no single line says it."""

    id: str
    severity: str
    title: str
    evidence: str
    fix: str
    source: str  # where it is known from: a page of documentation, a thread, a standard
    where: Where
    quoted: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The part of a finding that differs between the findings of one rule."""

    where: Where
    evidence: str
    quoted: str = ""
    severity: str | None = None  # None: the rule's own


@dataclass(frozen=True, slots=True)
class Rule:
    """`why` is for the page of documentation, with every threshold that `judge` uses."""

    id: str
    severity: str  # the usual one; a finding may say another
    title: str
    why: str
    fix: str
    source: str
    judge: Callable[[Case], Iterator[Found]]


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: str, *, title: str, why: str, fix: str, source: str
) -> Callable[[Callable[[Case], Iterator[Found]]], Callable[[Case], Iterator[Found]]]:
    """Make a rule of the function that finds its offences. Findings follow the order in which rules are made."""

    def add(judge: Callable[[Case], Iterator[Found]]) -> Callable[[Case], Iterator[Found]]:
        assert id not in RULES, id
        RULES[id] = Rule(id, severity, title, why, fix, source, judge)
        return judge

    return add


def findings(case: Case) -> list[Finding]:
    """Return what all rules find, the worst first, in one order however often it is asked."""
    found = [
        Finding(
            rule.id, one.severity or rule.severity, rule.title, one.evidence, rule.fix, rule.source, one.where, one.quoted
        )
        for rule in RULES.values()
        for one in rule.judge(case)
    ]  # fmt: skip
    places = {name: place for place, name in enumerate(RULES)}
    return sorted(set(found), key=lambda f: (SEVERITIES.index(f.severity), places[f.id], f.where, f.evidence))
