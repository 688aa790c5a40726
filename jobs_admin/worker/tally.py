"""Counts of what happened in a worker, its pool's children included: the process that sees it adds one, the main process reads.

The memory is shared by all that are forked after it was made. Each thread of each process adds in a place of its own, so
that there is no lock which a child that is killed would keep.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading

_PLACES = 4_096  # a child that takes the place of an ended one goes on from its number
_NUMBER = struct.Struct("=Q")


class Tally:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PLACES * _NUMBER.size)

    def add(self) -> None:
        place = hash((os.getpid(), threading.get_ident())) % _PLACES * _NUMBER.size
        _NUMBER.pack_into(self._memory, place, _NUMBER.unpack_from(self._memory, place)[0] + 1)

    @property
    def total(self) -> int:
        """Return the total of all processes that are, or were."""
        return sum(number for (number,) in _NUMBER.iter_unpack(self._memory[:]))
