"""Sentence about an alert: `emails has 1,243 dead jobs (threshold: 100) for 5 min`."""

from __future__ import annotations

from jobs_admin.core import figures
from jobs_admin.core.alert_metrics import Subject, figure
from jobs_admin.core.text import terminal_line
from jobs_admin.models import Alert, Rule

_LONGEST_NAME = 100


def sentence(alert: Alert, lasted_s: float) -> str:
    """Return its state and duration as a sentence."""
    rule = alert.rule
    bound = f"(threshold: {figure(rule.metric, alert.threshold)})"
    lasted = f" for {figures.exact_duration(round(lasted_s))}" if lasted_s >= 1 else ""
    return f"{state(alert)} {bound}{lasted}"


def resolved_sentence(alert: Alert, lasted_s: float) -> str:
    bound = f"(threshold: {figure(alert.rule.metric, alert.threshold)})"
    return f"{state(alert)} {bound}; resolved after {figures.exact_duration(round(lasted_s))}"


def state(alert: Alert) -> str:
    """Return the value as text, without the threshold."""
    return _fill_template(alert.rule.measure.now, alert, alert.value)


def past_state(alert: Alert) -> str:
    """Return the peak of a resolved alert as text, without the threshold."""
    return _fill_template(alert.rule.measure.past, alert, alert.peak)


def _fill_template(text: str, alert: Alert, value: float) -> str:
    rule, measure = alert.rule, alert.rule.measure
    subject = name(alert.subject)
    if measure.subject is Subject.SOURCE:
        no_source = measure.named_subjects.get(alert.subject, measure.no_source)
        subject = name(alert.source) if alert.source else no_source.format(subject=subject)
    filled = text.format(subject=subject, value=figure(rule.metric, value), noun=measure.noun_for(value))
    return f"{filled} of {some}" if (some := narrowed(rule)) else filled


def name(text: str) -> str:
    """Return an untrusted name, shortened for one line: no character ends the line or hides the rest."""
    return terminal_line(text, _LONGEST_NAME)


def narrowed(rule: Rule) -> str:
    """Return which jobs of a queue it counts: `task shop.send, tenant acme`; "" for all."""
    parts = [
        f"{what} {name(glob)}"
        for what, glob in (("task", rule.task), ("group", rule.group), ("tenant", rule.tenant))
        if glob != "*"
    ]
    return ", ".join(parts)
