"""History of alerts as a strip: one line per rule and subject, one bar per episode, from firing to end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse

from dashboard.alerts import words as alert_words
from dashboard.web.figures import duration, number
from dashboard.web.moments import local, zone_name
from jobs_admin.models import Alert
from jobs_admin.models.alert import AlertState, Severity

SPANS = ["24h", "7d", "30d", "90d"]
SPAN = "7d"
MOST_LINES = 24
WIDE = 1000  # width in units of the chart
_THIN = 5.0  # minimum width of a bar
# The height shows the severity to readers without colour vision: (top, height) of 20.
_TALL = {Severity.CRITICAL: (1, 18), Severity.WARNING: (5, 10), Severity.INFO: (8, 4)}


@dataclass(frozen=True, slots=True)
class Bar:
    x: str
    width: str
    y: int
    height: int
    css_class: str  # CSS class: severity, and whether it is silenced
    words: str
    acknowledged_x: str  # position of a mark; "" if not acknowledged


@dataclass(frozen=True, slots=True)
class Strip:
    name: str  # name of the queue, or of the source itself
    source: str
    rule: str
    url: str  # URL of its latest alert
    bars: list[Bar]
    words: str  # description as a sentence
    fired: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class Picture:
    strips: list[Strip]
    more: int  # lines not shown
    marks: list[tuple[str, str]]  # axis labels: (position in per cent, text)
    since: datetime
    until: datetime


def picture(alerts: Iterable[Alert], since: datetime, until: datetime) -> Picture:
    """Draw alerts given in any order: open ones first, then those that fired most often."""
    by_line: dict[tuple[int, str, str], list[Alert]] = {}
    for alert in alerts:
        by_line.setdefault((alert.rule_id, alert.source, alert.subject), []).append(alert)
    ranked = sorted(by_line.values(), key=_rank)
    strips = [_strip(found, since, until) for found in ranked[:MOST_LINES]]
    return Picture(strips, len(ranked) - len(strips), _marks(since, until), since, until)


def _rank(found: list[Alert]) -> tuple[bool, int, float]:
    latest = _latest(found)
    return not latest.is_open, -len(found), -latest.opened_at.timestamp()


def _latest(found: list[Alert]) -> Alert:
    return max(found, key=lambda alert: (alert.opened_at, alert.pk))


def _strip(found: list[Alert], since: datetime, until: datetime) -> Strip:
    latest = _latest(found)
    bars = [_bar(alert, since, until) for alert in sorted(found, key=lambda alert: alert.opened_at)]
    lasted = sum((_end(alert, until) - max(_start(alert), since)).total_seconds() for alert in found)
    times = f"fired {number(len(found))} time{'' if len(found) == 1 else 's'}, firing for {duration(max(0.0, lasted))} in total"
    now = f"; {latest.state} now" if latest.is_open else ""
    name = alert_words.where(latest)
    return Strip(
        name,
        latest.source,
        latest.rule.name,
        reverse("redrive:alert-detail", args=[latest.pk]),
        bars,
        f"{name}, {latest.rule.name}: {times}{now}",
        len(found),
        latest.is_open,
    )


def _start(alert: Alert) -> datetime:
    return alert.fired_at or alert.opened_at


def _end(alert: Alert, until: datetime) -> datetime:
    return min(alert.resolved_at or until, until)


def _bar(alert: Alert, since: datetime, until: datetime) -> Bar:
    span = (until - since).total_seconds()

    def place(at: datetime) -> float:
        return min(max((at - since).total_seconds() / span, 0), 1) * WIDE

    left, right = place(_start(alert)), place(_end(alert, until))
    left = min(left, WIDE - _THIN)
    y, tall = _TALL.get(Severity(alert.severity), _TALL[Severity.INFO])
    css_class = f"is-{alert_words.SEVERITY_TONES[Severity(alert.severity)]}"
    if alert.state == AlertState.SILENCED:
        css_class += " is-silenced"
    taken = f"{place(alert.acknowledged_at):.1f}" if alert.acknowledged_at else ""
    return Bar(f"{left:.1f}", f"{max(right - left, _THIN):.1f}", y, tall, css_class, words(alert, until), taken)


def words(alert: Alert, until: datetime) -> str:
    """Return an episode as a line of text, for hover and table."""
    name = alert.rule.metric
    begun, lasted = _start(alert), (_end(alert, until) - _start(alert)).total_seconds()
    ended = (
        f"{duration(max(0.0, lasted))}" if alert.resolved_at else f"{alert.state}, {duration(max(0.0, lasted))} so far"
    )
    peak = f"peak {alert_words.in_unit(alert.peak, name)}, threshold {alert_words.in_unit(alert.threshold, name)}"
    return f"{local(begun):%-d %b %H:%M} {zone_name(begun)}, {alert.severity}: {ended}; {peak}"


def _marks(since: datetime, until: datetime) -> list[tuple[str, str]]:
    """Return about five axis labels at round hours or midnights."""
    span = until - since
    steps = (timedelta(hours=6), timedelta(days=1), timedelta(days=2), timedelta(days=5), timedelta(days=14))
    step = next((one for one in steps if span / one <= 8), steps[-1])
    at = local(since).replace(minute=0, second=0, microsecond=0)
    at = at.replace(hour=0) if step >= timedelta(days=1) else at.replace(hour=at.hour // 6 * 6)
    form, found = "%-d %b" if step >= timedelta(days=1) else "%H:%M", []
    while at < until - step / 4:
        if at > since:
            found.append((f"{(at - since) / span * 100:.2f}", at.strftime(form)))
        at += step
    return found
