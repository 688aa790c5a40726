"""The charts of the overview: failed attempts and dead jobs by queue over the last day, or since sampling began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.queues.depth.picture import Upright, upright
from dashboard.web import charts, links
from dashboard.web.figures import duration, number
from dashboard.web.moments import clock
from jobs_admin.db.policy_marks import PolicyMark
from jobs_admin.desk import overview

MOST_COLOURS = 6  # --series-1 to --series-6


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a policy, as a line in the picture and a link below it."""

    at: datetime
    x: float  # in the box of the shapes
    policy: str
    words: str
    url: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A series of bars on top of those before it."""

    name: str
    sum: int
    n: int  # number of its colour
    path: str

    @property
    def is_striped(self) -> bool:
        """Return whether it has stripes, as every other series: neighbours differ by more than their colour."""
        return self.n % 2 == 0


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """Bars on each other, the first series on top."""

    span: str  # "last 24 h", or its beginning
    step: str
    levels: list[str]  # top, half, ground
    series: list[Bars]
    ticks: list[charts.Tick]
    changes: list[Change]
    words: str
    chart: str  # for charts.js
    rows: list[tuple[datetime, list[int]]]  # a row an hour, the latest first


def failed_attempts(
    series: overview.Series, marks: list[PolicyMark], sampled_since: datetime | None
) -> FailedAttempts | None:
    """Return the picture; None if no attempt failed."""
    if not series.queues:
        return None
    times = charts.Times(series.times[0], series.times[-1] + series.step_s)
    top = charts.round_up(max(sum(step) for step in zip(*series.queues.values(), strict=True)) or 1)
    heights, below, parts = charts.Heights(top, filled=1), [0] * len(series.times), []
    for n, (name, y) in reversed(list(enumerate(series.queues.items()))):
        parts.append(Bars(name, sum(y), n + 1, charts.bars(y, heights, below=below)))
        below = [low + count for low, count in zip(below, y, strict=True)]
    totals = ", ".join(f"{name} {sum(y):,}" for name, y in series.queues.items())
    span = _span(series.times, series.step_s, sampled_since)
    return FailedAttempts(
        span,
        duration(series.step_s),
        charts.levels(top),
        parts[::-1],
        times.ticks(),
        [_change(mark, times) for mark in marks],
        f"Failed attempts by queue, {span}: {totals}",
        charts.reading(series.queues, times=times),
        _summed_hours(series),
    )


def _span(times: list[int], step_s: int, sampled_since: datetime | None) -> str:
    """Return the time that a chart shows."""
    if sampled_since is None or len(times) * step_s >= 86_400:
        return "last 24 h"
    if times[0] + step_s <= sampled_since.timestamp():  # with a failure from before
        return f"since {clock(datetime.fromtimestamp(times[0], UTC), datetime.now(UTC))}"
    return f"since {clock(sampled_since, datetime.now(UTC))}, when sampling began"


def _change(mark: PolicyMark, times: charts.Times) -> Change:
    words = {"enforce": "in force", "observe": "observes"}.get(mark.mode, "withdrawn")
    return Change(mark.at, times.x(mark.at), mark.version.replace("@", " v"), words, links.policy_version(mark.version))


def _summed_hours(series: overview.Series) -> list[tuple[datetime, list[int]]]:
    by_hour: dict[int, list[int]] = {}
    for place, at in enumerate(series.times):
        row = by_hour.setdefault(at // 3600, [0] * len(series.queues))
        for column, y in enumerate(series.queues.values()):
            row[column] += y[place]
    return [(datetime.fromtimestamp(hour * 3600, UTC), row) for hour, row in sorted(by_hour.items(), reverse=True)]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    now: str
    n: int  # number of its colour and dashes
    path: str
    url: str


@dataclass(frozen=True, slots=True)
class Level:
    y: int
    words: str


@dataclass(frozen=True, slots=True)
class DeadJobs:
    span: str
    step: str
    levels: list[str]  # top, half, ground
    lines: list[Line]
    thresholds: list[Level]
    above: list[Level]  # thresholds too high to be in it
    uprights: list[Upright]
    ticks: list[charts.Tick]
    words: str
    chart: str  # for charts.js
    rows: list[tuple[datetime, list[int | None]]]  # a row an hour, the latest first


def dead_jobs(board: overview.Board) -> DeadJobs | None:
    """Return the picture of the dead jobs, which ends with those of now; None if no queue had one."""
    depth = board.depth
    if not depth.lines:
        return None
    current = {(source, queue): n for source, queue, n in board.dead}
    series = [[*line.dead[:-1], current.get((line.source, line.queue), line.dead[-1])] for line in depth.lines]
    most = max(value for values in series for value in values if value is not None)
    within = [one for one in depth.thresholds if one.value <= max(most * 4, 10)]
    top = charts.round_up(max(most, *(one.value for one in within), 1))
    heights, times = charts.Heights(top, filled=1), charts.Times(depth.times[0], depth.times[-1] + depth.step_s)
    many = len({line.source for line in depth.lines}) > 1
    names = [f"{line.source}/{line.queue}" if many else line.queue for line in depth.lines]
    numbers = _colours(names, list(board.series.queues))
    lines = [
        Line(
            name,
            number(next((v for v in reversed(values) if v is not None), None)),
            numbers[name],
            _path(values, heights),
            links.queue_page(line.source, line.queue),
        )
        for name, line, values in zip(names, depth.lines, series, strict=True)
    ]
    reached = [(one, Level(heights.y(one.value), f"{one.rule}: {number(one.value)}")) for one in depth.thresholds]
    span = _span(depth.times, depth.step_s, board.sampled_since)
    return DeadJobs(
        span,
        duration(depth.step_s),
        charts.levels(top),
        lines,
        [level for one, level in reached if one in within],
        [level for one, level in reached if one not in within],
        [upright(mark, times.x(mark.at)) for mark in depth.marks],
        times.ticks(),
        f"Dead jobs by queue, {span}: {', '.join(f'{line.name} {line.now}' for line in lines)}",
        charts.reading(dict(zip(names, series, strict=True)), times=times),
        _last_of_hours(depth.times, series),
    )


def _colours(names: list[str], others: list[str]) -> dict[str, int]:
    """Return the number of each series' colour: that of the same queue in the other chart, or one that is free."""
    numbers = {name: others.index(name) + 1 for name in names if name in others}
    free = (n for n in range(1, MOST_COLOURS + 1) if n not in numbers.values())
    return {name: numbers.get(name) or next(free) for name in names}


def _path(values: list[int | None], heights: charts.Heights) -> str:
    wide = charts.SIZE / len(values)
    spans = ((n * wide, (n + 1) * wide, None if one is None else heights.y(one)) for n, one in enumerate(values))
    return charts.steps((round(left), round(right), y) for left, right, y in spans)


def _last_of_hours(times: list[int], series: list[list[int | None]]) -> list[tuple[datetime, list[int | None]]]:
    last = {at // 3600: [values[n] for values in series] for n, at in enumerate(times)}
    return [(datetime.fromtimestamp(hour * 3600, UTC), row) for hour, row in sorted(last.items(), reverse=True)]
