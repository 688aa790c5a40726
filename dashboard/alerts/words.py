"""An alert in words: what is true, since when, and how it stands. For the list, its own page and the overview."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from datetime import datetime

from jobs_admin.alerts import wording
from jobs_admin.models import Alert, Rule
from jobs_admin.models.alert import AlertState, Severity

# What each metric is called over a picture.
_METRICS = {
    "dead": "Dead jobs", "growth_per_minute": "New dead jobs a minute", "oldest_dead_s": "Age of the oldest dead job",
    "failure_rate": "Share of attempts that fail", "retry_rate": "Share of attempts that are tried again",
    "quarantined": "Jobs in quarantine", "unreachable": "Time without an answer", "ingest_lag_s": "Lag of filing",
    "stalled_s": "Time without progress",
    "view": "Failures of the view",
}  # fmt: skip
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
    return _METRICS[rule.metric]


def in_unit(value: float | None, name: str) -> str:
    """A value of this metric with its unit: 1,243 · 5 h · 12 %."""
    return "–" if value is None else wording.figure(name, value)


def where(alert: Alert) -> str:
    """The queue, group or view; the source where it is about that itself."""
    return alert.subject or alert.source or "the desk"


def says(alert: Alert) -> str:
    """What is true, in the words of its notices; of one that is over, what it was at its worst.

    `emails has 1,243 dead jobs (threshold: 100)`
    """
    if alert.state != AlertState.RESOLVED:
        said = wording.state(alert)
    else:
        worst = copy(alert)
        worst.value = alert.peak
        said = _past(wording.state(worst), wording.name(where(alert)))
    return f"{said} (threshold: {in_unit(alert.threshold, alert.rule.metric)})"


# As it was, once it is over.
_PAST = {
    " has a job that is dead for ": " had a job that was dead for ", " has ": " had up to ", " gains ": " gained up to ",
    " loses ": " lost up to ", " retries ": " retried up to ", " cannot be ": " could not be ", "wait for ": "waited for ",
    " holds ": " held up to ",
}  # fmt: skip


def _past(said: str, name: str) -> str:
    # What a name holds stays as it is.
    head, name, tail = said.partition(name) if name and name in said else ("", "", said)
    for now, then in _PAST.items():
        if now in tail:
            return head + name + tail.replace(now, then, 1)
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
