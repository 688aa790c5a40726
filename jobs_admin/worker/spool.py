"""Reports that the store did not take, on the worker's own disk until it does.

One worker writes to files of its own (mode 0600, in a directory of mode 0700); each record has its length and a
checksum and is fsynced before `append` returns. A file is locked by the process that owns it, so the files of a dead
worker are distinguishable from those of a living one, and are shipped by whoever starts next. What is oldest is kept:
when the directory is full, new reports are refused, and the caller counts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs_admin.worker.records import MAGIC, Entry, is_of_another_version, pack, read

MAX_BYTES = 1024**3
BATCH = 100  # records shipped in one go
SHARES = 1_024  # of the room, of which a worker takes one before it counts anew what all of them have there
MOST_COUNTED = 256  # files, while a job waits; of more, what the heartbeat counted last is believed
BAD_SHARE = 10  # of the room, of which damaged files may take one
MOST_GONE = 8  # files whose directory went, each with an open descriptor

logger = logging.getLogger("redrive.worker")


class SpoolFull(Exception):
    """The directory holds as much as it may. The report was not kept; those that wait are untouched."""


def directory_for(source: str, configured: str = "") -> Path:
    """Return where a source's spool is: REDRIVE_SPOOL, else a folder of this user in the temporary directory."""
    return (Path(configured) if configured else _unconfigured()) / source


def _unconfigured() -> Path:
    return Path(tempfile.gettempdir()) / f"redrive-spool-{os.getuid()}"


def own_directory(directory: Path) -> None:
    """Make it where it is not there. Raises PermissionError for one that is not this user's alone, or not for long."""
    # A directory in /tmp that someone else prepared could hand our reports to them, and who may write to the one above
    # could take ours away.
    above = directory.parent
    if above == _unconfigured():
        above.mkdir(mode=0o700, exist_ok=True)
        status = above.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{above} must be a directory of this user's own")
        if status.st_mode & 0o077:
            above.chmod(0o700)
    elif not above.exists():
        above.mkdir(parents=True, exist_ok=True, mode=0o755)
    status = above.stat()
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{above} must not be writable by all (or have the sticky bit, as /tmp has)")
    directory.mkdir(exist_ok=True, mode=0o700)
    if directory.lstat().st_uid not in {os.getuid(), 0}:  # also of a link
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")


class Spool:
    """The spool of one worker process. `append` may be called from any thread; `drain` from one."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.waiting = 0  # records of this worker that are not shipped yet
        self._is_closed = False
        self.unread = 0  # records that could not be shipped, as they cannot be read; to be set to 0 by who counts them
        self._lock = threading.Lock()
        self._open: _File | None = None
        # This worker's own that are not written to any more, oldest first. One at most, but for those whose directory went:
        # each of them holds a descriptor, and closing one gives up its lock.
        self._sealed: list[_File] = []
        self._made = 0
        self._told: set[str] = set()  # files that the log has named
        self._used: int | None = None  # bytes in the directory; None: to be counted
        self._added = 0  # bytes of these that are ours, since they were counted

    def append(self, entry: Entry) -> None:
        """Keep a report. On the disk when this returns. Raises SpoolFull or OSError: then it was not kept."""
        record = pack(entry)
        with self._lock:
            # Others write there too: each of them takes a small share of the room before it looks again.
            if self._used is None or self._added > self.max_bytes // SHARES:
                counted = self._bytes_on_disk(MOST_COUNTED)
                self._used, self._added = (self._used or 0) if counted is None else counted, 0
            self._give_up_the_gone()
            if self._used + len(record) > self.max_bytes:
                raise SpoolFull
            if self._open is None:
                self._open = self._new_file()
            self._open.write(record)
            self._open.waiting += 1
            self._used += len(record)
            self._added += len(record)
            self.waiting += 1

    def drain(self, ship: Callable[[list[Entry]], None], batch_bytes: int = 4 * 1024**2) -> int:
        """Ship what waits, oldest first: own files, then those of dead workers. Returns how many records went.

        A batch ends at BATCH records, or with the one that fills `batch_bytes`.

        `ship` raises when the store does not take a batch; what was not shipped stays where it is. A batch of
        which the outcome is unknown is shipped again: ingest files a report once, however often it comes.
        """
        shipped = 0
        try:
            shipped += self._ship_sealed(ship, batch_bytes)
            # Sealed only once something of it has gone: a store that takes none must not cost a file each time it is asked.
            if (file := self._open) is not None:
                shipped += self._ship(file, ship, batch_bytes, own=True)
                with self._lock:
                    if self._open is file:  # else its directory went, and `append` has sealed it
                        self._sealed.append(file)
                        self._open = None
                shipped += self._ship_sealed(ship, batch_bytes)
            for orphan in self._orphans():
                try:
                    shipped += self._ship(orphan, ship, batch_bytes, own=False)
                except BaseException:
                    orphan.close()
                    raise
                with self._lock:
                    self._finish(orphan)
        finally:
            self._count()
        return shipped

    def tend(self) -> None:
        """Count what is there, and write again what stood in a directory that was deleted. Raises OSError.

        Takes its time: for the heartbeat, whose thread also drains, never for a job.
        """
        with self._lock:
            self._give_up_the_gone()
            gone = [file for file in self._sealed if not file.is_in_place()]
        for file in gone:
            with self._lock:
                again = self._new_file()
            try:
                again.take_over(file)
            except OSError:
                again.delete()
                raise
            with self._lock:
                if file in self._sealed:
                    again.waiting = file.waiting
                    self._sealed[self._sealed.index(file)] = again
                    file.close()
                else:  # the worker ends, and has seen to it
                    again.delete()
        self._count()

    def _give_up_the_gone(self) -> None:
        """With the lock held. Someone cleaned up: what is written to a file without a name dies with this process."""
        if self._open is not None and len(self._sealed) < MOST_GONE and not self._open.is_in_place():
            self._sealed.append(self._open)
            self._open = None

    def _count(self) -> None:
        with self._lock:
            self._added = 0
        used = self._bytes_on_disk()
        with self._lock:
            self._used = (used or 0) + self._added

    def close(self) -> None:
        """Give up the locks: what still waits belongs to whoever starts next.

        A `drain` in another thread, whose store hangs, then ends with OSError before it ships or deletes any more.
        """
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(OSError):
            self.tend()  # nobody finds what has no name
        with self._lock:
            for file in [*self._sealed, *([self._open] if self._open else [])]:
                file.close()
            self._sealed, self._open = [], None

    def _ship_sealed(self, ship: Callable[[list[Entry]], None], batch_bytes: int) -> int:
        shipped = 0
        while self._sealed:
            shipped += self._ship(self._sealed[0], ship, batch_bytes, own=True)
            with self._lock:
                self._see_that_it_is_open()
                self._finish(self._sealed.pop(0))
        return shipped

    def _finish(self, file: _File) -> None:
        """With the lock held. All that can be read of it was shipped."""
        lost = max(len(file.unread), file.waiting)
        self.waiting -= file.waiting
        if not lost:
            file.delete()
            return
        self.unread += lost
        aside = file.set_aside()
        room = self.max_bytes // BAD_SHARE
        for path in sorted(self.directory.glob("*.bad")):
            with contextlib.suppress(OSError):
                room -= path.lstat().st_size
                if room < 0:
                    path.unlink()
        logger.error(
            "Redrive's spool %s is damaged: at least %d reports in it cannot be read. All others were shipped. %s",
            file.path,
            lost,
            f"It is kept as {aside.name}." if aside.exists() else "It is not kept.",
        )

    def _ship(self, file: _File, ship: Callable[[list[Entry]], None], batch_bytes: int, *, own: bool) -> int:
        with self._lock:  # what is being written to it meanwhile has no end yet
            end = file.size
        at, shipped, batch, size = 0, 0, [], 0
        for at, entry in file.records(end):
            batch.append(entry)
            size += sum(map(len, entry.values()))
            if len(batch) == BATCH or size >= batch_bytes:
                self._see_that_it_is_open()
                ship(batch)
                file.shipped = at
                self._settle(file, len(batch), own)
                shipped, batch, size = shipped + len(batch), [], 0
        self._see_that_it_is_open()
        if batch:
            ship(batch)
            file.shipped = at
            self._settle(file, len(batch), own)
            self._see_that_it_is_open()
        return shipped + len(batch)

    def _see_that_it_is_open(self) -> None:
        if self._is_closed:
            raise OSError("the spool was closed while it was shipped")

    def _settle(self, file: _File, count: int, own: bool) -> None:
        if own:
            with self._lock:
                self.waiting -= count
                file.waiting -= count

    def _new_file(self) -> _File:
        own_directory(self.directory)
        self._made += 1
        # Ordered by name: the time, then a number for two files of one nanosecond-poor clock tick.
        path = self.directory / f"{time.time_ns():020d}-{os.getpid()}-{self._made}.spool"
        return _File.create(path)

    def _bytes_on_disk(self, most: int | None = None) -> int | None:
        """None where there are more files than `most`."""
        total = seen = 0
        with contextlib.suppress(OSError), os.scandir(self.directory) as there:
            for file in there:
                seen += 1
                if most is not None and seen > most:
                    return None
                if file.name.endswith((".spool", ".bad")):
                    with contextlib.suppress(OSError):
                        total += file.stat(follow_symlinks=False).st_size
        return total

    def _orphans(self) -> Iterator[_File]:
        for path in sorted(self.directory.glob("*.spool")):
            # Our own lock never stops ourselves, and closing a second handle would drop it (POSIX locks).
            if path.name in _owned:
                continue
            file = _File.adopt(path)
            if file is None:
                continue
            if file.is_of_another_version():
                file.close()
                if path.name not in self._told:
                    self._told.add(path.name)
                    logger.warning("Redrive leaves %s where it is: another version of the guard wrote it.", path)
                continue
            yield file


# Files that this process holds, whichever Spool they belong to.
_owned: set[str] = set()


class _File:
    """One file of records, locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.shipped = len(MAGIC)  # records before this offset have left
        self.waiting = 0  # records that this process wrote to it and that have not left
        self.unread: set[int] = set()  # offsets of those that cannot be read
        _owned.add(path.name)

    @classmethod
    def create(cls, path: Path) -> _File:
        # Under another name until it is locked and known to be ours: who looks for files of the dead would find an empty one,
        # take it away, and what is written to it then would be nowhere.
        made = path.with_suffix(".new")
        descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _owned.add(path.name)
        try:
            # A lock of the process, not of the descriptor: pool children inherit descriptors, never this.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, MAGIC)  # synced with the first record
            made.rename(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            _owned.discard(path.name)
            for name in (made, path):
                with contextlib.suppress(OSError):
                    name.unlink()
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @classmethod
    def adopt(cls, path: Path) -> _File | None:
        """The file of a dead worker, or None while its owner lives (or another worker was first)."""
        try:
            # Whatever bears such a name: no link is followed, no pipe waited for.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != path.parent.stat().st_uid:
                os.close(descriptor)
                return None
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Shipped and removed by another worker between our listing and our lock?
            if os.fstat(descriptor).st_nlink == 0:
                os.close(descriptor)
                return None
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def is_in_place(self) -> bool:
        """Return whether it is found under its name, as others would look for it."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def take_over(self, other: _File) -> None:
        """Copy the reports of the other file that are not shipped. On the disk when this returns. Raises OSError."""
        at = other.shipped
        while piece := os.pread(other.descriptor, 1024**2, at):
            at += len(piece)
            while piece:
                piece = piece[os.write(self.descriptor, piece) :]
        os.fsync(self.descriptor)

    def write(self, record: bytes) -> None:
        size = self.size
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

    def records(self, end: int) -> Iterator[tuple[int, Entry]]:
        """The records from `shipped` to `end`, each with the offset behind it."""
        return read(self.descriptor, self.shipped, end, self.unread)

    def is_of_another_version(self) -> bool:
        try:
            return is_of_another_version(self.descriptor)
        except OSError:
            return False

    def set_aside(self) -> Path:
        """Rename it to a name that is never shipped. Return the new path."""
        aside = self.path.with_suffix(".bad")
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        self.close()
        return aside

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        # Never by its number again, which may be another file's then.
        descriptor, self.descriptor = self.descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)
        _owned.discard(self.path.name)
