"""What a rule says, and the rules by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.where import Where

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
    """What a rule itself adds to what is the same in all of its findings."""

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
    """Make a rule of the function that finds its offences. Rules are told in the order in which they are made."""

    def add(judge: Callable[[Case], Iterator[Found]]) -> Callable[[Case], Iterator[Found]]:
        assert id not in RULES, id
        RULES[id] = Rule(id, severity, title, why, fix, source, judge)
        return judge

    return add


def findings(case: Case) -> list[Finding]:
    """What all rules find, the worst first, in one order however often it is asked."""
    found = [
        Finding(
            rule.id, one.severity or rule.severity, rule.title, one.evidence, rule.fix, rule.source, one.where, one.quoted
        )
        for rule in RULES.values()
        for one in rule.judge(case)
    ]  # fmt: skip
    places = {name: place for place, name in enumerate(RULES)}
    return sorted(set(found), key=lambda f: (SEVERITIES.index(f.severity), places[f.id], f.where, f.evidence))
