"""A replay over time: what it released and what came of it, in each second, and the phases that it went through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.web.figures import number

WIDE, HIGH = 720, 140
_LINES = (("sent", "replaying"), ("ran well", "recovered"), ("failed again", "dead"))


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    look: str
    points: str
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
    span = (ends - begins).total_seconds()
    top = max(max(row[1:]) for row in buckets) / step_s or 1.0
    lines = []
    for n, (name, look) in enumerate(_LINES, 1):
        points = []
        for at, *counts in buckets:
            x = (at - begins).total_seconds() / span * WIDE
            y = HIGH - counts[n - 1] / step_s / top * (HIGH - 4)
            points += [f"{x:.1f},{y:.1f}", f"{x + step_s / span * WIDE:.1f},{y:.1f}"]
        lines.append(Line(name, look, " ".join(points), sum(row[n] for row in buckets)))
    bands = _bands(phases, begins, ends)
    table = [Step(at, _phase(phases, at), counts) for at, *counts in buckets]
    return Picture(lines, bands, number(round(top, 2)), begins, ends, step_s, table)


def _bands(phases, begins: datetime, ends: datetime) -> list[Band]:
    span = (ends - begins).total_seconds()
    found = []
    for n, (at, state) in enumerate(phases):
        until = phases[n + 1][0] if n + 1 < len(phases) else ends
        first, last = max(at, begins), min(until, ends)
        if last > first:
            x, width = (first - begins).total_seconds() / span, (last - first).total_seconds() / span
            found.append(Band(state, state.replace("_", " "), round(x * 100, 2), round(width * 100, 2)))
    return found


def _phase(phases, at: datetime) -> str:
    return next((state.replace("_", " ") for began, state in reversed(phases) if began <= at), "")
