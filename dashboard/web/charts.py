"""Chart kit for all charts over time: scales, ticks, shapes, and values for the script.

Shapes are drawn in a box of SIZE by SIZE that is stretched; text is positioned in per cent so that it is not stretched.
`static/redrive/js/charts.js` shows the values at the pointer, or at the position of the arrow keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.web.moments import local

SIZE = 1000
_FILLED = 0.96  # of the height: a line on the upper edge would be clipped
_DAY = 86_400
_EVERY = (10, 30, 60, 300, 900, 1800, 3600, 7200, 14_400, 28_800, _DAY, *(n * _DAY for n in (2, 7, 14, 30, 60)))

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Tick:
    x: float  # per cent from the left
    words: str


@dataclass(frozen=True, slots=True)
class Times:
    """Horizontal scale from `since` to `until` in unix seconds."""

    since: float
    until: float

    @classmethod
    def between(cls, since: datetime, until: datetime) -> Times:
        return cls(since.timestamp(), until.timestamp())

    def part(self, at: float | datetime) -> float:
        """Return the position: 0 at the left edge, 1 at the right; values outside are at the edge."""
        moment = at.timestamp() if isinstance(at, datetime) else at
        return min(max((moment - self.since) / ((self.until - self.since) or 1), 0.0), 1.0)

    def x(self, at: float | datetime) -> float:
        return round(self.part(at) * SIZE, 1)

    def per_cent(self, at: float | datetime) -> float:
        return round(self.part(at) * 100, 2)

    def ticks(self, most: int = 8) -> list[Tick]:
        """Return at most `most` round times in the zone of the page, none whose label an edge would clip."""
        span = self.until - self.since
        every = next((step for step in _EVERY if span / step <= most), _EVERY[-1])
        # In local time, so that days begin at midnight also after a change to or from daylight saving time.
        begins = local(datetime.fromtimestamp(self.since, UTC))
        wall = begins.replace(tzinfo=UTC).timestamp()
        first, last = -int(-wall // every) * every, int(wall + span) + 2 * every
        times = [datetime.fromtimestamp(at, UTC).replace(tzinfo=begins.tzinfo) for at in range(first, last, every)]
        found = {self.per_cent(at): _words(local(at.astimezone(UTC)), every) for at in times}
        return [Tick(x, words) for x, words in found.items() if 2 < x < 98]


def _words(moment: datetime, every: int) -> str:
    if every >= _DAY or not (moment.hour or moment.minute or moment.second):
        return f"{moment:%-d %b}"
    return f"{moment:%H:%M:%S}" if every < 60 else f"{moment:%H:%M}"


@dataclass(frozen=True, slots=True)
class Heights:
    """Vertical scale from the ground to `top`; if steep, each step up is ten times the one below."""

    top: float
    is_steep: bool = False
    filled: float = _FILLED

    def part(self, value: float) -> float:
        """Return the position: 0 on the ground, 1 at the top."""
        value = min(max(value, 0.0), self.top)
        return math.log1p(value) / math.log1p(self.top) if self.is_steep else value / self.top

    def y(self, value: float) -> int:
        return round(SIZE - self.part(value) * SIZE * self.filled)

    def per_cent(self, value: float) -> float:
        """Return the position of text, in per cent from the upper edge."""
        return round(100 - self.part(value) * 100 * self.filled, 2)


def round_up(value: float) -> float:
    """Return the next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten whose half is an integer."""
    power = 10 ** (len(str(int(value))) - 1)
    tops = (n * power for n in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return next(int(top) for top in tops if top >= value and top % 2 == 0)


def round_rate(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten, also below 1."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if n * power >= value * 0.9999)


def levels(top: float) -> list[str]:
    """Return the axis labels from the top: `top`, its half, the ground. `top` is from `round_up` or `round_rate`."""
    return [f"{value:,.10g}" for value in (top, top / 2, 0)]


# -- shapes -----------------------------------------------------------------------------------------------------------


def line(points: Iterable[tuple[float, float | None]]) -> str:
    """Return a path through (x, y), broken where y is None."""
    return "".join(f"M{_joined(run)}" for run in runs(points))


def area(points: Iterable[tuple[float, float | None]]) -> str:
    """Return the area between such a line and the ground."""
    return "".join(f"M{run[0][0]:g} {SIZE}L{_joined(run)}L{run[-1][0]:g} {SIZE}z" for run in runs(points))


def runs(points: Iterable[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Return the segments of a line broken where y is None. A segment of one point is drawn as a dot."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [run if len(run) > 1 else run * 2 for run in found if run]


def _joined(run: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in run)


def steps(spans: Iterable[tuple[float, float, float | None]]) -> str:
    """Return a step line through (left, right, y), broken where y is None."""
    parts, height = [], None
    for left, right, y in spans:
        if y is not None:
            parts.append(f"M{left:g} {y:g}H{right:g}" if height is None else f"V{y:g}H{right:g}")
        height = y
    return "".join(parts)


def outline(spans: Iterable[tuple[float, float, float]]) -> str:
    """Return the filled outline of steps (left, right, y), from left to right; on the ground where there is none."""
    parts, end = [f"M0 {SIZE}"], 0.0
    for left, right, y in spans:
        if left > end:
            parts.append(f"V{SIZE}H{left:g}")
        parts.append(f"V{y:g}H{right:g}")
        end = right
    return "".join([*parts, f"V{SIZE}z"])


def bars(counts: Sequence[float], heights: Heights, *, below: Sequence[float] | None = None, wide: float = 0.86) -> str:
    """Return a bar per count, on top of `below`; `wide`: fraction of its step."""
    each = SIZE / max(len(counts), 1)
    found = []
    for n, count in enumerate(counts):
        if count:
            low = below[n] if below else 0
            ground, top = heights.y(low) if low else SIZE, heights.y(low + count)
            # A count of one stays visible beside a thousand.
            tall = max(ground - top, 8 if not low else 0)
            found.append(f"M{n * each:.4g} {ground}v-{tall}h{each * wide:.4g}v{tall}z")
    return "".join(found)


# -- values for the script ------------------------------------------------------------------------------------------


def reading(
    series: Mapping[str, Sequence[Value | str]],
    *,
    times: Times | None = None,
    at: Sequence[float] | None = None,
    reach: float | None = None,
    labels: Sequence[str] | None = None,
    lefts: Sequence[float] | None = None,
    gaps: Sequence[tuple[float, float, str]] = (),
    zooms: bool = False,
) -> str:
    """Return the values of a chart for the script, as JSON: per series by name, one value per step; texts unchanged.

    `at`: start of each step in unix seconds; by default evenly over `times`. Without `times` the steps are side by
    side, or at `lefts` as fractions of the width, and labelled by `labels`. `reach`: how long a value holds, in seconds
    or as a fraction of the width; by default until the next.
    """
    document: dict[str, object] = {"series": {name: list(values) for name, values in series.items()}}
    if times is not None:
        document |= {"since": round(times.since), "until": round(times.until)}
    if at is not None and times is not None:
        document["at"] = [round(one - times.since) for one in at]
    if labels is not None:
        document["labels"] = list(labels)
    if lefts is not None:
        document["at"] = [round(one, 4) for one in lefts]
    document |= {name: value for name, value in (("reach", reach), ("gaps", list(gaps)), ("zooms", zooms)) if value}
    return json.dumps(document, separators=(",", ":"))
