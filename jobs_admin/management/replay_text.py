"""A replay on a terminal: its plan as a small picture, and its progress as a bar or as lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.core.management.base import OutputWrapper

from jobs_admin.core.pacing import Outlook
from jobs_admin.core.text import terminal_line
from jobs_admin.models import Replay
from jobs_admin.replays import Preview

_WIDTH = 30
_LINE_EVERY_S = 30.0
_COLUMNS, _ROWS = 60, 6


class Progress:
    """A terminal sees one line that changes; a log file gets a line when something has."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out
        self._said: tuple[Any, ...] = ()
        self._said_at = 0.0

    def show(self, replay: Replay) -> None:
        line = _line(replay)
        if self._out.isatty():
            self._out.write(f"\r\033[K{line}", ending="")
            self._out.flush()
            return
        ended = replay.settled + replay.uncertain + replay.cancelled
        state = (replay.state, ended * 10 // max(1, replay.total))
        if state != self._said or time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._said, self._said_at = state, time.monotonic()
            self._out.write(line)
            self._out.flush()

    def end(self) -> None:
        if self._out.isatty():
            self._out.write("")


def _line(replay: Replay) -> str:
    ended = replay.settled + replay.uncertain + replay.cancelled
    filled = round(_WIDTH * ended / max(1, replay.total))
    line = (
        f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {ended:,}/{replay.total:,} ended, {replay.sent_in_all:,} sent, "
        f"{replay.failed_again:,} failed again ({replay.state.replace('_', ' ')})"
    )
    return f"{line} {terminal_line(replay.held_because, 80)}" if replay.held_because else line


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan(seen: Preview) -> Iterator[str]:
    """Starts a second over time, and what failures would change, line by line."""
    planned, *others = seen.simulation.outlooks
    yield from _picture(planned)
    for one in others:
        share = f"{one.failing * 100:.0f} % fail again"
        if one.held_after_s is not None:
            why = one.held_because.sentence() if one.held_because else ""
            yield f"  {share}: held after about {one.sent:,} jobs, {duration(one.held_after_s)} in. {why}"
        elif one.ends_after_s is not None:
            yield f"  {share}: ends after {duration(one.ends_after_s)}."
        else:
            yield f"  {share}: it does not come to an end at this pace."
    for text in seen.simulation.assumptions:
        yield f"  supposed: {text}"


def _picture(planned: Outlook) -> Iterator[str]:
    """Rows of a bar chart, the highest first; a column is a stretch of time."""
    rates = [rate for _, rate in planned.starts]
    if len(rates) < 2 or not max(rates):
        return
    columns = min(_COLUMNS, len(rates))
    each = [rates[n * len(rates) // columns : (n + 1) * len(rates) // columns] for n in range(columns)]
    heights = [sum(some) / len(some) for some in each]
    top = max(heights)
    for row in range(_ROWS, 0, -1):
        label = f"{top:,.3g}/s" if row == _ROWS else ""
        yield (
            f"{label:>9} |" + "".join("#" if height > top * (row - 0.5) / _ROWS else " " for height in heights).rstrip()
        )
    total_s = planned.starts[-1][0] + (planned.starts[1][0] - planned.starts[0][0])
    yield f"{'0 s':>9} +{'-' * columns} {duration(total_s)}"
