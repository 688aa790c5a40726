"""Chart of a queue over time as SVG: step lines with minimum and maximum, gaps, marks, thresholds.

Shapes are drawn in a box of 1,000 by 1,000 that is stretched; text is positioned in per cent so that it is not
stretched. The script only shows values and zooms: the chart is the same without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dashboard.web import charts, links
from dashboard.web.charts import SIZE
from dashboard.web.figures import duration, number
from jobs_admin.queues import depths
from jobs_admin.queues.depths.reading import PARTLY

_LABEL_PERCENT = 3.0  # width of a letter on a phone, in per cent of the chart
LABELS = {"alert": "A", "replay": "R", "policy": "P", "release": "V"}


@dataclass(frozen=True, slots=True)
class Line:
    key: str
    name: str
    path: str
    band: str  # SVG path from minimum to maximum; "" if each point is one sample
    last: str
    is_shown: bool
    toggle_url: str


@dataclass(frozen=True, slots=True)
class Level:
    """Value as a height: an axis label or a threshold."""

    y: float  # per cent from the top
    words: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    key: str
    title: str
    lines: list[Line]
    levels: list[Level]
    thresholds: list[Level]
    above: list[Level]  # thresholds above the chart
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
    """Event, as a vertical mark in a chart and as text below it."""

    x: float  # in units of the chart
    label: str
    kind: str
    words: str
    url: str
    at: datetime
    has_label: bool = True  # there is room for its label above the chart

    @property
    def is_named(self) -> bool:
        """Return whether the text does not begin with the kind, so that the kind is shown."""
        return not self.words.startswith(self.kind)


def _times(history: depths.History) -> charts.Times:
    """Return the times of the chart, up to the end of the current step, so that it is stable until there is more."""
    step = history.step_s
    return charts.Times(history.since, max(-(-history.until // step) * step, history.since + step))


class Frame:
    """The shared parts of all lines of a history, computed once for hundreds of points."""

    def __init__(self, history: depths.History) -> None:
        self.history = history
        scale, step = _times(history), history.step_s
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
    """Draw the chart. `shown`: for each line (column of Point, name, whether it is drawn, URL that toggles it)."""
    drawn = [name for name, _, is_shown, _ in shown if is_shown]
    most = max((value for name in drawn for value in frame.most(name) if value is not None), default=0)
    within = [one for one in thresholds if one.value <= max(most * 4, 10)]
    heights = charts.Heights(charts.round_up(max(most, *(one.value for one in within), 1)))
    lines = []
    for name, words, is_shown, url in shown:
        values = frame.column(name)
        last = number(next((value for value in reversed(values) if value is not None), None))
        path, band = (_path(frame, values, heights.top), _band(frame, name, heights.top)) if is_shown else ("", "")
        lines.append(Line(name, words, path, band, last, is_shown, url))
    levels_with_value = [
        (one, Level(heights.per_cent(one.value), number(one.value), f"{one.rule}: {one.severity}"))
        for one in thresholds
    ]
    return Picture(
        key,
        title,
        lines,
        [Level(heights.per_cent(value), number(value)) for value in (heights.top, heights.top / 2)],
        [level for one, level in levels_with_value if one in within],
        [level for one, level in levels_with_value if one not in within],
        f"{title}: {', '.join(f'{line.name} {line.last}' for line in lines)}; peak {number(most)}",
    )


def ticks(history: depths.History) -> list[charts.Tick]:
    return _times(history).ticks()


def holes(history: depths.History) -> list[Hole]:
    scale = _times(history)
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
    """Return the vertical marks. Of adjacent ones only the first has a label; the list names them all."""
    scale, latest, taken = _times(history), float("-inf"), set[int]()
    found = [upright(mark, scale.per_cent(mark.at.timestamp())) for mark in marks]
    for n in sorted(range(len(found)), key=lambda n: found[n].x):
        if found[n].x - latest < _LABEL_PERCENT:
            taken.add(n)
        else:
            latest = found[n].x
    return [replace(one, has_label=n not in taken) for n, one in enumerate(found)]


def upright(mark: depths.Mark, x: float) -> Upright:
    return Upright(x, LABELS[mark.kind], mark.kind, mark.words, links.mark_url(mark.kind, mark.ref), mark.at)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _path(frame: Frame, values: Sequence[float | None], top: float) -> str:
    """Return a step line, broken where a value is unknown. A late sample is no gap: the last value holds until then."""
    step, per = frame.history.step_s, SIZE * 0.96 / top
    leave = 3 * step if step <= depths.SAMPLE_S else step
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
    if frame.history.step_s <= depths.SAMPLE_S or f"{name}_max" not in depths.Point._fields:
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


# -- table and script --------------------------------------------------------------------------------------------------


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
    """Return the rows, latest first. `history` has as many points as the table has rows."""
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


def values(history: depths.History) -> str:
    """Return the values for the script; one late sample is no gap."""
    columns = list(zip(*history.points, strict=True)) or [[] for _ in depths.Point._fields]
    columns_by_name = dict(zip(depths.Point._fields, columns, strict=True))
    names = ("dead", "waiting", "active", "delayed", "succeeded_per_min", "failed_per_min")
    oldest = ["" if age is None else f"oldest {duration(age)}" for age in columns_by_name["oldest_dead_age_s"]]
    return charts.reading(
        {name: columns_by_name[name] for name in names} | {"oldest": oldest},
        times=_times(history),
        at=columns_by_name["at"],
        reach=(3 if history.step_s <= depths.SAMPLE_S else 1) * history.step_s,
        gaps=[(gap.since, gap.until, gap.words) for gap in history.gaps],
        zooms=True,
    )
