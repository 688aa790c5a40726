"""Counters of a worker, including its pool's children: the process that sees an event adds one, the main process reads.

Processes forked after its creation share the memory. Each thread of each process has its own slot, so there is no lock
that a killed child could leave locked.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading

_PLACES = 4_096  # a replacement child continues its predecessor's number
_NUMBER = struct.Struct("=Q")


class Tally:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PLACES * _NUMBER.size)

    def add(self) -> None:
        place = hash((os.getpid(), threading.get_ident())) % _PLACES * _NUMBER.size
        _NUMBER.pack_into(self._memory, place, _NUMBER.unpack_from(self._memory, place)[0] + 1)

    @property
    def total(self) -> int:
        """Total of all current and former processes."""
        return sum(number for (number,) in _NUMBER.iter_unpack(self._memory[:]))
