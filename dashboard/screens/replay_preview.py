"""A replay before it is started: what it holds, where it goes, how fast, and what the workers did in the last hour."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from dashboard.screens import replay_paces
from dashboard.shown.figures import duration
from dashboard.shown.text import part_first
from jobs_admin.group_places import Place

# The picture's own units; the page stretches it.
WIDE, HIGH = 360, 120


@dataclass(frozen=True, slots=True)
class Column:
    """Counts of what is replayed, by one thing."""

    title: str
    rows: list[Share]
    others: int  # values beyond those shown


@dataclass(frozen=True, slots=True)
class Share:
    value: str
    title: str
    count: int
    part: float  # 0..100, of what is replayed
    place: str = ""  # of an error: where it fails; two groups may have one title


@dataclass(frozen=True, slots=True)
class Picture:
    """Starts a second over time beside the jobs that ran well in the last hour, on one scale."""

    past: str  # points of a filled line
    future: str
    top: float  # jobs a second at the upper edge
    median: str  # of the last hour, in words; empty where nothing is known
    times: str  # how many times that the replay starts, where it is more
    median_y: float
    duration: str
    table: list[tuple[str, str]]


MOST_VALUES = 5


def columns(preview, places: dict[str, Place]) -> list[Column]:
    """`places`: of groups, by fingerprint."""
    shown = []
    for title, counts in (
        ("Queue", preview.by_queue),
        ("Task", preview.by_task),
        ("Error", preview.by_group),
        ("Tenant", preview.by_tenant),
    ):
        rows = [_share(value, count, preview.replayable) for value, count in counts[:MOST_VALUES]]
        if counts is preview.by_group:
            rows = [_placed(row, places.get(name)) for row, (name, _, _) in zip(rows, preview.groups, strict=False)]
        if rows:
            shown.append(Column(title, rows, max(0, len(counts) - MOST_VALUES)))
    return shown


def _share(value, count: int, whole: int) -> Share:
    text = str(value if value not in (None, "") else "none")
    return Share(text, text, count, round(count / whole * 100, 2) if whole else 0)


def _placed(row: Share, place: Place | None) -> Share:
    return replace(row, value=part_first(row.value), place=place.words if place else "")


def target(preview) -> str:
    """Where they go, in a few words: `webhooks`, or `webhooks and 2 other queues`."""
    queues = [queue for queue, _ in preview.by_queue]
    if not queues:
        return ""
    if len(queues) == 1:
        return str(queues[0])
    rest = len(queues) - 1
    return f"{queues[0]} and {rest} other queue{'s' if rest > 1 else ''}"


def button(preview) -> str:
    """What pressing it does: "Replay 12,304 jobs to webhooks"."""
    jobs = "1 job" if preview.replayable == 1 else f"{preview.replayable:,} jobs"
    return f"Replay {jobs} to {target(preview)}" if preview.by_queue else f"Replay {jobs}"


def picture(preview, per_minute: list[int]) -> Picture:
    """`per_minute`: jobs of these queues that ran well, a value a minute of the last hour, oldest first."""
    past = [count / 60 for count in per_minute]
    peak = float(preview.peak_per_second or 0)
    top = _nice(max([peak, *past, 0.001]))
    known = sorted(past)
    median = known[len(known) // 2] if any(past) else None
    step = WIDE / max(len(past), 1)
    line = " ".join(f"{x:.1f},{_y(rate, top):.1f}" for n, rate in enumerate(past) for x in (n * step, (n + 1) * step))
    y = _y(peak, top)
    # All at once is over before the axis has a width: it is drawn as the spike that it is.
    end = WIDE * 0.08 if preview.pace.get("style") == "at_once" else WIDE * 0.9
    future = f"0,{HIGH} 0,{y:.1f} {end:.1f},{y:.1f} {end:.1f},{HIGH}"
    table = [("Starts a second, at most", _rate(peak)), ("Lasts", duration(preview.duration_s))]
    if median is not None:
        table += [
            ("Ran well a second, median of the last hour", _rate(median)),
            ("The most in one minute", _rate(max(past))),
        ]
    return Picture(
        past=f"0,{HIGH} {line} {WIDE},{HIGH}" if any(past) else "",
        future=future,
        top=top,
        median=replay_paces.rate_in_words(median) if median else "",
        times=f"{peak / median:,.0f}" if median and peak / median >= 2 else "",
        median_y=_y(median or 0, top),
        duration=duration(preview.duration_s),
        table=table,
    )


def _y(rate: float, top: float) -> float:
    return HIGH - rate / top * HIGH


def _nice(value: float) -> float:
    """A round number a little above."""
    size = 10 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15) if step * size >= value * 1.08)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2g}"


def whole(per_second: float) -> str:
    """The most jobs in any one second: jobs are not cut, so 2.5 are 3."""
    return f"{math.ceil(per_second):,}"


def changed_since(before: str, preview) -> list[str]:
    """What is different from what the person saw, in words. `before`: the numbers that the form carried."""
    try:
        saw = json.loads(before)
    except ValueError:
        return []
    if not isinstance(saw, dict):
        return []
    now = seen(preview)
    names = {"matched": "match", "replayable": "can be replayed", "blocked": "are blocked"}
    return [
        f"{now[name]:,} {words}, {saw[name]:,} before"
        for name, words in names.items()
        if isinstance(saw.get(name), int) and saw[name] != now[name]
    ]


def seen(preview) -> dict[str, int]:
    return {
        "matched": preview.matched,
        "replayable": preview.replayable,
        "blocked": sum(one["count"] for one in preview.blocked),
    }
