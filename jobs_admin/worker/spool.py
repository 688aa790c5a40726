"""Reports that the store did not take, on the worker's own disk until it does.

One worker writes to files of its own (mode 0600, in a directory of mode 0700); each record has its length and a
checksum and is fsynced before `append` returns. A file is locked by the process that owns it, so the files of a
dead worker can be told from those of a living one, and are shipped by whoever starts next. What is oldest is
kept: when the directory is full, new reports are refused, and the caller counts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

Entry = dict[bytes, bytes]

_MAGIC = b"redrive-spool-1\n"
_RECORD = struct.Struct("!II")  # bytes of the body, its CRC-32
_FIELD = struct.Struct("!HI")  # bytes of the name, bytes of the value

MAX_BYTES = 1024**3
BATCH = 100  # records shipped in one go


class SpoolFull(Exception):
    """The directory holds as much as it may. The report was not kept; those that wait are untouched."""


def directory_for(source: str, configured: str = "") -> Path:
    """Where a source's spool is: REDRIVE_SPOOL, else a folder of this user in the temporary directory."""
    root = Path(configured) if configured else Path(tempfile.gettempdir()) / f"redrive-spool-{os.getuid()}"
    return root / source


def own_directory(directory: Path) -> None:
    """Make it where it is not there. Raises PermissionError for one that is not this user's alone."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        # A directory in /tmp that someone else prepared could hand our reports to them.
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")


class Spool:
    """The spool of one worker process. `append` may be called from any thread; `drain` from one."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.waiting = 0  # records of this worker that are not shipped yet
        self._lock = threading.Lock()
        self._open: _File | None = None
        self._sealed: list[_File] = []  # this worker's own, oldest first
        self._made = 0
        self._used: int | None = None  # bytes in the directory; None: to be counted

    def append(self, entry: Entry) -> None:
        """Keep a report. On the disk when this returns. Raises SpoolFull or OSError: then it was not kept."""
        body = b"".join(_FIELD.pack(len(k), len(v)) + k + v for k, v in entry.items())
        record = _RECORD.pack(len(body), zlib.crc32(body)) + body
        with self._lock:
            if self._used is None:
                self._used = self._bytes_on_disk()
            if self._used + len(record) > self.max_bytes:
                raise SpoolFull
            if self._open is None:
                self._open = self._new_file()
            self._open.write(record)
            self._used += len(record)
            self.waiting += 1

    def drain(self, ship: Callable[[list[Entry]], None], batch_bytes: int = 4 * 1024**2) -> int:
        """Ship what waits, oldest first: own files, then those of dead workers. Returns how many records went.

        A batch ends at BATCH records, or with the one that fills `batch_bytes`.

        `ship` raises when the store does not take a batch; what was not shipped stays where it is. A batch of
        which the outcome is unknown is shipped again: ingest files a report once, however often it comes.
        """
        shipped = 0
        with self._lock:
            if self._open is not None:
                self._sealed.append(self._open)
                self._open = None
        try:
            while self._sealed:
                shipped += self._ship(self._sealed[0], ship, batch_bytes, own=True)
                self._sealed.pop(0).delete()
            for file in self._orphans():
                try:
                    shipped += self._ship(file, ship, batch_bytes, own=False)
                except BaseException:
                    file.close()
                    raise
                file.delete()
        finally:
            with self._lock:
                self._used = None
        return shipped

    def close(self) -> None:
        """Give up the locks: what still waits belongs to whoever starts next."""
        with self._lock:
            for file in [*self._sealed, *([self._open] if self._open else [])]:
                file.close()
            self._sealed, self._open = [], None

    def _ship(self, file: _File, ship: Callable[[list[Entry]], None], batch_bytes: int, *, own: bool) -> int:
        shipped, batch, size = 0, [], 0
        for at, entry in file.records():
            batch.append(entry)
            size += sum(map(len, entry.values()))
            if len(batch) == BATCH or size >= batch_bytes:
                ship(batch)
                file.shipped = at
                self._settle(len(batch), own)
                shipped, batch, size = shipped + len(batch), [], 0
        if batch:
            ship(batch)
            self._settle(len(batch), own)
        return shipped + len(batch)

    def _settle(self, count: int, own: bool) -> None:
        if own:
            with self._lock:
                self.waiting -= count

    def _new_file(self) -> _File:
        own_directory(self.directory)
        self._made += 1
        # Ordered by name: the time, then a number for two files of one nanosecond-poor clock tick.
        path = self.directory / f"{time.time_ns():020d}-{os.getpid()}-{self._made}.spool"
        return _File.create(path)

    def _bytes_on_disk(self) -> int:
        total = 0
        with contextlib.suppress(OSError):
            for path in self.directory.glob("*.spool"):
                with contextlib.suppress(OSError):
                    total += path.stat().st_size
        return total

    def _orphans(self) -> Iterator[_File]:
        for path in sorted(self.directory.glob("*.spool")):
            # Our own lock never stops ourselves, and closing a second handle would drop it (POSIX locks).
            if path.name in _held:
                continue
            file = _File.adopt(path)
            if file is not None:
                yield file


# Files that this process holds, whichever Spool they belong to.
_held: set[str] = set()


class _File:
    """One file of records, locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.shipped = len(_MAGIC)  # records before this offset have left
        _held.add(path.name)

    @classmethod
    def create(cls, path: Path) -> _File:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # A lock of the process, not of the descriptor: pool children inherit descriptors, never this.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, _MAGIC)  # synced with the first record
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @classmethod
    def adopt(cls, path: Path) -> _File | None:
        """The file of a dead worker, or None while its owner lives (or another worker was first)."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Shipped and removed by another worker between our listing and our lock?
            if os.fstat(descriptor).st_nlink == 0:
                os.close(descriptor)
                return None
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def write(self, record: bytes) -> None:
        size = os.fstat(self.descriptor).st_size
        try:
            view = memoryview(record)
            while view:
                view = view[os.write(self.descriptor, view) :]
            os.fsync(self.descriptor)
        except OSError:
            # Half a record in the middle would hide those behind it.
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, size)
            raise

    def records(self) -> Iterator[tuple[int, Entry]]:
        """The whole records from `shipped` on, each with the offset behind it.

        A last record that was cut off (its worker died while writing) ends the file; one whose checksum is
        wrong is left out, since no report can be read from it.
        """
        at, end = self.shipped, os.fstat(self.descriptor).st_size
        if os.pread(self.descriptor, len(_MAGIC), 0) != _MAGIC:
            return
        while at + _RECORD.size <= end:
            size, checksum = _RECORD.unpack(os.pread(self.descriptor, _RECORD.size, at))
            at += _RECORD.size
            if at + size > end:
                return
            body = os.pread(self.descriptor, size, at)
            at += size
            if zlib.crc32(body) == checksum:
                yield at, _entry(body)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        _held.discard(self.path.name)


def _entry(body: bytes) -> Entry:
    entry: Entry = {}
    at = 0
    while at < len(body):
        name_size, value_size = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        entry[body[at : at + name_size]] = body[at + name_size : at + name_size + value_size]
        at += name_size + value_size
    return entry
