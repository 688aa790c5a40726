"""Lines of alerts, and the filters of a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.alerts import words as alert_words
from jobs_admin import config
from jobs_admin.alerts import OPEN, Calling, Fold, count_calling, fold, wording
from jobs_admin.core.alert_metrics import Subject
from jobs_admin.models import Alert
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.alert import AlertState

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
    severity_of: str  # the member of its fold that has this severity; "" where the alert itself has it
    for_s: float
    by: str  # who acknowledged, "" for no one
    acknowledge_url: str  # "" where the viewer may not, or nothing is to be acknowledged
    together: Calling  # of its notification
    members: Sequence[Member]  # of its fold
    names: str  # of its members, with their values; "" for none

    @property
    def count(self) -> int:
        """Return the number of alerts on this line."""
        return 1 + len(self.members)


@dataclass(frozen=True, slots=True)
class Member:
    """Another alert of a line: of the same notification, or on some of the same jobs."""

    url: str
    condition: str
    state: str
    severity: str
    severity_class: str
    acknowledge_url: str  # "" where the line's own act covers it
    together: Calling  # as of its line


def lines(alerts: Iterable[Alert], now: datetime, may_act: dict[str, bool] | None = None) -> list[Line]:
    """Return a line an alert, in the order given. `may_act`: by source."""
    return [line(one, now, (may_act or {}).get(one.source, False)) for one in alerts]


def folded_lines(alerts: Iterable[Alert], now: datetime, may_act: dict[str, bool]) -> list[Line]:
    """Return a line for each notification, the worst first; it names its other alerts."""
    folds, found = fold(alerts), []
    shown = [alert for one in folds if may_act.get(one.lead.source) for alert in (one.lead, *one.parts)]
    together = count_calling(shown)
    for one in folds:
        may = may_act.get(one.lead.source, False)
        members = [_member(other) for other in one.others]
        members += [_member(part, may=may, together=together.get(part.pk, _ALONE)) for part in one.parts]
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
            )
        )
    return found


NAMED = 3  # alerts of a fold
_ALONE = Calling()


def _names(found: Fold) -> str:
    """`+3 more queues: payments 761, emails 268, reports 219 · tenant lighthouse 300`"""
    rule, texts = found.lead.rule, []
    if n := len(found.others):
        noun = rule.measure.subject.value if rule.measure.subject in (Subject.QUEUE, Subject.SOURCE) else "alert"
        named = [
            f"{wording.name(alert_words.where(one))} {alert_words.in_unit(one.value, rule.metric)}"
            for one in found.others
        ]
        more = ", …" if n > NAMED else ""
        texts.append(f"+{n:,} more {noun}{'' if n == 1 else 's'}: {', '.join(named[:NAMED])}{more}")
    if parts := [_part_name(one, found.lead) for one in found.parts]:
        texts.append(f"including {', '.join(parts[:NAMED])}{', …' if len(parts) > NAMED else ''}")
    return " · ".join(texts)


def _gravest(found: Fold) -> str:
    """`tenant lighthouse`, where that member is graver than the alert that the line names."""
    if found.severity == found.lead.severity:
        return ""
    for one in found.parts:
        if one.severity == found.severity:
            return wording.narrowed(one.rule)
    return next(alert_words.where(one) for one in found.others if one.severity == found.severity)


def _part_name(part: Alert, lead: Alert) -> str:
    """`tenant lighthouse 300 (critical)`: the queue and the severity where the lead has others."""
    place = "" if part.subject == lead.subject else f"{wording.name(part.subject)}, "
    graver = "" if part.severity == lead.severity else f" ({part.severity})"
    return f"{place}{wording.narrowed(part.rule)} {alert_words.in_unit(part.value, part.rule.metric)}{graver}"


def _member(alert: Alert, *, may: bool = False, together: Calling = _ALONE) -> Member:
    return Member(
        reverse("redrive:alert-detail", args=[alert.pk]),
        alert_words.condition(alert),
        alert.state,
        alert.severity,
        _severity_class(alert.severity),
        _acknowledge_url(alert) if may else "",
        together,
    )


def _severity_class(severity: str) -> str:
    return alert_words.SEVERITY_TONES.get(severity, "discarded")


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
) -> Line:
    name, status = alert.rule.metric, alert_words.status(alert, now)
    severity = severity or alert.severity
    return Line(
        alert,
        reverse("redrive:alert-detail", args=[alert.pk]),
        alert_words.condition(alert),
        alert.rule.name,
        alert_words.in_unit(alert.value, name),
        alert_words.in_unit(alert.threshold, name),
        alert_words.in_unit(alert.peak, name),
        status.word,
        status.tone,
        severity,
        _severity_class(severity),
        severity_of,
        status.for_s,
        alert.acknowledged_by,
        _acknowledge_url(alert) if may_act else "",
        together,
        members,
        names,
    )


def may_act(viewer: Viewer, shown: Iterable[Alert]) -> dict[str, bool]:
    """For each source of these whether the viewer may acknowledge and silence there."""
    may = not config.is_read_only()
    return {name: may and viewer.may(OPERATOR, name or EVERY_SOURCE) for name in {one.source for one in shown}}


@dataclass(frozen=True, slots=True)
class Choice:
    words: str
    url: str
    is_now: bool
    value: str = ""


def states(chosen: dict[str, str]) -> list[Choice]:
    """The states to choose from, each as an address that keeps the other filters."""
    named = [("", "All"), (OPEN, "Open")] + [(state.value, state.label) for state in AlertState]
    return [
        Choice(words, address({**chosen, "state": value}), chosen.get("state", "") == value, value)
        for value, words in named
    ]


def address(chosen: dict[str, str], **more: str) -> str:
    pairs = {name: value for name, value in {**chosen, **more}.items() if value}
    return f"{reverse('redrive:alert-list')}?{urlencode(pairs)}" if pairs else reverse("redrive:alert-list")
