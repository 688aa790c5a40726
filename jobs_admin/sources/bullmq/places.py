"""Reading position in a queue of BullMQ whose jobs only wait."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LISTS = ("wait", "paused")


@dataclass(slots=True)
class Place:
    """Reading position in one queue. Lists from their oldest end, where nothing is added; the sorted set by its scores."""

    count: int = 0  # the queue's counter of ids: how many were ever added
    lists: dict[str, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(LISTS, (0, 0)))  # read, length
    score: float = 0.0
    below: int = 0  # how many are up to that score
    above: int = 0  # how many are beyond it: not part of the place
    mark: tuple[str, str] = ("", "")  # the job that was read last, and when it was made: its id may be given again

    @classmethod
    def read(cls, text: str) -> Place:
        try:
            count, score, below, (job_id, made), *lists = json.loads(text)
            pairs = zip(LISTS, ((_number(at), _number(size)) for at, size in lists), strict=True)
            f"{job_id}{made}".encode()  # a lone surrogate, which is in no name of Redis
            return cls(_number(count), dict(pairs), _finite(score), _number(below), mark=(str(job_id), str(made)))
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            return cls()

    def to_text(self) -> str:
        return json.dumps([self.count, self.score, self.below, self.mark, *self.lists.values()])

    def update(self, count: int, sizes: Sequence[int], below: int, above: int, *, is_another: bool = False) -> None:
        """Take over the present state; `is_another`: another job has the id of the mark.

        Where some may have been taken out of what was read, as many are read again: a job that is reported twice is
        filed once.
        """
        added = max(0, count - self.count)
        if count < self.count or is_another:  # its data was lost: it began again
            self.lists, self.score, self.below = dict.fromkeys(LISTS, (0, 0)), 0.0, 0
            below, above = 0, below + above
        for name, size in zip(LISTS, sizes, strict=True):
            at, before = self.lists[name]
            taken = max(0, before + added - size)
            self.lists[name] = max(0, min(at, size) - taken), size
        if below and (below > self.below or added > above + sum(sizes)):
            # Something came in before the place: of another priority, or the counter within the scores began again.
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

    One that is none of ours raises ValueError or TypeError: the queue is then read from its beginning.
    """
    if not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)
