"""An alert rule in words."""

from __future__ import annotations

from collections.abc import Iterable

from dashboard.web.figures import duration, number, percent
from jobs_admin.core.alert_metrics import METRICS, Subject, Unit
from jobs_admin.models.alert import Rule

SEVERITY_TONES = {"info": "replaying", "warning": "retrying", "critical": "dead"}
NO_DATA = {
    "keep": "keep current state",
    "fire": "treat as above the threshold",
    "clear": "treat as below the threshold",
}


def amount(metric: str, value: float | None) -> str:
    """A value of this metric with its unit: 1,243 jobs; 5 min; 12 %."""
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
    """`dead jobs of any queue above 100 for 1 min`: the condition of a rule."""
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
