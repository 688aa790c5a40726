"""Matches of a search by text, which is compared part by part until enough are found."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

_MERGED = 256  # matches of several sides that are merged at once


@dataclass(frozen=True, slots=True)
class Compared:
    """A part of the failures whose text was compared."""

    matches: list[int]  # highest first
    number: int  # of failures, at most


class Matches:
    """Matches of a search by text, highest first: as many as are asked for are looked for."""

    def __init__(self, parts: Iterator[Compared]) -> None:
        self.found: list[int] = []
        self.compared = 0
        self.is_complete = False
        self._parts = parts

    def read(self, limit: int) -> list[int]:
        self.count(limit)
        return self.found[:limit]

    def count(self, most: int, *, compared: int | None = None) -> int:
        """Return the number, counted up to `most`, or less after `compared` failures."""
        while len(self.found) < most and not self.is_complete and (compared is None or self.compared < compared):
            if (part := next(self._parts, None)) is None:
                self.is_complete = True
            else:
                self.found += part.matches
                self.compared += part.number
        return len(self.found) if self.is_complete else min(len(self.found), most)


def merge(sides: Sequence[Iterator[Compared]]) -> Iterator[Compared]:
    """The matches of any side, highest first, each once."""
    each = [(pk for part in side for pk in part.matches) for side in sides]
    merged = (pk for pk, _ in groupby(heapq.merge(*each, reverse=True)))
    while found := list(islice(merged, _MERGED)):
        yield Compared(found, len(found))
