"""Alert rules as text, and the lines of the list: condition, recipients and open alerts of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from dashboard.web.figures import duration, number, percent
from dashboard.web.links import url_of
from jobs_admin.core.alert_metrics import METRICS, Subject, Unit
from jobs_admin.models.alert import Rule

SEVERITY_TONES = {"info": "replaying", "warning": "retrying", "critical": "dead"}
NO_DATA = {
    "keep": "keep current state",
    "fire": "treat as above the threshold",
    "clear": "treat as below the threshold",
}


def amount(metric: str, value: float | None) -> str:
    """Return a value of this metric with its unit: 1,243 jobs; 5 min; 12 %."""
    if value is None:
        return "–"
    known = METRICS.get(metric)
    if known is not None and known.unit is Unit.SECONDS:
        return duration(value)
    if known is not None and known.unit is Unit.SHARE:
        return percent(value)
    noun = known.noun_for(value) if known is not None else ""
    return f"{number(value)} {noun}".strip()


def sentence(rule: Rule) -> str:
    """Return the condition of a rule: `dead jobs of any queue above 100 for 1 min`."""
    return f"{about(rule)} {condition(rule)}".strip()


def about(rule: Rule) -> str:
    """Return the metric with its scope: `dead jobs of webhooks in shop, of tenant cobalt`."""
    metric = rule.measure
    if metric.subject is Subject.SOURCE:
        return metric.condition.format(source=metric.any_source if rule.source == "*" else rule.source)
    if metric.subject is Subject.VIEW:
        words = metric.condition.format(view=f"the view {rule.view.name}" if rule.view else "a saved view")
        return words if rule.source == "*" else f"{words}, of {rule.source}"
    words = f"{metric.condition} of {_any(rule.queue, 'queue')}"
    if rule.source != "*":
        words += f" in {rule.source}"
    more = [f"{name} {value}" for name in ("task", "group", "tenant") if (value := getattr(rule, name)) != "*"]
    return f"{words}, of {' and '.join(more)}" if more else words


def condition(rule: Rule) -> str:
    threshold = rule.threshold
    shown = number(threshold) if rule.measure.unit is Unit.NUMBER else amount(rule.metric, threshold)
    words = f"{rule.measure.above} {shown}"
    return f"{words} for {duration(rule.for_s)}" if rule.for_s else words


def recipients(channels: Iterable[str]) -> str:
    """Return the names of the notified channels; the desk itself always shows the alert."""
    names = list(channels)
    return ", ".join(names) if names else "none"


def _any(glob: str, noun: str) -> str:
    return f"any {noun}" if glob == "*" else glob


@dataclass(frozen=True, slots=True)
class Line:
    pk: int
    name: str
    url: str
    sentence: str
    severity: str
    tone: str
    recipients: list[str]
    no_recipient: str  # why no one would be notified; "" if someone would
    escalates: str  # escalation as text; "" without one
    enabled: bool
    firing: int
    open: int  # includes pending ones: alerts that a deletion ends
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
        sentence(rule),
        rule.severity,
        SEVERITY_TONES[rule.severity],
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
    return f"{where}after {duration(rule.escalate_s)} without acknowledgement"
