"""A replay over time: what it released and what came of it, in each second, and the phases that it went through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.web import charts
from dashboard.web.figures import number

_LINES = (("sent", "replaying"), ("succeeded", "recovered"), ("failed again", "dead"))


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    tone: str
    path: str
    total: int


@dataclass(frozen=True, slots=True)
class Band:
    """A phase, as a stretch of the time axis."""

    state: str
    words: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the picture's table."""

    at: datetime
    phase: str
    counts: list[int]


@dataclass(frozen=True, slots=True)
class Picture:
    lines: list[Line]
    bands: list[Band]
    top: str  # jobs a second at the upper edge
    begins: datetime
    ends: datetime
    step_s: int
    table: list[Step]
    ticks: list[charts.Tick]
    chart: str  # what is read out

    @property
    def phases(self) -> list[tuple[str, str]]:
        """(state, words) of each phase, once."""
        return list(dict.fromkeys((band.state, band.words) for band in self.bands))

    @property
    def words(self) -> str:
        return ", ".join(f"{line.total:,} {line.name}" for line in self.lines)


def picture(over_time, phases) -> Picture | None:
    """`over_time.buckets`: (begin, sent, succeeded, failed again) of each step; `phases`: (begin, state), both oldest
    first. None while there is nothing to see."""
    buckets = over_time.buckets
    if len(buckets) < 2:
        return None
    begins = buckets[0][0]
    step_s = max(1, round((buckets[1][0] - begins).total_seconds()))
    ends = buckets[-1][0] + (buckets[1][0] - begins)
    times = charts.Times.between(begins, ends)
    heights = charts.Heights(max(max(row[1:]) for row in buckets) / step_s or 1.0)
    lines, series = [], {}
    for n, (name, tone) in enumerate(_LINES, 1):
        spans = [
            (times.x(at), times.x(at.timestamp() + step_s), heights.y(counts[n - 1] / step_s))
            for at, *counts in buckets
        ]
        lines.append(Line(name, tone, charts.steps(spans), sum(row[n] for row in buckets)))
        series[name] = [row[n] for row in buckets]
    chart = charts.reading(series, times=times, at=[row[0].timestamp() for row in buckets])
    bands = _bands(phases, times, begins, ends)
    table = [Step(at, _phase(phases, at), counts) for at, *counts in buckets]
    top = number(round(heights.top, 2))
    return Picture(lines, bands, top, begins, ends, step_s, table, times.ticks(), chart)


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
