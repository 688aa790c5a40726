"""Alerts as text: condition, state and duration, lines of a list, and its filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.web import moments
from jobs_admin import config
from jobs_admin.alerts import OPEN, Calling, Fold, count_calling, fold, wording
from jobs_admin.core.alert_metrics import Subject, figure
from jobs_admin.models import Alert
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
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
    """Return a value of this metric with its unit: 1,243 · 5 h · 12 %."""
    return "–" if value is None else figure(name, value)


def where(alert: Alert) -> str:
    """Return the queue, group or view; for an alert on a source, the source."""
    return alert.subject or alert.source or "the desk"


def condition(alert: Alert) -> str:
    """Return the condition as in notices; of a resolved alert, at its peak.

    `emails has 1,243 dead jobs (threshold: 100)`
    """
    text = wording.past_state(alert) if alert.state == AlertState.RESOLVED else wording.state(alert)
    return f"{text} (threshold: {in_unit(alert.threshold, alert.rule.metric)})"


@dataclass(frozen=True, slots=True)
class Status:
    """State of an alert: label, style, start and duration."""

    word: str
    tone: str
    since: datetime
    for_s: float  # duration for which the condition has been or was met


def status(alert: Alert, now: datetime) -> Status:
    ended = alert.resolved_at or now
    return Status(alert.state, TONES[AlertState(alert.state)], alert.opened_at, _seconds(alert.opened_at, ended))


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


FILTERS = ("state", "source", "queue", "rule")


@dataclass(frozen=True, slots=True)
class Line:
    alert: Alert
    url: str
    condition: str
    rule: str
    value: str
    threshold: str
    peak: str
    state: str
    tone: str
    severity: str
    severity_tone: str
    severity_of: str  # member of its fold that has this severity; "" if the alert itself does
    for_s: float
    by: str  # user who acknowledged; "" for none
    silenced: str  # "silenced until Mon 09:00"; "" without a silence in force
    acknowledge_url: str  # "" if the viewer may not, or there is nothing to acknowledge
    together: Calling  # the alert's notification
    members: Sequence[Member]  # other alerts of the line
    names: str  # their names with values; "" for none

    @property
    def count(self) -> int:
        """Return the number of alerts on this line."""
        return 1 + len(self.members)


@dataclass(frozen=True, slots=True)
class Member:
    """Another alert of a line: in the same notification, or about some of the same jobs."""

    url: str
    condition: str
    state: str
    severity: str
    severity_class: str
    silenced: str
    acknowledge_url: str  # "" if the line's own act includes it
    together: Calling  # that of its line


def lines(
    alerts: Iterable[Alert], now: datetime, may_act: dict[str, bool], silenced: Mapping[int, datetime]
) -> list[Line]:
    """Return one line per alert, in the given order. `may_act`: by source; `silenced`: the end of a silence by alert."""
    return [
        line(one, now, may_act.get(one.source, False), silenced=_silence_end(silenced.get(one.pk), now))
        for one in alerts
    ]


def _silence_end(until: datetime | None, now: datetime) -> str:
    return f"silenced until {moments.dated(until, now)}" if until else ""


def folded_lines(
    alerts: Iterable[Alert], now: datetime, may_act: dict[str, bool], silenced: Mapping[int, datetime]
) -> list[Line]:
    """Return one line per notification, worst first, which names its other alerts.

    `may_act`: by source; `silenced`: the end of a silence by alert.
    """
    silences = {pk: _silence_end(until, now) for pk, until in silenced.items()}
    folds, found = fold(alerts), []
    shown = [alert for one in folds if may_act.get(one.lead.source) for alert in (one.lead, *one.parts)]
    together = count_calling(shown)
    for one in folds:
        may = may_act.get(one.lead.source, False)
        members = [_member(other, silences.get(other.pk, "")) for other in one.others]
        members += [
            _member(part, silences.get(part.pk, ""), may=may, together=together.get(part.pk, _ALONE))
            for part in one.parts
        ]
        many = together.get(one.lead.pk, _ALONE)
        found.append(
            line(
                one.lead,
                now,
                may,
                severity=one.severity,
                severity_of=_gravest(one),
                together=many,
                members=members,
                names=_names(one),
                silenced=silences.get(one.lead.pk, ""),
            )
        )
    return found


NAMED = 3  # alerts of a fold listed by name
_ALONE = Calling()


def _names(found: Fold) -> str:
    """Return the names of other alerts: `+3 more queues: payments 761, emails 268 · tenant lighthouse 300`."""
    rule, texts = found.lead.rule, []
    if n := len(found.others):
        noun = rule.measure.subject.value if rule.measure.subject in (Subject.QUEUE, Subject.SOURCE) else "alert"
        named = [f"{wording.name(where(one))} {in_unit(one.value, rule.metric)}" for one in found.others]
        more = ", …" if n > NAMED else ""
        texts.append(f"+{n:,} more {noun}{'' if n == 1 else 's'}: {', '.join(named[:NAMED])}{more}")
    if parts := [_part_name(one, found.lead) for one in found.parts]:
        texts.append(f"including {', '.join(parts[:NAMED])}{', …' if len(parts) > NAMED else ''}")
    return " · ".join(texts)


def _gravest(found: Fold) -> str:
    """Return the name of a member more severe than the alert that the line names, such as `tenant lighthouse`."""
    if found.severity == found.lead.severity:
        return ""
    for one in found.parts:
        if one.severity == found.severity:
            return wording.narrowed(one.rule)
    return next(where(one) for one in found.others if one.severity == found.severity)


def _part_name(part: Alert, lead: Alert) -> str:
    """Return `tenant lighthouse 300 (critical)`, with queue and severity if they differ from the lead's."""
    place = "" if part.subject == lead.subject else f"{wording.name(part.subject)}, "
    graver = "" if part.severity == lead.severity else f" ({part.severity})"
    return f"{place}{wording.narrowed(part.rule)} {in_unit(part.value, part.rule.metric)}{graver}"


def _member(alert: Alert, silenced: str, *, may: bool = False, together: Calling = _ALONE) -> Member:
    return Member(
        reverse("redrive:alert-detail", args=[alert.pk]),
        condition(alert),
        alert.state,
        alert.severity,
        _severity_class(alert.severity),
        silenced,
        _acknowledge_url(alert) if may else "",
        together,
    )


def _severity_class(severity: str) -> str:
    return SEVERITY_TONES.get(severity, "discarded")


def _acknowledge_url(alert: Alert) -> str:
    is_unanswered = alert.state in (AlertState.FIRING, AlertState.SILENCED)
    return reverse("redrive:alert-acknowledge", args=[alert.pk]) if is_unanswered else ""


def line(
    alert: Alert,
    now: datetime,
    may_act: bool = False,
    *,
    severity: str = "",
    severity_of: str = "",
    together: Calling = _ALONE,
    members: Sequence[Member] = (),
    names: str = "",
    silenced: str = "",
) -> Line:
    name, standing = alert.rule.metric, status(alert, now)
    severity = severity or alert.severity
    return Line(
        alert,
        reverse("redrive:alert-detail", args=[alert.pk]),
        condition(alert),
        alert.rule.name,
        in_unit(alert.value, name),
        in_unit(alert.threshold, name),
        in_unit(alert.peak, name),
        standing.word,
        standing.tone,
        severity,
        _severity_class(severity),
        severity_of,
        standing.for_s,
        alert.acknowledged_by,
        silenced,
        _acknowledge_url(alert) if may_act else "",
        together,
        members,
        names,
    )


def may_act(viewer: Viewer, shown: Iterable[Alert]) -> dict[str, bool]:
    """Return source -> whether the viewer may acknowledge and silence its alerts."""
    may = not config.is_read_only()
    return {name: may and viewer.may(OPERATOR, name or EVERY_SOURCE) for name in {one.source for one in shown}}


@dataclass(frozen=True, slots=True)
class Choice:
    words: str
    url: str
    is_now: bool
    value: str = ""


def states(chosen: dict[str, str]) -> list[Choice]:
    """Return the selectable states, each with a URL that preserves the other filters."""
    named = [("", "All"), (OPEN, "Open")] + [(state.value, state.label) for state in AlertState]
    return [
        Choice(words, address({**chosen, "state": value}), chosen.get("state", "") == value, value)
        for value, words in named
    ]


def address(chosen: dict[str, str], **more: str) -> str:
    pairs = {name: value for name, value in {**chosen, **more}.items() if value}
    return f"{reverse('redrive:alert-list')}?{urlencode(pairs)}" if pairs else reverse("redrive:alert-list")
