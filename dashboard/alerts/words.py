"""An alert in words, for the list, its own page and the overview: condition, state and duration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobs_admin.alerts import wording
from jobs_admin.models import Alert
from jobs_admin.models.alert import AlertState, Severity

TONES = {
    AlertState.PENDING: "discarded",
    AlertState.FIRING: "dead",
    AlertState.ACKNOWLEDGED: "retrying",
    AlertState.SILENCED: "discarded",
    AlertState.RESOLVED: "recovered",
}
SEVERITY_TONES = {Severity.CRITICAL: "dead", Severity.WARNING: "retrying", Severity.INFO: "replaying"}


def in_unit(value: float | None, name: str) -> str:
    """A value of this metric with its unit: 1,243 · 5 h · 12 %."""
    return "–" if value is None else wording.figure(name, value)


def where(alert: Alert) -> str:
    """The queue, group or view; the source where it is about that itself."""
    return alert.subject or alert.source or "the desk"


def condition(alert: Alert) -> str:
    """Return the condition in the words of the notices; of a resolved alert, at its peak.

    `emails has 1,243 dead jobs (threshold: 100)`
    """
    text = wording.past_state(alert) if alert.state == AlertState.RESOLVED else wording.state(alert)
    return f"{text} (threshold: {in_unit(alert.threshold, alert.rule.metric)})"


@dataclass(frozen=True, slots=True)
class Status:
    """The state of an alert: its word and look, its start and its duration."""

    word: str
    tone: str
    since: datetime
    for_s: float  # it is true, or was


def status(alert: Alert, now: datetime) -> Status:
    ended = alert.resolved_at or now
    return Status(alert.state, TONES[AlertState(alert.state)], alert.opened_at, _seconds(alert.opened_at, ended))


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())
