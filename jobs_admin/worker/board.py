"""A text that a worker's main process writes and its pool children read, without a call and without a lock.

The memory is shared by all that are forked after it was made. It has two places: a text is written into the one that is
not in force, and then the number that names it. A reader that was interrupted for as long as two texts took finds that
the checksum is wrong, and reads again. Nothing here waits, so a child that is killed while it reads holds up no other.
"""

from __future__ import annotations

import mmap
import struct
import zlib

ROOM = 1024**2  # bytes of a text; memory is only taken for what is written

_NUMBER = struct.Struct("=Q")
_HEAD = struct.Struct("=II")  # bytes of the text, its CRC-32
_READS = 100


class TooLong(ValueError):
    """The text does not fit. What was on the board before still is."""


class Board:
    """`write` is called by one process, in one thread; `read` and `number` by any."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._memory = mmap.mmap(-1, _NUMBER.size + 2 * (_HEAD.size + room))

    @property
    def number(self) -> int:
        """Another one for each text; 0 before the first. Costs 0.2 microseconds, so it may be asked for each job."""
        found: int = _NUMBER.unpack_from(self._memory)[0]
        return found

    def write(self, text: bytes) -> None:
        if len(text) > self._room:
            raise TooLong(f"{len(text)} bytes are more than {self._room}")
        number = self.number + 1
        at = self._place(number)
        head = _HEAD.pack(len(text), zlib.crc32(text))
        self._memory[at : at + _HEAD.size + len(text)] = head + text
        # A slice, not `pack_into`, which clears the place first: a reader would meet number 0.
        self._memory[: _NUMBER.size] = _NUMBER.pack(number)

    def read(self) -> tuple[int, bytes]:
        """The number and the text that is in force; (0, b"") before the first."""
        for _ in range(_READS):
            number = self.number
            if not number:
                return 0, b""
            at = self._place(number)
            size, checksum = _HEAD.unpack_from(self._memory, at)
            if size <= self._room:
                text = self._memory[at + _HEAD.size : at + _HEAD.size + size]
                if zlib.crc32(text) == checksum:
                    return number, text
        raise RuntimeError("the text on the board changes faster than it can be read")

    def _place(self, number: int) -> int:
        return _NUMBER.size + (number % 2) * (_HEAD.size + self._room)
