"""A queue over time as SVG: lines of steps with the least and the most around them, gaps, marks, thresholds.

Shapes stand in a box of 1,000 by 1,000 that is stretched to whatever is there; words are placed in per cent, so that
nothing that is read is stretched. The script only points and zooms: there is one drawing, with and without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dashboard.web import links
from dashboard.web.figures import number
from jobs_admin.queues import depths
from jobs_admin.queues.depths.gaps import PARTLY

SIZE = 1_000
_DAY = 86_400
# Seconds between words on the axis, for spans up to so many of them.
_TICKS = (60, 300, 900, 1_800, 3_600, 7_200, 14_400, 28_800, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 60 * _DAY)
_MOST_TICKS = 8
_LETTER = 3.0  # per cent of the width that a letter takes on a phone
LETTERS = {"alert": "A", "replay": "R", "policy": "P", "release": "V"}


@dataclass(frozen=True, slots=True)
class Line:
    key: str
    name: str
    path: str
    band: str  # from the least to the most; "" where a point is one look
    last: str
    is_shown: bool
    toggle_url: str


@dataclass(frozen=True, slots=True)
class Level:
    """A value as a height: a word on the axis, or a threshold."""

    y: float  # per cent from above
    words: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    key: str
    title: str
    lines: list[Line]
    levels: list[Level]
    thresholds: list[Level]
    above: list[Level]  # thresholds too high to be in it
    words: str


@dataclass(frozen=True, slots=True)
class Tick:
    x: float  # per cent
    words: str


@dataclass(frozen=True, slots=True)
class Hole:
    x: float  # of SIZE
    wide: float
    words: str
    reason: str
    since: datetime
    until: datetime

    @property
    def is_partly(self) -> bool:
        return self.reason == PARTLY


@dataclass(frozen=True, slots=True)
class Upright:
    """Something that happened, as an upright line in a picture and as words below it."""

    x: float  # in the picture's own units
    letter: str
    kind: str
    words: str
    url: str
    at: datetime
    has_letter: bool = True  # there is room for it over the picture

    @property
    def is_named(self) -> bool:
        """Whether its words leave open what it is."""
        return not self.words.startswith(self.kind)


class Scale:
    """Where a moment is, from left to right."""

    def __init__(self, history: depths.History) -> None:
        step = history.step_s
        self.since = history.since
        # To the end of the step that runs, so that the picture stays the same until there is more to see.
        self.until = max(-(-history.until // step) * step, self.since + step)

    def x(self, at: float) -> float:
        return (min(max(at, self.since), self.until) - self.since) / (self.until - self.since) * SIZE

    def per_cent(self, at: float) -> float:
        return round(self.x(at) / SIZE * 100, 2)


class Frame:
    """What all lines of a history share: made once, for hundreds of points."""

    def __init__(self, history: depths.History) -> None:
        self.history = history
        scale, step = Scale(history), history.step_s
        wide = SIZE / (scale.until - scale.since)
        self.times = [point.at for point in history.points]
        self.lefts = [round((at - scale.since) * wide) for at in self.times]
        self.rights = [min(SIZE, round((at + step - scale.since) * wide)) for at in self.times]

    def column(self, name: str) -> list[float | None]:
        place = depths.Point._fields.index(name)
        return [point[place] for point in self.history.points]

    def most(self, name: str) -> list[float | None]:
        return self.column(f"{name}_max" if f"{name}_max" in depths.Point._fields else name)


def picture(
    key: str,
    title: str,
    frame: Frame,
    shown: Sequence[tuple[str, str, bool, str]],
    thresholds: Sequence[depths.Threshold] = (),
) -> Picture:
    """`shown`: (column of Point, name, whether it is drawn, address where that is turned round) of each line."""
    drawn = [name for name, _, is_shown, _ in shown if is_shown]
    most = max((value for name in drawn for value in frame.most(name) if value is not None), default=0)
    within = [one for one in thresholds if one.value <= max(most * 4, 10)]
    top = round_up(max(most, *(one.value for one in within), 1))
    lines = []
    for name, words, is_shown, url in shown:
        values = frame.column(name)
        last = number(next((value for value in reversed(values) if value is not None), None))
        path, band = (_path(frame, values, top), _band(frame, name, top)) if is_shown else ("", "")
        lines.append(Line(name, words, path, band, last, is_shown, url))
    told = [
        (one, Level(_y(one.value, top) / 10, number(one.value), f"{one.rule}: {one.severity}")) for one in thresholds
    ]
    return Picture(
        key,
        title,
        lines,
        [Level(_y(value, top) / 10, number(value)) for value in (top, top / 2)],
        [level for one, level in told if one in within],
        [level for one, level in told if one not in within],
        f"{title}: {', '.join(f'{line.name} {line.last}' for line in lines)}; at most {number(most)}",
    )


def ticks(history: depths.History) -> list[Tick]:
    scale = Scale(history)
    span = scale.until - scale.since
    every = next((step for step in _TICKS if span / step <= _MOST_TICKS), _TICKS[-1])
    first = -(-scale.since // every) * every
    moments = [at for at in range(first, scale.until + 1, every) if 2 < scale.per_cent(at) < 98]
    return [Tick(scale.per_cent(at), _axis(at, every)) for at in moments]


def holes(history: depths.History) -> list[Hole]:
    scale = Scale(history)
    return [
        Hole(
            round(scale.x(gap.since), 1),
            round(max(scale.x(gap.until) - scale.x(gap.since), 2), 1),
            gap.words,
            gap.reason,
            datetime.fromtimestamp(gap.since, UTC),
            datetime.fromtimestamp(gap.until, UTC),
        )
        for gap in history.gaps
    ]


def uprights(history: depths.History, marks: Iterable[depths.Mark]) -> list[Upright]:
    """The marks as upright lines. Of those too close to each other only the first has its letter; the list names them all."""
    scale, latest, taken = Scale(history), float("-inf"), set[int]()
    found = [upright(mark, scale.per_cent(mark.at.timestamp())) for mark in marks]
    for n in sorted(range(len(found)), key=lambda n: found[n].x):
        if found[n].x - latest < _LETTER:
            taken.add(n)
        else:
            latest = found[n].x
    return [replace(one, has_letter=n not in taken) for n, one in enumerate(found)]


def upright(mark: depths.Mark, x: float) -> Upright:
    return Upright(x, LETTERS[mark.kind], mark.kind, mark.words, links.of_mark(mark.kind, mark.ref), mark.at)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _y(value: float, top: float) -> int:
    return round(SIZE - value / top * SIZE * 0.96)


def _path(frame: Frame, values: Sequence[float | None], top: float) -> str:
    """A line of steps, broken where a value is not known. One late look is no gap: what was goes on until the next."""
    step, per = frame.history.step_s, SIZE * 0.96 / top
    leave = 3 * step if step <= depths.LOOK_S else step
    parts: list[str] = []
    last_at, height, right = -leave - 1, -1, 0
    for at, left, to, value in zip(frame.times, frame.lefts, frame.rights, values, strict=True):
        if value is None:
            if height >= 0:
                parts.append(f"H{right}")
            height = -1
            continue
        y = round(SIZE - value * per)
        if height < 0 or at - last_at > leave:
            if height >= 0:
                parts.append(f"H{right}")
            parts.append(f"M{left} {y}")
        elif y != height:
            parts.append(f"H{left}V{y}")
        last_at, height, right = at, y, to
    if height >= 0:
        parts.append(f"H{right}")
    return "".join(parts)


def _band(frame: Frame, name: str, top: float) -> str:
    if frame.history.step_s <= depths.LOOK_S or f"{name}_max" not in depths.Point._fields:
        return ""
    per = SIZE * 0.96 / top
    return "".join(
        [
            f"M{left} {round(SIZE - high * per)}H{max(right, left + 1)}V{round(SIZE - low * per)}H{left}z"
            for left, right, low, high in zip(
                frame.lefts, frame.rights, frame.column(f"{name}_min"), frame.column(f"{name}_max"), strict=True
            )
            if low is not None and high is not None and low != high
        ]
    )


def round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 6, 8 times a power of ten, or of two below ten: half of it reads well too."""
    power = 10 ** (len(str(int(value))) - 1)
    return next(n * power for n in (1, 2, 4, 5, 6, 8, 10) if n * power >= value and (power > 1 or n % 2 == 0))


def _axis(at: int, every: int) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    is_day = at % _DAY == 0
    return f"{moment:%-d %b}" if is_day or every >= _DAY else f"{moment:%H:%M}"


# -- the same as numbers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    at: datetime
    dead: str
    waiting: str
    active: str
    delayed: str
    oldest_s: int | None
    succeeded: float | None
    failed: float | None
    gap: str


def rows(history: depths.History) -> list[Row]:
    """The latest first. `history` has as many points as the table has rows."""
    gaps = [gap for gap in history.gaps if gap.reason != PARTLY]
    found = [
        Row(
            datetime.fromtimestamp(point.at, UTC),
            _range(point, "dead"),
            _range(point, "waiting"),
            _range(point, "active"),
            _range(point, "delayed"),
            point.oldest_dead_age_s,
            point.succeeded_per_min,
            point.failed_per_min,
            next((gap.words for gap in gaps if gap.since <= point.at < gap.until), ""),
        )
        for point in history.points
    ]
    return found[::-1]


def _range(point: depths.Point, name: str) -> str:
    last, low, high = (getattr(point, f"{name}{end}") for end in ("", "_min", "_max"))
    return number(last) if low == high else f"{number(last)} ({number(low)}–{number(high)})"


def values(history: depths.History) -> dict[str, object]:
    """What the script tells where somebody points: when each step begins, and its numbers, as they are read."""
    scale = Scale(history)
    columns = list(zip(*history.points, strict=True)) or [[] for _ in depths.Point._fields]
    held = dict(zip(depths.Point._fields, columns, strict=True))
    names = ("dead", "waiting", "active", "delayed", "succeeded_per_min", "failed_per_min")
    return {
        "since": scale.since,
        "until": scale.until,
        "step": history.step_s,
        "at": [(at - scale.since) // history.step_s for at in held["at"]],
        "lines": {name: held[name] for name in names},
        "oldest": held["oldest_dead_age_s"],
        "gaps": [[gap.since, gap.until, gap.words] for gap in history.gaps],
    }
