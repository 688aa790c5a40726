"""Charts of a replay: the preview beside the last hour, and jobs started and settled by a running one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from dashboard.web import charts
from dashboard.web.figures import duration
from jobs_admin.core import figures
from jobs_admin.core.figures import small

_LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Picture:
    """Starts per second over time, beside the jobs that succeeded in the last hour, on one scale."""

    past: str  # SVG path of a filled outline; "" if unknown
    future: str
    levels: list[str]  # axis labels, jobs per second: top, half, ground
    median: str  # median of the last hour as text; "" if unknown
    median_y: int
    canary_x: float | None  # position of the canary's end
    duration: str
    table: list[tuple[str, str]]
    chart: str  # values for charts.js, as JSON


@dataclass(frozen=True, slots=True)
class Ending:
    """Expected end of the replay for a share of jobs that fail again."""

    title: str
    words: str
    end: datetime | None = None


def picture(preview: Any, per_minute: list[int]) -> Picture:
    """Draw the preview. `per_minute`: jobs of these queues that succeeded per minute of the last hour, oldest first."""
    planned = preview.simulation.as_planned
    past = [count / 60 for count in per_minute]
    usual = preview.throughput_per_s
    top = charts.round_rate(max([planned.peak_per_second, *(rate for _, rate in planned.starts), *past, 0.001]))
    span_s = _span_s(planned)
    times, heights, wide = charts.Times(0, span_s), charts.Heights(top, filled=1), charts.SIZE / max(len(past), 1)
    starts = _spans(planned.starts, span_s)
    return Picture(
        past=charts.outline((n * wide, (n + 1) * wide, heights.y(rate)) for n, rate in enumerate(past))
        if any(past)
        else "",
        future=charts.outline((times.x(at), times.x(until), heights.y(rate)) for at, until, rate in starts),
        levels=charts.levels(top),
        median=figures.rate(usual) if usual else "",
        median_y=heights.y(usual or median(past or [0])),
        canary_x=_canary_x(preview.pace, starts, times),
        duration=duration(span_s),
        table=_table(planned, usual, past),
        chart=charts.reading(
            {"starts per second": [small(rate) for _, _, rate in starts]},
            labels=[f"{duration(at)} in" for at, _, _ in starts],
            lefts=[at / span_s for at, _, _ in starts],
        )
        if starts
        else "",
    )


def endings(preview: Any) -> list[Ending]:
    """Return the end as planned, then with some and with half of the jobs failing again."""
    return [_ending(preview, one) for one in preview.simulation.outlooks]


def _ending(preview: Any, one: Any) -> Ending:
    title = f"{figures.percent(one.failing)} fail again" if one.failing else "Duration"
    if one.held_after_s is not None:
        return Ending(title, one.hold_sentence())
    if one.ends_after_s is None:
        return Ending(title, "no end at this pace")
    if timedelta(seconds=min(one.ends_after_s, 1e9)) > _LONGEST:
        return Ending(title, duration(one.ends_after_s))
    end = preview.starts_at + timedelta(seconds=one.ends_after_s)
    words = duration(one.ends_after_s) if one.ends_after_s >= 1 else "less than a second"
    return Ending(title, words, end)


def _span_s(planned: Any) -> float:
    """Return the length of the axis, up to the last start."""
    if len(planned.starts) < 2:
        return planned.ends_after_s or planned.held_after_s or 1.0
    width = planned.starts[1][0] - planned.starts[0][0]
    return planned.starts[-1][0] + width


def _spans(starts: Any, span_s: float) -> list[tuple[float, float, float]]:
    """Return (from, to, starts per second) of each step, in seconds from the first."""
    ends = [*(at for at, _ in starts[1:]), span_s]
    return [(at, until, rate) for (at, rate), until in zip(starts, ends, strict=True)] if starts else []


def _canary_x(pace: dict[str, Any], starts: list[tuple[float, float, float]], times: charts.Times) -> float | None:
    """Return the position at which all canary jobs have been started; None without a canary."""
    jobs = (pace.get("canary") or {}).get("jobs")
    if not jobs:
        return None
    gone = 0.0
    for at, until, rate in starts:
        gone += rate * (until - at)
        if gone >= jobs - 0.5:
            return times.x(until)
    return None


def _table(planned: Any, usual: float | None, past: list[float]) -> list[tuple[str, str]]:
    found = [
        ("Peak starts per second", small(planned.peak_per_second)),
        ("Peak queue length", duration(planned.longest_wait_s)),
    ]
    if usual is not None:
        found += [
            ("Succeeded/s, median of the last hour", small(usual)),
            ("Peak per minute", small(max(past, default=0))),
        ]
    every = max(1, len(planned.starts) // 12)
    return found + [(f"{duration(at)} in", f"{small(rate)}/s") for at, rate in planned.starts[::every]]


_LINES = (("sent", "replaying"), ("succeeded", "recovered"), ("failed again", "dead"))


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    tone: str
    path: str
    total: int


@dataclass(frozen=True, slots=True)
class Band:
    """Phase, as a range of the time axis."""

    state: str
    words: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Step:
    """Row of the chart's table."""

    at: datetime
    phase: str
    counts: list[int]


@dataclass(frozen=True, slots=True)
class ProgressPicture:
    lines: list[Line]
    bands: list[Band]
    unit: str  # second, or minute if more readable
    levels: list[str]  # axis labels, jobs per unit: top, half, ground
    begins: datetime
    ends: datetime
    step_s: int
    table: list[Step]
    ticks: list[charts.Tick]
    chart: str  # values for charts.js, as JSON

    @property
    def phases(self) -> list[tuple[str, str]]:
        """Return (state, label) of each phase, once."""
        return list(dict.fromkeys((band.state, band.words) for band in self.bands))

    @property
    def words(self) -> str:
        return ", ".join(f"{line.total:,} {line.name}" for line in self.lines)


def draw_progress(over_time, phases) -> ProgressPicture | None:
    """Draw the progress; None while there is nothing to show.

    `over_time.buckets`: (begin, sent, succeeded, failed again) of each step; `phases`: (begin, state); both oldest
    first.
    """
    buckets = over_time.buckets
    if len(buckets) < 2:
        return None
    begins = buckets[0][0]
    step_s = max(1, round((buckets[1][0] - begins).total_seconds()))
    ends = buckets[-1][0] + (buckets[1][0] - begins)
    times = charts.Times.between(begins, ends)
    most = max(max(row[1:]) for row in buckets) / step_s
    unit, unit_s = ("second", 1) if most >= 1 else ("minute", 60)
    top = charts.round_rate(most * unit_s)
    heights = charts.Heights(top, filled=1)
    lines, series = [], {}
    for n, (name, tone) in enumerate(_LINES, 1):
        spans = [
            (times.x(at), times.x(at.timestamp() + step_s), heights.y(counts[n - 1] / step_s * unit_s))
            for at, *counts in buckets
        ]
        lines.append(Line(name, tone, charts.steps(spans), sum(row[n] for row in buckets)))
        series[name] = [f"{figures.small(row[n] / step_s * unit_s)}/{'s' if unit_s == 1 else 'min'}" for row in buckets]
    chart = charts.reading(series, times=times, at=[row[0].timestamp() for row in buckets])
    bands = _bands(phases, times, begins, ends)
    table = [Step(at, _phase(phases, at), counts) for at, *counts in buckets]
    return ProgressPicture(lines, bands, unit, charts.levels(top), begins, ends, step_s, table, times.ticks(), chart)


def _bands(phases, times: charts.Times, begins: datetime, ends: datetime) -> list[Band]:
    found = []
    for n, (at, state) in enumerate(phases):
        until = phases[n + 1][0] if n + 1 < len(phases) else ends
        first, last = max(at, begins), min(until, ends)
        if last > first:
            x, right = times.per_cent(first), times.per_cent(last)
            found.append(Band(state, state.replace("_", " "), x, round(right - x, 2)))
    return found


def _phase(phases, at: datetime) -> str:
    return next((state.replace("_", " ") for began, state in reversed(phases) if began <= at), "")
