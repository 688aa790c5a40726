"""Chart of an alert's metric around its time: a line, the threshold, vertical marks for events, and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.urls import reverse

from dashboard.alerts import words as alert_words
from dashboard.web import charts, links
from dashboard.web.moments import clock
from jobs_admin.alerts import wording
from jobs_admin.core.alert_metrics import METRICS, Link, Row, Subject, Unit
from jobs_admin.models import Alert
from jobs_admin.queues import depths
from jobs_admin.queues.depths import Point

BEFORE = timedelta(minutes=30)
AFTER = timedelta(minutes=15)
MOST_POINTS = 400
MOST_ROWS = 60  # rows of the table
MOST_MARKS = 40


@dataclass(frozen=True, slots=True)
class Mark:
    """Event, as a vertical mark and as a line of text below."""

    at: datetime
    x: float
    words: str
    url: str
    kind: str  # CSS class: own, or alert, replay, policy, release


@dataclass(frozen=True, slots=True)
class Gap:
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    words: str  # description of all as a sentence
    line: str  # SVG path
    area: str
    threshold_y: int | None
    threshold: str
    levels: list[str]  # axis labels: top, half, ground
    begins: str  # "since 17:41, when sampling began", if the history begins after the chart's start
    marks: list[Mark]
    gaps: list[Gap]
    ticks: list[charts.Tick]
    rows: list[tuple[datetime, str]]  # latest first
    chart: str  # values for charts.js, as JSON
    is_of_metric: bool  # False: shows the queue's dead jobs, without a threshold

    @property
    def is_empty(self) -> bool:
        return not self.line


def is_of_queue(alert: Alert) -> bool:
    """Return whether the alert is about a queue. Sources, views and the desk have no depth."""
    return bool(alert.source and alert.subject) and alert.rule.measure.subject is not Subject.VIEW


def has_history(alert: Alert) -> bool:
    """Return whether the history has samples of the rule's metric, or of one that contains it."""
    return is_of_queue(alert) and alert.rule.measure.link is not Link.QUARANTINE


def wider_than_rule(alert: Alert) -> str:
    """Return a sentence on what the chart shows beyond the rule's scope; "" if nothing."""
    narrow = wording.narrowed(alert.rule)
    return f"The rule counts only jobs of {narrow}; the chart shows the whole queue." if narrow else ""


def span(alert: Alert, now: datetime) -> tuple[datetime, datetime]:
    """Return the time range: half an hour before the condition was met until a quarter after it ended, or until now."""
    until = min(now, alert.resolved_at + AFTER) if alert.resolved_at else now
    return alert.opened_at - BEFORE, until


def picture(
    alert: Alert,
    points: Sequence[Point],
    marks: Sequence[depths.Mark],
    gaps: Sequence[depths.Gap],
    since: datetime,
    until: datetime,
) -> Picture:
    """Draw the rule's metric if it is stored per queue; otherwise the queue's dead jobs, without a threshold."""
    measure = alert.rule.measure
    is_of_metric = measure.subject is Subject.QUEUE and measure.history is not None and not alert.rule.is_narrowed
    read = measure.history if is_of_metric else METRICS["dead"].history
    assert read is not None
    began = _sampling_began(gaps, since)
    if began:
        since, gaps = min(began, alert.opened_at), [gap for gap in gaps if gap.reason != depths.BEFORE]
    rows = [_row(point) for point in points]
    values = [(_time(point.at), value) for point, value in zip(points, read(rows), strict=True)]
    # A gap breaks the line, so that the values before and after are not joined.
    breaks: list[tuple[datetime, float | None]] = [(_time(gap.since), None) for gap in gaps]
    line = sorted([*values, *breaks], key=lambda value: value[0])
    drawn = _draw(
        alert, line, [*_alert_marks(alert), *map(_mark, marks)], gaps, since, until, is_of_metric=is_of_metric
    )
    return replace(drawn, begins=f"since {clock(began, until)}, when sampling began") if began else drawn


def _sampling_began(gaps: Sequence[depths.Gap], since: datetime) -> datetime | None:
    """Return the time of the first sample of any queue, if it is after `since`."""
    before = [gap for gap in gaps if gap.reason == depths.BEFORE and gap.until > since.timestamp()]
    return _time(max(gap.until for gap in before)) if before else None


def _row(point: Point) -> Row:
    """Return a value as the history of a metric reads it. Samples were evaluated; of a rolled-up step the highest."""
    dead = point.dead if point.dead_max is None else point.dead_max
    oldest = None if point.oldest_dead_age_s is None else point.at - point.oldest_dead_age_s
    return point.at, dead, oldest, point.failed_per_min, point.succeeded_per_min, point.dead is not None


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _alert_marks(alert: Alert) -> list[Mark]:
    """Return the marks of the alert's own transitions."""
    happened = (
        (alert.opened_at, "crossed the threshold"), (alert.fired_at, "fired"), (alert.acknowledged_at, "acknowledged"),
        (alert.resolved_at, "resolved"),
    )  # fmt: skip
    return [Mark(at, 0, words, "", "own") for at, words in happened if at is not None]


def _mark(mark: depths.Mark) -> Mark:
    return Mark(mark.at, 0, mark.words, links.mark_url(mark.kind, mark.ref), mark.kind)


def _draw(
    alert: Alert,
    points: Sequence[tuple[datetime, float | None]],
    marks: Sequence[Mark],
    gaps: Sequence[depths.Gap],
    since: datetime,
    until: datetime,
    *,
    is_of_metric: bool,
) -> Picture:
    metric = alert.rule.metric if is_of_metric else "dead"
    known = [value for _, value in points if value is not None]
    top = _round_up(max([0, *known, alert.threshold if is_of_metric else 0]), METRICS[metric].unit)
    times, heights = charts.Times.between(since, until), charts.Heights(top, filled=1)
    line = [(times.x(at), None if value is None else heights.y(value)) for at, value in points]
    name = alert.rule.measure.label if is_of_metric else "Dead jobs"
    upright = [
        replace(mark, x=times.x(mark.at)) for mark in marks if since <= mark.at <= until and not _is_self(mark, alert)
    ]
    upright.sort(key=lambda mark: mark.at)
    return Picture(
        name,
        _words(name, metric, known, alert, is_of_metric),
        charts.line(line),
        charts.area(line),
        heights.y(alert.threshold) if is_of_metric else None,
        alert_words.in_unit(alert.threshold, metric) if is_of_metric else "",
        [alert_words.in_unit(value, metric) for value in (top, top / 2, 0)],
        "",
        upright[-MOST_MARKS:],
        [_gap(gap, times) for gap in gaps],
        times.ticks(),
        _rows(points, metric),
        _reading(name, metric, points, times, gaps) if known else "",
        is_of_metric,
    )


_DAY = 86_400
_SPANS = (10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14_400, 28_800, 43_200, _DAY)


def _round_up(most: float, unit: Unit) -> float:
    """Return the top of the axis: a round value whose half is round too."""
    if unit is Unit.SHARE:
        return min(charts.round_up(max(most * 100, 1)), 100) / 100
    if unit is Unit.SECONDS:
        return next((span for span in _SPANS if span >= most), charts.round_up(most / _DAY) * _DAY)
    return charts.round_up(max(most, 1))


def _is_self(mark: Mark, alert: Alert) -> bool:
    return mark.kind == "alert" and mark.url == reverse("redrive:alert-detail", args=[alert.pk])


def _gap(gap: depths.Gap, times: charts.Times) -> Gap:
    left, right = times.x(gap.since), times.x(gap.until)
    return Gap(left, round(max(right - left, 2), 1), gap.words)


def _words(name: str, metric: str, known: list[float], alert: Alert, is_of_metric: bool) -> str:
    if not known:
        return f"{name}: no samples in this period"
    text = f"{name}: from {alert_words.in_unit(known[0], metric)} to {alert_words.in_unit(known[-1], metric)}"
    text += f", peak {alert_words.in_unit(max(known), metric)}"
    return f"{text}; threshold {alert_words.in_unit(alert.threshold, metric)}" if is_of_metric else text


def _rows(points: Sequence[tuple[datetime, float | None]], metric: str) -> list[tuple[datetime, str]]:
    step = max(1, -(-len(points) // MOST_ROWS))
    return [(at, alert_words.in_unit(value, metric)) for at, value in list(points)[::-1][::step]]


def _reading(
    name: str,
    metric: str,
    points: Sequence[tuple[datetime, float | None]],
    times: charts.Times,
    gaps: Sequence[depths.Gap],
) -> str:
    values = [alert_words.in_unit(value, metric) for _, value in points]
    gap_rows = [(gap.since, gap.until, gap.words) for gap in gaps]
    return charts.reading({name: values}, times=times, at=[at.timestamp() for at, _ in points], gaps=gap_rows)
