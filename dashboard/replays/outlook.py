"""The preview of a replay over time: its starts beside the last hour, its end, and the effect of failures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from dashboard.replays import paces as replay_paces
from dashboard.web import charts
from dashboard.web.figures import duration, number

_LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Picture:
    """Starts per second over time beside the jobs that succeeded in the last hour, on one scale."""

    past: str  # a filled outline; empty where nothing is known
    future: str
    top: float  # jobs a second at the upper edge
    median: str  # of the last hour, in words; empty where nothing is known
    times: str  # how many times that the replay sends, where it is more
    median_y: int
    canary_x: float | None  # where the canary ends
    duration: str
    table: list[tuple[str, str]]
    chart: str  # what is read out


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the replay for a share of jobs that fail again."""

    title: str
    words: str
    end: datetime | None = None


def picture(preview: Any, per_minute: list[int]) -> Picture:
    """Draw the preview. `per_minute`: succeeded jobs of these queues in each minute of the last hour, oldest first."""
    planned = preview.simulation.as_planned
    past = [count / 60 for count in per_minute]
    usual = preview.throughput_per_s
    top = _nice(max([planned.peak_per_second, *(rate for _, rate in planned.starts), *past, 0.001]))
    span_s = _span_s(planned)
    times, heights, wide = charts.Times(0, span_s), charts.Heights(top, filled=1), charts.SIZE / max(len(past), 1)
    starts = _spans(planned.starts, span_s)
    peak = preview.peak_per_second
    return Picture(
        past=charts.outline((n * wide, (n + 1) * wide, heights.y(rate)) for n, rate in enumerate(past))
        if any(past)
        else "",
        future=charts.outline((times.x(at), times.x(until), heights.y(rate)) for at, until, rate in starts),
        top=top,
        median=replay_paces.rate_in_words(usual) if usual else "",
        times=f"{peak / usual:,.0f}" if usual and peak >= 2 * usual + 1 else "",  # whole jobs: one more than the rate
        median_y=heights.y(usual or median(past or [0])),
        canary_x=_canary_x(preview.pace, starts, times),
        duration=duration(span_s),
        table=_table(planned, usual, past),
        chart=charts.reading(
            {"starts per second": [_rate(rate) for _, _, rate in starts]},
            labels=[f"{duration(at)} in" for at, _, _ in starts],
            lefts=[at / span_s for at, _, _ in starts],
        )
        if starts
        else "",
    )


def endings(preview: Any) -> list[Ending]:
    """As planned first, then with some and with half of them failing again."""
    return [_ending(preview, one) for one in preview.simulation.outlooks]


def _ending(preview: Any, one: Any) -> Ending:
    title = f"{one.failing:.0%} fail again".replace("%", " %") if one.failing else "Duration"
    if one.held_after_s is not None:
        why = one.held_because.sentence() if one.held_because else ""
        return Ending(title, f"held after ~{number(one.sent)} jobs ({duration(one.held_after_s)}): {why}")
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
    """(from, to, starts a second) of each step, in seconds from the first."""
    ends = [*(at for at, _ in starts[1:]), span_s]
    return [(at, until, rate) for (at, rate), until in zip(starts, ends, strict=True)] if starts else []


def _canary_x(pace: dict[str, Any], starts: list[tuple[float, float, float]], times: charts.Times) -> float | None:
    """Return the position at which all canary jobs are started; None without a canary."""
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
        ("Peak starts per second", _rate(planned.peak_per_second)),
        ("Peak queue length", duration(planned.longest_wait_s)),
    ]
    if usual is not None:
        found += [
            ("Succeeded/s, median of the last hour", _rate(usual)),
            ("Peak per minute", _rate(max(past, default=0))),
        ]
    every = max(1, len(planned.starts) // 12)
    return found + [(f"{duration(at)} in", f"{_rate(rate)}/s") for at, rate in planned.starts[::every]]


def _nice(value: float) -> float:
    """A round number a little above."""
    size = 10 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15) if step * size >= value * 1.08)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2g}"
