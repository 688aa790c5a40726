"""Sentence about an alert: `emails has 1,243 dead jobs (threshold: 100) for 5 min`."""

from __future__ import annotations

from jobs_admin.core.alert_metrics import METRICS, Subject, Unit
from jobs_admin.core.text import terminal_line
from jobs_admin.models import Alert, Rule

_LONGEST_NAME = 100
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def sentence(alert: Alert, lasted_s: float) -> str:
    """Return its state and duration."""
    rule = alert.rule
    bound = f"(threshold: {figure(rule.metric, alert.threshold)})"
    lasted = f" for {duration(lasted_s)}" if lasted_s >= 1 else ""
    return f"{state(alert)} {bound}{lasted}"


def resolved_sentence(alert: Alert, lasted_s: float) -> str:
    bound = f"(threshold: {figure(alert.rule.metric, alert.threshold)})"
    return f"{state(alert)} {bound}; resolved after {duration(lasted_s)}"


def state(alert: Alert) -> str:
    """Return the value in words, without the threshold."""
    return _fill_template(alert.rule.measure.now, alert, alert.value)


def past_state(alert: Alert) -> str:
    """Return the peak of a resolved alert in words, without the threshold."""
    return _fill_template(alert.rule.measure.past, alert, alert.peak)


def _fill_template(text: str, alert: Alert, value: float) -> str:
    rule, measure = alert.rule, alert.rule.measure
    subject = name(alert.subject)
    if measure.subject is Subject.SOURCE:
        no_source = measure.named_subjects.get(alert.subject, measure.no_source)
        subject = name(alert.source) if alert.source else no_source.format(subject=subject)
    filled = text.format(subject=subject, value=figure(rule.metric, value), noun=measure.noun_for(value))
    return f"{filled} of {some}" if (some := narrowed(rule)) else filled


def figure(metric: str, value: float) -> str:
    """Return a value or a threshold of this metric, with its unit."""
    unit = METRICS[metric].unit
    if unit is Unit.SHARE:
        return f"{value * 100:.3g} %"
    if unit is Unit.SECONDS:
        return duration(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float) -> str:
    """Return the duration in at most two units: `5 min`, `1 h 20 min`."""
    left, parts = max(0, round(seconds)), []
    for size, unit in _UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts) or "0 s"


def name(text: str) -> str:
    """Return a foreign name shortened for a line: nothing in it ends the line or hides the rest."""
    return terminal_line(text, _LONGEST_NAME)


def narrowed(rule: Rule) -> str:
    """Return which jobs of a queue it counts: `task shop.send, tenant acme`; "" for all."""
    parts = [
        f"{what} {name(glob)}"
        for what, glob in (("task", rule.task), ("group", rule.group), ("tenant", rule.tenant))
        if glob != "*"
    ]
    return ", ".join(parts)
