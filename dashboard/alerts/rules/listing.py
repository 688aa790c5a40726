"""The rules as a list: what each says, whom it tells, and how it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from dashboard.alerts.rules import words as rule_words
from dashboard.web.links import url_of
from jobs_admin.models.alert import Rule


@dataclass(frozen=True, slots=True)
class Line:
    pk: int
    name: str
    url: str
    says: str
    severity: str
    look: str
    tells: list[str]
    nobody: str  # why nobody would be told; empty where somebody would
    escalates: str  # in words; empty where it does not
    enabled: bool
    firing: int
    open: int  # pending ones too: what a deletion ends
    firing_url: str
    last_fired_at: datetime | None
    changed_at: datetime | None
    changed_by: str
    may_change: bool


def lines(rules: Iterable[Rule], standing: Mapping[int, Any], may_change: Mapping[int, bool]) -> list[Line]:
    """`standing`: of each rule what its alerts come to."""
    return [line(rule, standing.get(rule.pk), may_change.get(rule.pk, False)) for rule in rules]


def line(rule: Rule, stands: Any, may_change: bool) -> Line:
    listing = url_of("redrive:alert-list")
    return Line(
        rule.pk,
        rule.name,
        reverse("redrive:alert-rule-detail", args=[rule.pk]),
        rule_words.sentence(rule),
        rule.severity,
        rule_words.SEVERITY_LOOKS[rule.severity],
        sorted(one.name for one in rule.channels.all()),
        nobody(rule),
        escalation(rule),
        rule.enabled,
        stands.firing if stands else 0,
        stands.open if stands else 0,
        f"{listing}?rule={rule.pk}" if listing else "",
        stands.last_fired_at if stands else None,
        rule.changed_at,
        rule.changed_by,
        may_change,
    )


def nobody(rule: Rule) -> str:
    if any(one.disabled_at is None for one in rule.channels.all()):
        return ""
    why = "its channels are disabled" if rule.channels.all() else "it names no channel"
    later = rule.escalate_s is not None and any(one.disabled_at is None for one in rule.escalate_to.all())
    return f"nobody would be told{' before it escalates' if later else ''}: {why}"


def escalation(rule: Rule) -> str:
    if rule.escalate_s is None:
        return ""
    to = sorted(one.name for one in rule.escalate_to.all())
    where = f"to {', '.join(to)} " if to else ""
    return f"{where}after {rule_words.duration(rule.escalate_s)} without acknowledgement"
