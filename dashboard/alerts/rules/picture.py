"""Preview of an alert rule: the value over time, its threshold, and the times at which it would have fired.

Widths are in per cent, so that the chart fills its box; lines are drawn in a box of 1,000 × 100 that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard.alerts.rules.words import amount
from dashboard.web import charts
from dashboard.web.figures import duration, number
from dashboard.web.moments import local
from jobs_admin.alerts import Episode, Preview, PreviewSeries
from jobs_admin.core.alert_metrics import METRICS, Unit

MOST_LINES = 12
MOST_READ = 4  # lines whose values the script shows
MOST_ROWS = 40
# From this ratio on, a linear scale would draw the threshold on the ground.
_STEEP = 25
_APART = 0.1  # distance of axis labels from the threshold, so that both are readable
_SEEN = 0.0015  # minimum width of an episode, as a share of the chart


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    peak: str
    path: str  # broken where there are no samples
    has_fired: bool


@dataclass(frozen=True, slots=True)
class Band:
    """Time range in which the alert would have been open: pending until it fired, then firing."""

    x: str
    width: str
    fired_x: str
    fired_width: str
    words: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: str  # per cent from the left or the top
    words: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    subject: str
    opened_at: datetime
    fired_at: datetime
    lasted: str
    peak: str


@dataclass(frozen=True, slots=True)
class Picture:
    summary: str  # "Would have fired 3 times in the last week, with 5 notices."
    lines: list[Line]
    bands: list[Band]
    threshold_y: str  # per cent from the top
    threshold: str
    ticks: list[Tick]
    levels: list[Tick]
    is_steep: bool  # each step up is ten times the one below
    more_lines: int
    notes: list[str]  # limits of the history
    rows: list[Row]
    more_rows: int
    has_history: bool
    chart: str  # values for charts.js, as JSON
    step: str

    @property
    def by_height(self) -> list[Line]:
        """Return the series in the order of their names: those that would have fired first."""
        return self.lines[::-1]


def picture(found: Preview, metric: str, threshold: float, *, has_channels: bool) -> Picture:
    series = sorted(found.series, key=lambda one: _order(one, found.episodes))
    shown = series[:MOST_LINES]
    top = max([threshold, *(value for one in shown for value in one.values if value is not None)], default=0.0)
    is_steep = METRICS[metric].unit is not Unit.SHARE and top > max(threshold, 1) * _STEEP
    scale = _Scale(
        charts.Times.between(found.since, found.until), charts.Heights((top or 1.0) * 1.08, is_steep, filled=1)
    )
    fired = {(one.source, one.subject) for one in found.episodes}
    lines = [_line(one, metric, scale, (one.source, one.subject) in fired) for one in shown]
    episodes = sorted(found.episodes, key=lambda one: one.opened_at, reverse=True)
    return Picture(
        summary(found, has_channels),
        lines[::-1],  # series that fired are drawn last, on top of the others
        [_band(one, metric, scale, found.until) for one in episodes],
        f"{scale.heights.per_cent(threshold)}%",
        amount(metric, threshold),
        _ticks(found.since, found.until, scale),
        [
            Tick(f"{scale.heights.per_cent(level)}%", amount(metric, level))
            for level in scale.levels()
            if abs(scale.heights.part(level) - scale.heights.part(threshold)) > _APART
        ],
        is_steep,
        len(series) - len(shown),
        found.untold,
        [_row(one, metric, found.until) for one in episodes[:MOST_ROWS]],
        max(0, found.fired - MOST_ROWS),
        any(value is not None for one in series for value in one.values),
        _reading(shown, metric, scale.times),
        duration(found.step_s),
    )


def summary(found: Preview, has_channels: bool) -> str:
    """Return the summary as a sentence, for the time range that was computed."""
    days = round((found.until - found.since) / timedelta(days=1))
    when = "in the last week" if days == 7 else f"in the last {days} days" if days > 1 else "in the last day"
    if not found.fired:
        return f"Would not have fired {when}."
    if not has_channels:
        return f"Would have fired {_times(found.fired)} {when}. No channel: no one is notified."
    notices = f"{number(found.notices)} notice{'' if found.notices == 1 else 's'}"
    return f"Would have fired {_times(found.fired)} {when}, with {notices}."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{number(count)} times")


@dataclass(frozen=True, slots=True)
class _Scale:
    times: charts.Times
    heights: charts.Heights

    def levels(self) -> list[float]:
        top = self.heights.top
        if self.heights.is_steep:
            most = int(math.log10(top))
            return [float(10**n) for n in range(0, most + 1, max(1, most // 3))]
        step = _nice(top / 3)
        return [step * n for n in range(1, int(top / step) + 1)]


def _nice(value: float) -> float:
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * n for n in (1, 2, 5, 10) if size * n >= value * 0.999)


def _order(one: PreviewSeries, episodes: Sequence[Episode]) -> tuple[bool, float, str, str]:
    """Return the sort key of a series: those that would have fired first, then by highest value."""
    is_open = any((e.source, e.subject) == (one.source, one.subject) for e in episodes)
    peak = max((value for value in one.values if value is not None), default=0.0)
    return (not is_open, -peak, one.source, one.subject)


def _line(one: PreviewSeries, metric: str, scale: _Scale, has_fired: bool) -> Line:
    # A missing sample is a gap, never zero.
    points = [
        (scale.times.x(at), None if value is None else scale.heights.y(value))
        for at, value in zip(one.times, one.values, strict=True)
    ]
    peak = max((value for value in one.values if value is not None), default=None)
    return Line(_name(one.source, one.subject), amount(metric, peak), charts.line(points), has_fired)


def _reading(series: Sequence[PreviewSeries], metric: str, times: charts.Times) -> str:
    """Return the values of the first few series at every time at which any series has one."""
    moments = sorted({at for one in series for at in one.times})
    rows = {}
    for one in series[:MOST_READ]:
        known = dict(zip(one.times, one.values, strict=True))
        rows[_name(one.source, one.subject)] = [amount(metric, known.get(at)) for at in moments]
    return charts.reading(rows, times=times, at=moments) if rows else ""


def _band(one: Episode, metric: str, scale: _Scale, until: datetime) -> Band:
    begins, fires, ends = (scale.times.part(at) for at in (one.opened_at, one.fired_at, one.resolved_at or until))
    words = f"{_name(one.source, one.subject)}: peak {amount(metric, one.peak)}, {_lasted(one, until)}"
    seen = _SEEN  # minimum width
    return Band(
        _per_cent(begins),
        _per_cent(fires - begins),
        _per_cent(fires),
        _per_cent(max(ends - fires, seen)),
        words,
    )


def _row(one: Episode, metric: str, until: datetime) -> Row:
    return Row(one.source, one.subject, one.opened_at, one.fired_at, _lasted(one, until), amount(metric, one.peak))


def _lasted(one: Episode, until: datetime) -> str:
    if one.resolved_at is None:
        return f"for {duration(until - one.opened_at)} so far"
    return f"for {duration(one.resolved_at - one.opened_at)}"


def _name(source: str, subject: str) -> str:
    return f"{subject} in {source}" if subject and source else subject or source


def _per_cent(part: float) -> str:
    return f"{part * 100:.2f}%"


def _ticks(since: datetime, until: datetime, scale: _Scale) -> list[Tick]:
    """Return midnights, each with the day's label in the middle of its visible part."""
    first = local(since).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [first + timedelta(days=n) for n in range((until - first).days + 1)]
    return [
        Tick(_per_cent(scale.times.part(day)), f"{day:%a} {day.day}", "start")
        for day in days
        if since <= day and scale.times.part(day) < 0.95
    ]
