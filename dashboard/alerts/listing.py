"""Lines of alerts, and the filters of a list of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.alerts import words as alert_words
from jobs_admin import config
from jobs_admin.alerts import OPEN
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
    look: str
    severity: str
    severity_look: str
    for_s: float
    by: str  # who acknowledged, "" for no one
    acknowledge_url: str  # "" where the viewer may not, or nothing is to be acknowledged
    others: int  # in the same notification


def lines(
    alerts: Iterable[Alert], now: datetime, may_act: dict[str, bool] | None = None, *, is_folded: bool = False
) -> list[Line]:
    """Return alerts as lines, those of one notification as one line if `is_folded`. `may_act`: by source."""
    alerts = list(alerts)
    others: dict[int, int] = {}
    if is_folded:
        alerts, others = _folded(alerts)
    return [line(one, now, (may_act or {}).get(one.source, False), others.get(one.pk, 0)) for one in alerts]


def _folded(alerts: list[Alert]) -> tuple[list[Alert], dict[int, int]]:
    """Return the first alert of each notification, in the order given, and how many more each stands for."""
    first: dict[tuple[int, str], Alert] = {}
    others: dict[int, int] = {}
    for alert in alerts:
        # Only some of them may be acknowledged: those need other acts.
        shown = first.setdefault((alert.told_with_id or alert.pk, alert.state), alert)
        others[shown.pk] = others.get(shown.pk, -1) + 1
    return list(first.values()), others


def line(alert: Alert, now: datetime, may_act: bool = False, others: int = 0) -> Line:
    name, status = alert.rule.metric, alert_words.status(alert, now)
    is_open_call = may_act and alert.state in (AlertState.FIRING, AlertState.SILENCED)
    return Line(
        alert,
        reverse("redrive:alert-detail", args=[alert.pk]),
        alert_words.condition(alert),
        alert.rule.name,
        alert_words.in_unit(alert.value, name),
        alert_words.in_unit(alert.threshold, name),
        alert_words.in_unit(alert.peak, name),
        status.word,
        status.look,
        alert.severity,
        alert_words.SEVERITY_LOOKS.get(alert.severity, "discarded"),
        status.for_s,
        alert.acknowledged_by,
        reverse("redrive:alert-acknowledge", args=[alert.pk]) if is_open_call else "",
        others,
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
