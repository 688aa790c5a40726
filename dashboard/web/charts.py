"""The chart kit of every picture over time: scales, ticks, shapes, and the values that are read out.

Shapes are drawn in a box of SIZE by SIZE that is stretched; words are placed in per cent, so that text is not stretched.
`static/redrive/js/charts.js` reads out the values at the pointer, or at the position of the arrow keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.web.moments import local

SIZE = 1000
_FILLED = 0.96  # of the height, by the top: a line on the upper edge would be cut
_DAY = 86_400
_EVERY = (10, 30, 60, 300, 900, 1800, 3600, 7200, 14_400, 28_800, _DAY, *(n * _DAY for n in (2, 7, 14, 30, 60)))

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Tick:
    x: float  # per cent from the left
    words: str


@dataclass(frozen=True, slots=True)
class Times:
    """The scale from left to right, from `since` to `until` in unix seconds."""

    since: float
    until: float

    @classmethod
    def between(cls, since: datetime, until: datetime) -> Times:
        return cls(since.timestamp(), until.timestamp())

    def part(self, at: float | datetime) -> float:
        """0 at the left edge, 1 at the right; what lies outside is at the edge."""
        moment = at.timestamp() if isinstance(at, datetime) else at
        return min(max((moment - self.since) / ((self.until - self.since) or 1), 0.0), 1.0)

    def x(self, at: float | datetime) -> float:
        return round(self.part(at) * SIZE, 1)

    def per_cent(self, at: float | datetime) -> float:
        return round(self.part(at) * 100, 2)

    def ticks(self, most: int = 8) -> list[Tick]:
        """Round moments in the zone of the page, at most `most`; none so close to an edge that its words would be cut."""
        span = self.until - self.since
        every = next((step for step in _EVERY if span / step <= most), _EVERY[-1])
        # By the clock on the wall, so that a day begins at midnight after a change of clocks, too.
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
    """The scale from the ground to `top`; on a steep one each step up is ten times the one below."""

    top: float
    is_steep: bool = False
    filled: float = _FILLED

    def part(self, value: float) -> float:
        """0 on the ground, 1 at the top."""
        value = min(max(value, 0.0), self.top)
        return math.log1p(value) / math.log1p(self.top) if self.is_steep else value / self.top

    def y(self, value: float) -> int:
        return round(SIZE - self.part(value) * SIZE * self.filled)

    def per_cent(self, value: float) -> float:
        """From the upper edge, for words."""
        return round(100 - self.part(value) * 100 * self.filled, 2)


def round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten whose half is whole too."""
    power = 10 ** (len(str(int(value))) - 1)
    tops = (n * power for n in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return next(int(top) for top in tops if top >= value and top % 2 == 0)


def levels(top: float) -> list[str]:
    """Return the words of the axis from above: `top`, its half and the ground. `top` is of `round_up`."""
    return [f"{value:,.10g}" for value in (top, top / 2, 0)]


# -- shapes -----------------------------------------------------------------------------------------------------------


def line(points: Iterable[tuple[float, float | None]]) -> str:
    """A path through (x, y), broken where y is None."""
    return "".join(f"M{_joined(run)}" for run in runs(points))


def area(points: Iterable[tuple[float, float | None]]) -> str:
    """The area between the same line and the ground."""
    return "".join(f"M{run[0][0]:g} {SIZE}L{_joined(run)}L{run[-1][0]:g} {SIZE}z" for run in runs(points))


def runs(points: Iterable[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The pieces of a line that is broken where y is None. A piece of one point is drawn as a dot."""
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
    """A line of steps through (left, right, y), broken where y is None."""
    parts, height = [], None
    for left, right, y in spans:
        if y is not None:
            parts.append(f"M{left:g} {y:g}H{right:g}" if height is None else f"V{y:g}H{right:g}")
        height = y
    return "".join(parts)


def outline(spans: Iterable[tuple[float, float, float]]) -> str:
    """The filled outline of steps (left, right, y), from left to right; on the ground where there is none."""
    parts, end = [f"M0 {SIZE}"], 0.0
    for left, right, y in spans:
        if left > end:
            parts.append(f"V{SIZE}H{left:g}")
        parts.append(f"V{y:g}H{right:g}")
        end = right
    return "".join([*parts, f"V{SIZE}z"])


def bars(counts: Sequence[float], heights: Heights, *, below: Sequence[float] | None = None, wide: float = 0.86) -> str:
    """A bar for each count, on top of what is `below`; `wide`: of its step."""
    each = SIZE / max(len(counts), 1)
    found = []
    for n, count in enumerate(counts):
        if count:
            low = below[n] if below else 0
            ground, top = heights.y(low) if low else SIZE, heights.y(low + count)
            # One is visible beside a thousand.
            tall = max(ground - top, 8 if not low else 0)
            found.append(f"M{n * each:.4g} {ground}v-{tall}h{each * wide:.4g}v{tall}z")
    return "".join(found)


# -- what is read out -------------------------------------------------------------------------------------------------


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
    """The values of a picture for the script, as JSON: of each series by name, a value a step; a text is read as it is.

    `at`: when each step begins, in unix seconds; evenly over `times` where it is not given. Without `times` the steps stand
    side by side, or each at its part of the width (`lefts`), and are named by `labels`. `reach`: for how long a value holds, in
    seconds or as a part of the width; until the next where it is not given.
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
