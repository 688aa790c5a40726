"""Charts of the overview: failed attempts and dead jobs by queue, over a time range or since sampling began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zlib import crc32

from django.utils import timezone
from django.utils.safestring import SafeString

from dashboard.queues.depth_picture import Upright, upright
from dashboard.web import charts, figures, links
from dashboard.web.figures import duration, number
from dashboard.web.moments import clock
from dashboard.web.time_range import RANGES, words
from jobs_admin.db.policy_marks import PolicyMark
from jobs_admin.desk import overview

MOST_COLOURS = 6  # --series-1 to --series-6, which is grey
MOST_ROWS = 32
_ROW_STEPS = (60, 300, 900, 3600, 21_600, 86_400)  # possible steps of the charts


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a policy, as a line in the chart and a link below it."""

    at: datetime
    x: float  # in the box of the shapes
    policy: str
    words: str
    url: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Series of bars on top of the previous ones."""

    name: str
    sum: int
    n: int  # number of its colour
    is_striped: bool  # as every other series, so that neighbours differ not only in colour
    path: str


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """Stacked bars, the first series on top."""

    span: str  # "last 24 h", or its start
    step: str
    levels: list[str]  # axis labels: top, half, ground
    series: list[Bars]
    ticks: list[charts.Tick]
    changes: list[Change]
    words: str
    chart: str  # for charts.js
    rows: SafeString  # of the table, latest first


def failed_attempts(board: overview.Board, time_range: str) -> FailedAttempts | None:
    """Return the chart; None if no attempt failed."""
    series = board.series
    if not series.queues:
        return None
    times = charts.Times(series.times[0], series.times[-1] + series.step_s)
    top = charts.round_up(max(sum(step) for step in zip(*series.queues.values(), strict=True)) or 1)
    heights, below, parts = charts.Heights(top, filled=1), [0] * len(series.times), []
    numbers = _colours_of(series)
    for n, (name, y) in reversed(list(enumerate(series.queues.items()))):
        parts.append(Bars(name, sum(y), numbers[name], n % 2 == 1, charts.bars(y, heights, below=below)))
        below = [low + count for low, count in zip(below, y, strict=True)]
    totals = ", ".join(f"{name} {sum(y):,}" for name, y in series.queues.items())
    span = _span(series.times, series.step_s, board.sampled_since, time_range)
    return FailedAttempts(
        span,
        duration(series.step_s),
        charts.levels(top),
        parts[::-1],
        times.ticks(),
        [_change(mark, times) for mark in board.policies],
        f"Failed attempts by queue, {span}: {totals}",
        charts.reading(series.queues, times=times),
        _summed_rows(series),
    )


def _span(times: list[int], step_s: int, sampled_since: datetime | None, time_range: str) -> str:
    """Return the time range of a chart, as text."""
    if sampled_since is None or len(times) * step_s >= RANGES[time_range].total_seconds():
        return f"last {words(time_range)}"
    if times[0] + step_s <= sampled_since.timestamp():  # includes failures from before sampling began
        return f"since {clock(datetime.fromtimestamp(times[0], UTC), datetime.now(UTC))}"
    return f"since {clock(sampled_since, datetime.now(UTC))}, when sampling began"


def _change(mark: PolicyMark, times: charts.Times) -> Change:
    words = {"enforce": "in force", "observe": "observes"}.get(mark.mode, "withdrawn")
    return Change(mark.at, times.x(mark.at), mark.version.replace("@", " v"), words, links.policy_version(mark.version))


def _summed_rows(series: overview.Series) -> SafeString:
    row_s = _row_s(series.times)
    found: dict[int, list[int]] = {}
    for place, at in enumerate(series.times):
        row = found.setdefault(at - at % row_s, [0] * len(series.queues))
        for column, y in enumerate(series.queues.values()):
            row[column] += y[place]
    return _table_rows(found)


def _table_rows(rows: Mapping[int, Sequence[int | None]]) -> SafeString:
    """Return rows of numbers by time, latest first. As a template they took a tenth of the page's time."""
    now, shown = timezone.now(), []
    for at, row in sorted(rows.items(), reverse=True):
        cells = "".join(f'<td class="number">{number(one)}</td>' for one in row)
        shown.append(f'<tr><th scope="row">{figures.clock(datetime.fromtimestamp(at, UTC), now=now)}</th>{cells}</tr>')
    return SafeString("".join(shown))


def _row_s(times: list[int]) -> int:
    """Return the seconds per row of the table: the shortest step with at most MOST_ROWS rows."""
    return next((one for one in _ROW_STEPS if times[-1] - times[0] <= one * MOST_ROWS), _ROW_STEPS[-1])


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    now: str
    n: int  # number of its colour and dash pattern
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
    levels: list[str]  # axis labels: top, half, ground
    lines: list[Line]
    thresholds: list[Level]
    above: list[Level]  # thresholds above the chart
    uprights: list[Upright]
    ticks: list[charts.Tick]
    words: str
    chart: str  # for charts.js
    rows: SafeString  # of the table, latest first


def dead_jobs(board: overview.Board, time_range: str) -> DeadJobs | None:
    """Return the chart of dead jobs, which ends with the current numbers; None if no queue had one."""
    depth = board.depth
    current = {(source, queue): n for source, queue, n in board.dead}
    # A queue of a source that is not configured is not sampled and has only its current number.
    drawn = [(one, [*one.dead[:-1], current.get((one.source, one.queue), one.dead[-1])]) for one in depth.lines]
    drawn = [(line, values) for line, values in drawn if any(values)]
    if not drawn:
        return None
    series = [values for _, values in drawn]
    most = max(value for values in series for value in values if value is not None)
    within = [one for one in depth.thresholds if one.value <= max(most * 4, 10)]
    top = charts.round_up(max(most, *(one.value for one in within), 1))
    heights, times = charts.Heights(top, filled=1), charts.Times(depth.times[0], depth.times[-1] + depth.step_s)
    many = len({line.source for line, _ in drawn}) > 1
    names = [f"{line.source}/{line.queue}" if many else line.queue for line, _ in drawn]
    numbers = _colours(names, _colours_of(board.series))
    lines = [
        Line(
            name,
            number(next((v for v in reversed(values) if v is not None), None)),
            numbers[name],
            _path(values, heights),
            links.queue_page(line.source, line.queue),
        )
        for name, (line, values) in zip(names, drawn, strict=True)
    ]
    reached = [(one, Level(heights.y(one.value), f"{one.rule}: {number(one.value)}")) for one in depth.thresholds]
    span = _span(depth.times, depth.step_s, board.sampled_since, time_range)
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
        _last_of_rows(depth.times, series),
    )


def _colours_of(series: overview.Series) -> dict[str, int]:
    """Return the colours of the failed attempts; the rest, which is no queue, has the grey."""
    names = list(series.queues)
    rest = dict.fromkeys(names[len(series.fullest) :], MOST_COLOURS)
    return _colours(names, rest)


def _colours(names: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """Return the number of each queue's colour, different for each, whatever the order of the names.

    It is the `known` one; otherwise it follows from the name, or is the next free one. The grey comes last.
    """
    numbers = {name: known[name] for name in names if name in known}
    for name in sorted(set(names) - set(numbers)):
        first = crc32(name.encode()) % (MOST_COLOURS - 1)
        order = [(first + n) % (MOST_COLOURS - 1) + 1 for n in range(MOST_COLOURS - 1)] + [MOST_COLOURS]
        numbers[name] = next(n for n in order if n not in numbers.values())
    return numbers


def _path(values: list[int | None], heights: charts.Heights) -> str:
    wide = charts.SIZE / len(values)
    spans = ((n * wide, (n + 1) * wide, None if one is None else heights.y(one)) for n, one in enumerate(values))
    return charts.steps((round(left), round(right), y) for left, right, y in spans)


def _last_of_rows(times: list[int], series: list[list[int | None]]) -> SafeString:
    row_s = _row_s(times)
    return _table_rows({at - at % row_s: [values[n] for values in series] for n, at in enumerate(times)})
