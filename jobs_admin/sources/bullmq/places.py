"""Reading position in a BullMQ queue whose jobs only wait."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LISTS = ("wait", "paused")


@dataclass(slots=True)
class Place:
    """Reading position in one queue.

    Lists are read from their oldest end, where nothing is added; the sorted set by score.
    """

    count: int = 0  # queue's id counter: total of jobs added
    lists: dict[str, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(LISTS, (0, 0)))  # read, length
    score: float = 0.0
    below: int = 0  # number up to that score
    above: int = 0  # number above it: not part of the position
    mark: tuple[str, str] = ("", "")  # last job read, and its creation time: its id may be reused

    @classmethod
    def read(cls, text: str) -> Place:
        try:
            count, score, below, (job_id, made), *lists = json.loads(text)
            pairs = zip(LISTS, ((_number(at), _number(size)) for at, size in lists), strict=True)
            f"{job_id}{made}".encode()  # raises for a lone surrogate, which no name in Redis has
            return cls(_number(count), dict(pairs), _finite(score), _number(below), mark=(str(job_id), str(made)))
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            return cls()

    def to_text(self) -> str:
        return json.dumps([self.count, self.score, self.below, self.mark, *self.lists.values()])

    def update(self, count: int, sizes: Sequence[int], below: int, above: int, *, is_another: bool = False) -> None:
        """Update to the current state; `is_another`: another job has the mark's id.

        If jobs may have been removed from the part already read, as many are read again: a job reported twice is filed
        once.
        """
        added = max(0, count - self.count)
        if count < self.count or is_another:  # the queue's data was lost and it started again
            self.lists, self.score, self.below = dict.fromkeys(LISTS, (0, 0)), 0.0, 0
            below, above = 0, below + above
        for name, size in zip(LISTS, sizes, strict=True):
            at, before = self.lists[name]
            taken = max(0, before + added - size)
            self.lists[name] = max(0, min(at, size) - taken), size
        if below and (below > self.below or added > above + sum(sizes)):
            # Jobs were added before the position: with another priority, or because the counter within the scores
            # restarted.
            self.score, below, above = 0.0, 0, above + below
        self.count, self.below, self.above = count, below, above

    def advance(self, scores: Sequence[float]) -> None:
        if scores:
            self.score = scores[-1]
            self.below += len(scores)
            self.above -= len(scores)
        else:
            self.above = 0


def _number(value: object) -> int:
    """Return a count.

    Raises ValueError or TypeError for an invalid one: the queue is then read from its start.
    """
    if not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)
