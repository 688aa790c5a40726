"""Records of reports in a file, each with length and checksum, so that damage by a crash or disk is detected.

The file is not trusted. Unreadable records are noted, and records after them are read if they can be found.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator

Entry = dict[bytes, bytes]

MAGIC = b"redrive-spool-1\n"
_OF_ANY_VERSION = b"redrive-spool-"
_RECORD = struct.Struct("!II")  # bytes of the body, its CRC-32
_FIELD = struct.Struct("!HI")  # bytes of the name, bytes of the value
_MOST_FIELDS = 64  # per report; it has four
_LONGEST_NAME = 16
_LARGEST = 64 * 1024**2  # bytes read at once, whatever a length states; a report has at most 17 MB


def pack(entry: Entry) -> bytes:
    body = b"".join(_FIELD.pack(len(k), len(v)) + k + v for k, v in entry.items())
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def is_of_another_version(descriptor: int) -> bool:
    """Return whether another version of the guard wrote the file; that version reads it when it returns.

    Raises OSError.
    """
    begins = os.pread(descriptor, len(MAGIC), 0)
    return begins.startswith(_OF_ANY_VERSION) and begins.endswith(b"\n") and begins != MAGIC


def read(descriptor: int, at: int, end: int, unread: set[int]) -> Iterator[tuple[int, Entry]]:
    """Yield the reports between two offsets, each with the offset after it.

    Offsets of unreadable records go to `unread`.

    A truncated last record is not among them: its worker died while writing, so nothing relies on it.
    """
    try:
        if (
            end <= len(MAGIC)
            and not MAGIC.startswith(os.pread(descriptor, end, 0))
            and not _is_zero(descriptor, 0, end)
        ):
            unread.add(0)
        while at + _RECORD.size <= end:
            size, checksum = _RECORD.unpack(_bytes(descriptor, _RECORD.size, at))
            body = at + _RECORD.size
            is_complete = 0 < size <= min(end - body, _LARGEST)
            if not (is_complete and zlib.crc32(_bytes(descriptor, size, body)) == checksum):
                length, is_cut_off = _fields(descriptor, body, end, size, checksum)
                if not length:
                    if not is_cut_off:
                        unread.add(at)
                    if not is_complete:
                        return
                    at = body + size
                    continue
                size = length  # the length was wrong
            entry = _entry(_bytes(descriptor, size, body))
            if entry is None:
                unread.add(at)
            at = body + size
            if entry is not None:
                yield at, entry
    except OSError:  # the disk cannot read it
        unread.add(at)


def _fields(descriptor: int, at: int, end: int, size: int, checksum: int) -> tuple[int, bool]:
    """Return the length of the fields at `at` with this checksum (0: none), and whether they look truncated instead."""
    if not size and not checksum:
        return 0, _is_zero(descriptor, at, end)  # after a power loss, a disk leaves zeros after the synced bytes
    length = found = 0
    for _ in range(_MOST_FIELDS):
        if at + length + _FIELD.size > end:
            return 0, length < size
        name, value = _FIELD.unpack(_bytes(descriptor, _FIELD.size, at + length))
        # After the last field, the next record's header would be read as a field; our names never look like one.
        called = _bytes(
            descriptor, min(name, _LONGEST_NAME + 1, end - at - length - _FIELD.size), at + length + _FIELD.size
        )
        if not 0 < name <= _LONGEST_NAME or (not called.isalpha() and called):
            return 0, False
        field = _FIELD.size + name + value
        if at + length + field > end:
            return 0, length + field <= size
        if length + field > _LARGEST:
            return 0, False
        found = zlib.crc32(_bytes(descriptor, field, at + length), found)
        length += field
        if found == checksum:
            return length, False
    return 0, False


def _is_zero(descriptor: int, at: int, end: int) -> bool:
    while at < end:
        piece = _bytes(descriptor, min(1024**2, end - at), at)
        if piece.strip(b"\0"):
            return False
        at += len(piece)
    return True


def _bytes(descriptor: int, size: int, at: int) -> bytes:
    """Return all `size` bytes. Raises OSError, also if the file was truncated meanwhile."""
    found = os.pread(descriptor, size, at)
    if len(found) < size:
        raise OSError(f"{len(found)} bytes where there were {size}")
    return found


def _entry(body: bytes) -> Entry | None:
    entry: Entry = {}
    at = 0
    while at < len(body):
        if at + _FIELD.size > len(body):
            return None
        name_size, value_size = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        entry[body[at : at + name_size]] = body[at + name_size : at + name_size + value_size]
        at += name_size + value_size
    return entry if at == len(body) else None
