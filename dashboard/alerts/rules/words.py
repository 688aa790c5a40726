"""What a rule says, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dashboard.alerts.rules.forms import IN_SECONDS, IN_SHARES
from dashboard.web.figures import duration, number, percent
from jobs_admin.models.alert import Rule


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` in a list to choose from, `says` at the beginning of a sentence, `unit` of its threshold."""

    name: str
    says: str
    unit: str
    above: str = "above"


METRICS: dict[str, Metric] = {
    "dead": Metric("Dead jobs", "dead jobs", "jobs"),
    "growth_per_minute": Metric("New dead jobs a minute", "new dead jobs a minute", "a minute"),
    "oldest_dead_s": Metric("Age of the oldest dead job", "the oldest dead job", "", "older than"),
    "failure_rate": Metric("Share of jobs that died", "share of jobs that died", "%"),
    "retry_rate": Metric("Share of attempts to be tried again", "share of attempts to be tried again", "%"),
    "quarantined": Metric("Quarantined jobs", "quarantined jobs", "jobs"),
    "unreachable": Metric("A source that cannot be reached", "no connection", "", "for longer than"),
    "stalled_s": Metric("A source or step without progress", "no progress", "", "for longer than"),
    "ingest_lag_s": Metric("How late reports of workers are read", "reports of workers are read late, by", "", "more than"),
    "view": Metric("What a saved view finds", "failures in a saved view", "failures"),
}  # fmt: skip
SEVERITY_LOOKS = {"info": "replaying", "warning": "retrying", "critical": "dead"}
NO_DATA = {
    "keep": "it stays as it is",
    "fire": "that counts as above the threshold",
    "clear": "that counts as below it",
}


def amount(metric: str, value: float | None) -> str:
    """A value of this metric with its unit: 1,243 jobs; 5 min; 12 %."""
    if value is None:
        return "–"
    if metric in IN_SECONDS:
        return duration(value)
    if metric in IN_SHARES:
        return percent(value)
    unit = METRICS[metric].unit if metric in METRICS else ""
    one = unit.removesuffix("s") if value == 1 and unit in ("jobs", "failures") else unit
    return f"{number(value)} {one}".strip()


def sentence(rule: Rule) -> str:
    """`dead jobs of any queue above 100 for 1 min`: the condition of a rule."""
    return f"{about(rule)} {condition(rule)}".strip()


def about(rule: Rule) -> str:
    """What it looks at: `dead jobs of webhooks in shop, of tenant cobalt`."""
    metric = METRICS[rule.metric]
    if rule.metric == "ingest_lag_s":
        return metric.says if rule.source == "*" else f"reports of {rule.source} are read late, by"
    if rule.metric == "unreachable":
        return f"no connection to {_any(rule.source, 'source')}"
    if rule.metric == "stalled_s":
        return "no progress of any source or step" if rule.source == "*" else f"no progress of {rule.source}"
    if rule.metric == "view":
        words = f"failures in the view {rule.view.name}" if rule.view else metric.says
        return words if rule.source == "*" else f"{words}, of {rule.source}"
    words = f"{metric.says} of {_any(rule.queue, 'queue')}"
    if rule.source != "*":
        words += f" in {rule.source}"
    more = [f"{name} {value}" for name in ("task", "group", "tenant") if (value := getattr(rule, name)) != "*"]
    return f"{words}, of {' and '.join(more)}" if more else words


def condition(rule: Rule) -> str:
    threshold = rule.threshold
    shown = number(threshold) if METRICS[rule.metric].unit not in ("", "%") else amount(rule.metric, threshold)
    words = f"{METRICS[rule.metric].above} {shown}"
    return f"{words} for {duration(rule.for_s)}" if rule.for_s else words


def told(channels: Iterable[str]) -> str:
    """Where it goes, in words; the page is told always."""
    names = list(channels)
    return ", ".join(names) if names else "this desk only"


def _any(glob: str, noun: str) -> str:
    return f"any {noun}" if glob == "*" else glob
