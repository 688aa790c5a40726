"""Dead jobs by queue over a day, for the overview: lines, the thresholds that they may reach, and what happened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.queues.depth.picture import Upright, round_up, upright
from dashboard.web import links
from dashboard.web.figures import number
from jobs_admin.queues import depths
from jobs_admin.queues.depths.desk import STEP_S

WIDE, HIGH = 960, 100


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    now: str
    look: str
    path: str
    url: str


@dataclass(frozen=True, slots=True)
class Level:
    y: str
    words: str


@dataclass(frozen=True, slots=True)
class Drawn:
    top: int
    lines: list[Line]
    levels: list[Level]
    above: list[Level]  # thresholds too high to be in it
    uprights: list[Upright]
    ticks: list[datetime]
    words: str
    chart: str  # for charts.js
    rows: list[tuple[datetime, list[int | None]]]  # a row an hour, the latest first


def drawn(depth: depths.DeadDepth) -> Drawn | None:
    """None where no queue had a dead job."""
    if not depth.lines:
        return None
    most = max(value for line in depth.lines for value in line.dead if value is not None)
    within = [one for one in depth.thresholds if one.value <= max(most * 4, 10)]
    top = round_up(max(most, *(one.value for one in within), 1))
    many = len({line.source for line in depth.lines}) > 1
    names = [f"{line.source}/{line.queue}" if many else line.queue for line in depth.lines]
    lines = [
        Line(
            name,
            number(next((v for v in reversed(line.dead) if v is not None), None)),
            f"trace-{n}",
            _path(line.dead, top),
            links.queue_page(line.source, line.queue),
        )
        for n, (name, line) in enumerate(zip(names, depth.lines, strict=True))
    ]
    levels = [(one, Level(_y(one.value, top), f"{one.rule}: {number(one.value)}")) for one in depth.thresholds]
    chart = {
        "x": depth.times,
        "series": [{"name": n, "state": "dead", "y": one.dead} for n, one in zip(names, depth.lines, strict=True)],
        "kind": "lines",
        "height": 168,
        "levels": sorted({one.value for one in within}),
        "marks": [round(mark.at.timestamp()) for mark in depth.marks],
    }
    return Drawn(
        top,
        lines,
        [level for one, level in levels if one in within],
        [level for one, level in levels if one not in within],
        _uprights(depth),
        [datetime.fromtimestamp(at, UTC) for at in depth.times[:: max(1, len(depth.times) // 4)]],
        f"Dead jobs of the last 24 h by queue: {', '.join(f'{line.name} {line.now}' for line in lines)}",
        json.dumps(chart),
        _rows(depth),
    )


def _path(values: list[int | None], top: float) -> str:
    wide, parts, is_on = WIDE / len(values), [], False
    for n, value in enumerate(values):
        if value is None:
            is_on = False
            continue
        parts.append(f"{'V' if is_on else f'M{n * wide:g} '}{_y(value, top)}H{(n + 1) * wide:g}")
        is_on = True
    return "".join(parts)


def _y(value: float, top: float) -> str:
    return f"{HIGH - value / top * HIGH * 0.96:.4g}"


def _uprights(depth: depths.DeadDepth) -> list[Upright]:
    first, span = depth.times[0], len(depth.times) * STEP_S
    return [
        upright(mark, round(min(max(mark.at.timestamp() - first, 0), span) / span * WIDE, 1)) for mark in depth.marks
    ]


def _rows(depth: depths.DeadDepth) -> list[tuple[datetime, list[int | None]]]:
    last: dict[int, list[int | None]] = {}
    for n, at in enumerate(depth.times):
        last[at // 3600] = [line.dead[n] for line in depth.lines]
    return [(datetime.fromtimestamp(hour * 3600, UTC), row) for hour, row in sorted(last.items(), reverse=True)]
