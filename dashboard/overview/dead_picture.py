"""Dead jobs by queue over a day, for the overview: lines, the thresholds that they may reach, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.queues.depth.picture import Upright, upright
from dashboard.web import charts, links
from dashboard.web.figures import number
from jobs_admin.queues import depths
from jobs_admin.queues.depths.marking import STEP_S


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    now: str
    look: str
    path: str
    url: str


@dataclass(frozen=True, slots=True)
class Level:
    y: int
    words: str


@dataclass(frozen=True, slots=True)
class Drawn:
    top: int
    lines: list[Line]
    levels: list[Level]
    above: list[Level]  # thresholds too high to be in it
    uprights: list[Upright]
    ticks: list[charts.Tick]
    words: str
    chart: str  # for charts.js
    rows: list[tuple[datetime, list[int | None]]]  # a row an hour, the latest first


def picture(depth: depths.DeadDepth) -> Drawn | None:
    """Return the picture; None if no queue had a dead job."""
    if not depth.lines:
        return None
    most = max(value for line in depth.lines for value in line.dead if value is not None)
    within = [one for one in depth.thresholds if one.value <= max(most * 4, 10)]
    top = charts.round_up(max(most, *(one.value for one in within), 1))
    heights, times = charts.Heights(top), charts.Times(depth.times[0], depth.times[-1] + STEP_S)
    many = len({line.source for line in depth.lines}) > 1
    names = [f"{line.source}/{line.queue}" if many else line.queue for line in depth.lines]
    lines = [
        Line(
            name,
            number(next((v for v in reversed(line.dead) if v is not None), None)),
            f"trace-{n}",
            _path(line.dead, heights),
            links.queue_page(line.source, line.queue),
        )
        for n, (name, line) in enumerate(zip(names, depth.lines, strict=True))
    ]
    levels = [(one, Level(heights.y(one.value), f"{one.rule}: {number(one.value)}")) for one in depth.thresholds]
    return Drawn(
        top,
        lines,
        [level for one, level in levels if one in within],
        [level for one, level in levels if one not in within],
        [upright(mark, times.x(mark.at)) for mark in depth.marks],
        times.ticks(),
        f"Dead jobs of the last 24 h by queue: {', '.join(f'{line.name} {line.now}' for line in lines)}",
        charts.reading({n: one.dead for n, one in zip(names, depth.lines, strict=True)}, times=times),
        _rows(depth),
    )


def _path(values: list[int | None], heights: charts.Heights) -> str:
    wide = charts.SIZE / len(values)
    spans = ((n * wide, (n + 1) * wide, None if one is None else heights.y(one)) for n, one in enumerate(values))
    return charts.steps((round(left), round(right), y) for left, right, y in spans)


def _rows(depth: depths.DeadDepth) -> list[tuple[datetime, list[int | None]]]:
    last: dict[int, list[int | None]] = {}
    for n, at in enumerate(depth.times):
        last[at // 3600] = [line.dead[n] for line in depth.lines]
    return [(datetime.fromtimestamp(hour * 3600, UTC), row) for hour, row in sorted(last.items(), reverse=True)]
