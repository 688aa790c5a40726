"""What is said of an alert in a line: `emails has 1,243 dead jobs (threshold: 100) for 5 min`."""

from __future__ import annotations

from jobs_admin.core.text import shown
from jobs_admin.models import Alert, Rule

_LONGEST_NAME = 100
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def sentence(alert: Alert, lasted_s: float) -> str:
    """How it stands, and for how long."""
    rule = alert.rule
    bound = f"(threshold: {figure(rule.metric, alert.threshold)})"
    lasted = f" for {duration(lasted_s)}" if lasted_s >= 1 else ""
    return f"{state(alert)} {bound}{lasted}"


def over(alert: Alert, lasted_s: float) -> str:
    bound = f"(threshold: {figure(alert.rule.metric, alert.threshold)})"
    return f"{state(alert)} {bound}; over after {duration(lasted_s)}"


def state(alert: Alert) -> str:
    """The value in words, without the threshold."""
    rule, what = alert.rule, name(alert.subject)
    value = figure(rule.metric, alert.value)
    said = {
        "dead": f"{what} has {value} dead {_jobs(alert.value)}",
        "quarantined": f"{what} has {value} {_jobs(alert.value)} in quarantine",
        "growth_per_minute": f"{what} gains {value} dead jobs a minute",
        "oldest_dead_s": f"{what} has a job that is dead for {value}",
        "failure_rate": f"{what} loses {value} of its jobs",
        "retry_rate": f"{what} retries {value} of its attempts",
        "unreachable": f"{name(alert.source)} cannot be reached for {value}",
        "stalled_s": f"{name(alert.source) if alert.source else f'step {what} of watch'} has made no progress for {value}",
        "ingest_lag_s": f"reports of {name(alert.source) if alert.source else 'guards of an earlier version'} wait for {value} to be filed",
        "view": f"the view “{what}” holds {value} {_jobs(alert.value)}",
    }[rule.metric]
    return said + _of(rule)


def figure(metric: str, value: float) -> str:
    """A value or a threshold of this metric, with its unit."""
    if metric in ("failure_rate", "retry_rate"):
        return f"{value * 100:.3g} %"
    if metric in ("oldest_dead_s", "unreachable", "stalled_s", "ingest_lag_s"):
        return duration(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float) -> str:
    """In at most two units: `5 min`, `1 h 20 min`."""
    left, said = max(0, round(seconds)), []
    for size, unit in _UNITS:
        if left >= size and len(said) < 2:
            said.append(f"{left // size} {unit}")
            left %= size
        elif said:
            break
    return " ".join(said) or "0 s"


def name(text: str) -> str:
    """A name of somebody else's in a line of ours: nothing in it ends the line or hides the rest."""
    return shown(text, _LONGEST_NAME)


def _jobs(value: float) -> str:
    return "job" if value == 1 else "jobs"


def _of(rule: Rule) -> str:
    some = narrowed(rule)
    return f" of {some}" if some else ""


def narrowed(rule: Rule) -> str:
    """Which jobs of a queue it counts: `task shop.send, tenant acme`; "" for all."""
    parts = [
        f"{what} {name(glob)}"
        for what, glob in (("task", rule.task), ("group", rule.group), ("tenant", rule.tenant))
        if glob != "*"
    ]
    return ", ".join(parts)
