"""The list of alert rules: condition, recipients and open alerts of each."""

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
    sentence: str
    severity: str
    tone: str
    recipients: list[str]
    no_recipient: str  # why no one would be notified; empty if someone would
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
    """Return the lines of rules. `standing`: counts of the alerts of each rule."""
    return [line(rule, standing.get(rule.pk), may_change.get(rule.pk, False)) for rule in rules]


def line(rule: Rule, status: Any, may_change: bool) -> Line:
    listing = url_of("redrive:alert-list")
    return Line(
        rule.pk,
        rule.name,
        reverse("redrive:alert-rule-detail", args=[rule.pk]),
        rule_words.sentence(rule),
        rule.severity,
        rule_words.SEVERITY_TONES[rule.severity],
        sorted(one.name for one in rule.channels.all()),
        no_recipient(rule),
        escalation(rule),
        rule.enabled,
        status.firing if status else 0,
        status.open if status else 0,
        f"{listing}?rule={rule.pk}" if listing else "",
        status.last_fired_at if status else None,
        rule.changed_at,
        rule.changed_by,
        may_change,
    )


def no_recipient(rule: Rule) -> str:
    if any(one.disabled_at is None for one in rule.channels.all()):
        return ""
    why = "all channels are disabled" if rule.channels.all() else "no channel selected"
    later = rule.escalate_s is not None and any(one.disabled_at is None for one in rule.escalate_to.all())
    return f"no notifications{' before escalation' if later else ''}: {why}"


def escalation(rule: Rule) -> str:
    if rule.escalate_s is None:
        return ""
    to = sorted(one.name for one in rule.escalate_to.all())
    where = f"to {', '.join(to)} " if to else ""
    return f"{where}after {rule_words.duration(rule.escalate_s)} without acknowledgement"
