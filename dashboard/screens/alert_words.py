"""An alert in words: what is true, since when, and how it stands. For the list, its own page and the overview."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.shown.figures import duration, number
from jobs_admin.models import Alert, Rule
from jobs_admin.models.alert import AlertState, Severity

# What each metric counts: (of a queue in a sentence, its name over a column or a picture).
_METRICS = {
    "dead": ("{where} has {value} dead jobs", "Dead jobs"),
    "growth_per_minute": ("{where} grows by {value} dead jobs a minute", "New dead jobs a minute"),
    "oldest_dead_s": ("The oldest dead job of {where} is {value} old", "Age of the oldest dead job"),
    "failure_rate": ("{value} of the attempts on {where} fail", "Share of attempts that fail"),
    "retry_rate": ("{value} of the attempts on {where} are tried again", "Share of attempts that are retried"),
    "quarantined": ("{where} has {value} jobs in quarantine", "Jobs in quarantine"),
    "unreachable": ("{where} has not answered for {value}", "Time without an answer"),
    "ingest_lag_s": ("Reports wait {value} to be filed", "Lag of filing"),
    "view": ("{where} finds {value} failures", "Failures of the view"),
}
_SECONDS = {"oldest_dead_s", "unreachable", "ingest_lag_s"}
SHARES = {"failure_rate", "retry_rate"}

LOOKS = {
    AlertState.PENDING: "discarded",
    AlertState.FIRING: "dead",
    AlertState.ACKNOWLEDGED: "retrying",
    AlertState.SILENCED: "discarded",
    AlertState.RESOLVED: "recovered",
}
SEVERITY_LOOKS = {Severity.CRITICAL: "dead", Severity.WARNING: "retrying", Severity.INFO: "replaying"}


def metric(rule: Rule) -> str:
    """What it measures, over a picture."""
    return _METRICS[rule.metric][1]


def in_unit(value: float | None, name: str) -> str:
    """A value of this metric with its unit: 1,243 · 5 h · 12 %."""
    if value is None:
        return "–"
    if name in _SECONDS:
        return duration(value)
    if name in SHARES:
        return f"{value * 100:.3g} %"
    return number(float(value))


def where(alert: Alert) -> str:
    """The queue, group or view; the source where it is about that itself."""
    return alert.subject or alert.source or "the desk"


def says(alert: Alert) -> str:
    """What is true, or was at its worst once it is over: `emails has 1,243 dead jobs (threshold: 100)`."""
    name = alert.rule.metric
    value = alert.peak if alert.state == AlertState.RESOLVED else alert.value
    said = _METRICS[name][0].format(where=where(alert), value=in_unit(value, name))
    if alert.state == AlertState.RESOLVED:
        said = _past(said)
    return f"{said} (threshold: {in_unit(alert.threshold, name)})"


# As it was, once it is over.
_PAST = {
    " has not ": " had not ", " has ": " had up to ", " grows ": " grew ", " is ": " was ", " fail": " failed",
    " wait ": " waited ", " finds ": " found ", " are tried ": " were tried ",
}  # fmt: skip


def _past(said: str) -> str:
    for now, then in _PAST.items():
        if now in said:
            return said.replace(now, then, 1)
    return said


@dataclass(frozen=True, slots=True)
class Stands:
    """How an alert stands: the state's word and look, and since when, as a sentence."""

    word: str
    look: str
    since: datetime
    for_s: float  # it is true, or was


def stands(alert: Alert, now: datetime) -> Stands:
    ended = alert.resolved_at or now
    return Stands(alert.state, LOOKS[AlertState(alert.state)], alert.opened_at, _seconds(alert.opened_at, ended))


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())
