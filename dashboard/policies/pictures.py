"""Charts of a policy: the delay after each attempt, the times of the attempts, and the herd.

The edited policy is drawn in front of the published one, on one scale. Shapes are positioned in per cent of the width,
so that a chart fills its box and its text is not stretched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dashboard.web import charts
from dashboard.web.figures import duration, number
from jobs_admin.core import retry_times as herds
from jobs_admin.core.backoff import Step

HIGH, CEILING = 132, 14  # px, of a chart, and of the labels above its bars
LANE = 22
MOST_DRAWN = 120  # attempts drawn; of more, every second, third …
MOST_LABELS = 6  # labels that fit on a phone
_WIDEST = 10.0  # maximum width of a bar, in per cent
MOST_ROWS = 40  # rows of a table
MOST_BUSY = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """Delay, at least `sure` and at most `longest`. Heights in px."""

    x: str
    width: str
    sure_y: float
    sure: float
    top_y: float
    band: float
    mean_y: float
    words: str


@dataclass(frozen=True, slots=True)
class Level:
    """Delay of the published policy, behind a bar."""

    x: str
    end: str
    y: float


@dataclass(frozen=True, slots=True)
class Label:
    x: str
    words: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class BarLabel:
    """Number of an attempt below its bar, and its mean delay above it."""

    x: str
    attempt: str
    wait: str
    y: float


@dataclass(frozen=True, slots=True)
class Delays:
    bars: list[Bar]
    levels: list[Level]
    labels: list[BarLabel]
    ticks: list[str]  # axis labels: top, half, ground
    words: str
    is_spread: bool  # whether the length of a delay varies
    rows: list[tuple[str, ...]]
    more: int  # number of rows not in the table
    chart: str  # values for charts.js, as JSON


def delays(edited: Sequence[Step], current: Sequence[Step] = (), *, name: str = "") -> Delays | None:
    """Draw the delays, from the `schedule` of both policies. None if nothing is ever retried.

    `name`: of the published policy.
    """
    if not edited:
        return None
    columns = max(len(edited), len(current))
    top = _nice_s(max([*(one.longest_s for one in edited), *(one.mean_s for one in current)]))
    width = 100 / columns
    every = math.ceil(columns / MOST_DRAWN)
    bars = [_bar(n, one, width, every, top) for n, one in enumerate(edited) if n % every == 0]
    levels = [
        Level(_x(n * width), _x((n + every) * width), _y(one.mean_s, top))
        for n, one in enumerate(current)
        if n % every == 0
    ]
    skip = math.ceil(columns / MOST_LABELS)
    middle = min(every, columns) / 2
    labels = [
        BarLabel(
            _x((n + middle) * width),
            f"{'' if n else 'attempt '}{one.attempt:,}",
            brief(one.mean_s),
            round(_y(one.longest_s, top) - 4, 1),
        )
        for n, one in enumerate(edited)
        if n % skip == 0
    ]
    first, last = edited[0], edited[-1]
    words = f"{brief(first.mean_s)} after the first attempt"
    if len(edited) > 1:
        words += f", {brief(last.mean_s)} after attempt {last.attempt:,}, the last but one"
    rows = [
        (f"{one.attempt:,}", *map(duration, (one.shortest_s, one.mean_s, one.longest_s)))
        + ((duration(current[n].mean_s) if n < len(current) else "–",) if current else ())
        for n, one in enumerate(edited[:MOST_ROWS])
    ]
    is_spread = any(one.longest_s > one.shortest_s for one in edited)
    chart = _delays_reading(edited, current, columns, name)
    ticks = [brief(top), brief(top / 2), "0"]
    return Delays(bars, levels, labels, ticks, words, is_spread, rows, max(0, len(edited) - MOST_ROWS), chart)


def _bar(n: int, one: Step, width: float, every: int, top: float) -> Bar:
    sure, longest = _y(one.shortest_s, top), _y(one.longest_s, top)
    wide = width * every
    drawn = min(wide * 0.72, _WIDEST) if wide > 2 else wide
    text = duration(one.shortest_s)
    if one.longest_s > one.shortest_s:
        text += f" to {duration(one.longest_s)}"
    return Bar(
        _x(n * width + (wide - drawn) / 2),
        _x(drawn),
        sure,
        round(HIGH - sure, 1),
        longest,
        max(round(sure - longest, 1), 0.0),
        _y(one.mean_s, top),
        f"after attempt {one.attempt:,}: {text}",
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """Attempt on the time axis: its possible times, and their mean."""

    x: str
    width: str
    at: str
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    tone: str  # edited, current
    y: int
    marks: list[Mark]
    end: str  # latest possible end of the last attempt


@dataclass(frozen=True, slots=True)
class Runs:
    lanes: list[Lane]
    ticks: list[Label]
    high: int
    words: str
    rows: list[tuple[str, ...]]
    more: int
    chart: str  # values for charts.js, as JSON


def runs(edited: Sequence[Step], current: Sequence[Step] = (), *, name: str = "") -> Runs | None:
    """Draw the times of the attempts since the first failure. `name`: of the published policy."""
    if not edited:
        return None
    both = [("edited" if current else "attempts", "edited", edited)]
    if current:
        both.append((name, "current", current))
    span = max(sum(one.longest_s for one in steps) for _, _, steps in both) or 1.0
    lanes = [_lane(title, tone, n * (LANE + 8), steps, span) for n, (title, tone, steps) in enumerate(both)]
    times = _times(edited)
    rows = [
        (f"{one.attempt + 1:,}", *map(duration, at))
        for one, at in zip(edited[:MOST_ROWS], times[:MOST_ROWS], strict=True)
    ]
    words = f"{len(edited) + 1} attempts, the last {duration(times[-1][1])} after the first failure (average)"
    ticks = [Label(_x(at / span * 100), brief(at), _anchor(at / span)) for at in _ticks(span)]
    drawn_steps = edited[:MOST_DRAWN]
    chart = charts.reading(
        {"on average": [duration(mean) for _, mean, _ in times[: len(drawn_steps)]]},
        labels=[f"attempt {one.attempt + 1:,}" for one in drawn_steps],
        lefts=[first / span for first, _, _ in times[: len(drawn_steps)]],
    )
    return Runs(lanes, ticks, len(both) * (LANE + 8) - 8, words, rows, max(0, len(edited) - MOST_ROWS), chart)


def _lane(title: str, tone: str, y: int, steps: Sequence[Step], span: float) -> Lane:
    times = _times(steps)
    every = math.ceil(len(times) / MOST_DRAWN)
    marks = [
        Mark(
            _x(first / span * 100),
            _x((last - first) / span * 100),
            _x(mean / span * 100),
            f"attempt {n + 2:,}: {duration(mean)} after the first failure",
        )
        for n, (first, mean, last) in enumerate(times)
        if n % every == 0 or n == len(times) - 1
    ]
    return Lane(title, tone, y, marks, _x(times[-1][2] / span * 100))


def _times(steps: Sequence[Step]) -> list[tuple[float, float, float]]:
    """Return (earliest, mean, latest) of attempts 2, 3 …, in seconds from the first failure."""
    waits = [(one.shortest_s, one.mean_s, one.longest_s) for one in steps]
    return list(zip(*map(accumulate, zip(*waits, strict=True)), strict=True))


@dataclass(frozen=True, slots=True)
class Herd:
    """Retries in each step after many jobs failed at the same time."""

    edited: str  # SVG path of a filled outline
    current: str
    ticks: list[Label]
    step: str  # step as text
    levels: list[str]  # axis labels: top, half, ground
    peak: str  # retries in the busiest second
    peak_of_current: str  # "" without a published policy
    jobs: str
    rows: list[tuple[str, ...]]
    chart: str  # values for charts.js, as JSON


def herd(edited: herds.Herd, current: herds.Herd | None, jobs: int, *, name: str = "") -> Herd | None:
    """Draw the herds of both policies with the same step. None if no job is retried. `name`: of the published policy."""
    if not edited.points:
        return None
    before = current.points if current else []
    step = edited.step_s
    span = max(at for at, _ in (*edited.points, *before)) + step
    top = charts.round_up(max(1, *(starts for _, starts in (*edited.points, *before))))
    busiest = sorted(sorted(edited.points, key=lambda point: -point[1])[:MOST_BUSY])
    return Herd(
        _outline(edited.points, span, step, top),
        _outline(before, span, step, top) if before else "",
        [Label(_x(at / span * 100), brief(at), _anchor(at / span)) for at in _ticks(span)],
        "second" if step == 1 else brief(step),
        charts.levels(top),
        number(math.ceil(edited.peak_per_s)),
        number(math.ceil(current.peak_per_s)) if current else "",
        number(jobs),
        [(f"from {brief(at)} on", number(round(starts, 1))) for at, starts in busiest],
        _herd_reading(edited.points, before, span, step, name),
    )


def _outline(points: Sequence[tuple[int, float]], span: float, step: int, top: float) -> str:
    """Return the outline as steps, which fall to zero where a step is missing."""
    times, heights = charts.Times(0, span), charts.Heights(top, filled=1)
    return charts.outline((times.x(at), times.x(at + step), heights.y(starts)) for at, starts in points)


def _herd_reading(
    edited: Sequence[tuple[int, float]], before: Sequence[tuple[int, float]], span: float, step: int, name: str
) -> str:
    moments = sorted({at for at, _ in (*edited, *before)})
    drawn_steps = {"retries": edited} | ({name: before} if before else {})
    return charts.reading(
        {
            name: [round(known.get(at, 0), 1) for at in moments]
            for name, points in drawn_steps.items()
            for known in (dict(points),)
        },
        labels=[f"after {brief(at)}" for at in moments],
        lefts=[at / span for at in moments],
        reach=step / span,
    )


def _delays_reading(edited: Sequence[Step], current: Sequence[Step], columns: int, name: str) -> str:
    drawn_steps = edited[:MOST_DRAWN]
    waits = [
        duration(one.shortest_s)
        if one.longest_s <= one.shortest_s
        else f"{duration(one.shortest_s)} to {duration(one.longest_s)}"
        for one in drawn_steps
    ]
    series = {"wait": waits}
    if current:
        series[name] = [duration(current[n].mean_s) if n < len(current) else "–" for n in range(len(drawn_steps))]
    labels, lefts = (
        [f"after attempt {one.attempt:,}" for one in drawn_steps],
        [n / columns for n in range(len(drawn_steps))],
    )
    return charts.reading(series, labels=labels, lefts=lefts)


# ---------- scales ----------

_STEPS = [
    *(size * unit for unit in (0.001, 0.01, 0.1, 1) for size in (1, 2, 5)), 10, 15, 20, 30,
    *(60 * n for n in (1, 2, 5, 10, 15, 20, 30)), *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)),
]  # fmt: skip


def _ticks(span_s: float) -> list[float]:
    """Return round times starting at 0, five at most."""
    step = next((step for step in _STEPS if span_s / step <= 4.6), span_s)
    return [n * step for n in range(int(span_s / step) + 1)]


def _nice_s(value: float) -> float:
    """Return a round time slightly above."""
    if value <= 0:
        return 1.0
    step = next((step for step in _STEPS if value / step <= 4), value)
    return math.ceil(value / step * 1.0001) * step


def _anchor(part: float) -> str:
    return "start" if part < 0.03 else "end" if part > 0.96 else "middle"


def _x(per_cent: float) -> str:
    return f"{per_cent:.2f}%"


def _y(seconds: float, top: float) -> float:
    return round(HIGH - seconds / top * (HIGH - CEILING), 1)


_BRIEF = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))


def brief(seconds: float) -> str:
    """Return a time in one unit, as a label of a bar: 150 -> 2.5 min."""
    if not seconds:
        return "0"
    # Avoids 1.3 min for 80 s, and 1,500 ms for 1.5 s.
    fits = ((size, unit) for size, unit in _BRIEF if seconds >= size * (2 if size > 1 else 0.9995) or seconds == size)
    size, unit = next(fits, (0.001, "ms"))
    value = seconds / size
    return f"{value:.1f}".removesuffix(".0") + f" {unit}" if value < 9.95 else f"{value:,.0f} {unit}"
