"""Spool: reports that the store did not accept, on the worker's own disk until it does.

Each worker writes its own files (mode 0600, directory mode 0700); each record has length and checksum and is fsynced
before `append` returns. Files are locked by their process, so a dead worker's files are recognisable, and the next
worker to start ships them. The oldest reports are kept: when the directory is full, new reports are refused, and the
caller counts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from jobs_admin.worker.records import MAGIC, Entry, is_of_another_version, pack, read

MAX_BYTES = 1024**3
BATCH = 100  # records shipped at once
SHARES = 1_024  # of the capacity; a worker uses one share before it measures the directory again
MOST_COUNTED = 256  # files measured while a job waits; with more, the heartbeat's last measurement is used
BAD_SHARE = 10  # of the capacity; limit for damaged files
MOST_GONE = 8  # files whose directory was deleted, each with an open descriptor

logger = logging.getLogger("redrive.worker")


class SpoolFull(Exception):
    """The directory is full. The report was not stored; waiting reports are unchanged."""


def directory_for(source: str, configured: str = "", store_url: str = "") -> Path:
    """Return a source's spool directory: under REDRIVE_SPOOL, else under this user's folder in the temporary
    directory, separate for each store because two desks may have sources of one name.
    """
    return Path(configured) / source if configured else _unconfigured() / f"{source}@{_address_hash(store_url)}"


def former_directory(source: str, configured: str = "") -> Path | None:
    """Return the directory that earlier versions shared between a user's stores; None if REDRIVE_SPOOL is set."""
    return None if configured else _unconfigured() / source


def _address_hash(url: str) -> str:
    """Return a hash of a store's address, without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the store rejects and reports it
        parts = urlsplit("")
    place = parts.netloc.rpartition("@")[2].lower()
    place = re.sub(r"^(localhost|\[::1\])(?=:|$)", "127.0.0.1", place)
    place = ",".join(sorted(place.split(",")))  # of Sentinels, in any order
    place += "" if ":" in place or not place else ":6379"
    return hashlib.sha256(f"{place}/{parts.path.strip('/') or '0'}".encode()).hexdigest()[:12]


def _unconfigured() -> Path:
    return Path(tempfile.gettempdir()) / f"redrive-spool-{os.getuid()}"


def own_directory(directory: Path) -> None:
    """Create the directory if missing. Raises PermissionError if other users can or could access it."""
    # A directory in /tmp prepared by another user could give that user our reports, and write access to the parent
    # allows removing it.
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
    if directory.lstat().st_uid not in {os.getuid(), 0}:  # checks a symbolic link too
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")


class Spool:
    """The spool of one worker process. `append` may be called from any thread; `drain` from one."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES, former: Path | None = None) -> None:
        """`former`: directory from which dead workers' files are taken over."""
        self.directory = directory
        self.former = former
        self.max_bytes = max_bytes
        self.waiting = 0  # records of this worker not shipped yet
        self._is_closed = False
        self.unread = 0  # records not shipped because they are unreadable; reset by the caller that counts them
        self._lock = threading.Lock()
        self._open: _File | None = None
        # This worker's own files that are no longer written, oldest first. At most one, plus those whose directory was
        # deleted: each of them has an open descriptor, and closing it would release its lock.
        self._sealed: list[_File] = []
        self._made = 0
        self._told: set[str] = set()  # files already logged
        self._used: int | None = None  # bytes in the directory; None: not measured
        self._added = 0  # our bytes among these since the measurement

    def append(self, entry: Entry) -> None:
        """Store a report durably. Raises SpoolFull or OSError; the report is then not stored."""
        record = pack(entry)
        with self._lock:
            # Other workers write there too: each uses a small share of the capacity before it measures again.
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
        """Ship waiting reports, oldest first: own files, then dead workers'. Return the number of records shipped.

        A batch ends at BATCH records, or with the record that reaches `batch_bytes`.

        `ship` raises if the store does not accept a batch; unshipped records stay. A batch with an unknown outcome is
        shipped again: ingest files a report once, however often it arrives.
        """
        shipped = 0
        try:
            shipped += self._ship_sealed(ship, batch_bytes)
            # Closed for writing only after some of it was shipped: a store that accepts nothing must not cost a file
            # per attempt.
            if (file := self._open) is not None:
                shipped += self._ship(file, ship, batch_bytes, own=True)
                with self._lock:
                    # otherwise its directory was deleted, and `append` has closed it for writing
                    if self._open is file:
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
        """Measure the directory, and rewrite files whose directory was deleted. Raises OSError.

        Slow: for the heartbeat, whose thread also drains, never for a job.
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
                else:  # the worker is shutting down and has handled it
                    again.delete()
        self._count()

    def _give_up_the_gone(self) -> None:
        """Stop writing to a deleted file: its records would die with this process. Needs the lock."""
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
        """Release the locks: reports still waiting belong to the next worker.

        A `drain` in another thread whose store hangs then ends with OSError before it ships or deletes more.
        """
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(OSError):
            self.tend()  # a file without a name cannot be found
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
        """Count unreadable records of a file after its readable ones were shipped. Needs the lock."""
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
        with self._lock:  # a record being written has no end yet
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
        """Return the bytes in the directory; None if there are more than `most` files."""
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

    def take_over_former(self) -> None:
        """Move dead workers' files from the former directory, and copy the last policies and pauses if there are
        none here.
        """
        if self.former is None or not self.former.is_dir():
            return
        with contextlib.suppress(OSError):  # files that cannot be moved stay and are tried again
            own_directory(self.former)
            own_directory(self.directory)
            for path in sorted([*self.former.glob("*.spool"), *self.former.glob("*.dropped")]):
                if path.name not in _owned and (file := _File.adopt(path)) is not None:
                    try:
                        path.rename(self.directory / path.name)
                    finally:
                        file.close()
            for path in self.former.glob("*.json"):
                if not (self.directory / path.name).exists():
                    shutil.copy2(path, self.directory)

    def _orphans(self) -> Iterator[_File]:
        self.take_over_former()
        for path in sorted(self.directory.glob("*.spool")):
            # Our own lock does not exclude us, and closing a second handle would drop it (POSIX locks).
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


# Files open in this process, of any Spool.
_owned: set[str] = set()


class _File:
    """One file of records, locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.shipped = len(MAGIC)  # records before this offset were shipped
        self.waiting = 0  # records written by this process and not shipped
        self.unread: set[int] = set()  # offsets of unreadable records
        _owned.add(path.name)

    @classmethod
    def create(cls, path: Path) -> _File:
        # Create a file under a temporary name until it is locked and registered as ours. Otherwise a worker looking for
        # dead workers' files would find and delete the empty file, and records written to it would be lost.
        made = path.with_suffix(".new")
        descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _owned.add(path.name)
        try:
            # A lock of the process, not of the descriptor: pool children inherit descriptors but not this lock.
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
        """Return a dead worker's file; None while its owner lives, or if another worker was first."""
        try:
            # Any file may have such a name: do not follow links or wait for pipes.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != path.parent.stat().st_uid:
                os.close(descriptor)
                return None
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Shipped and deleted by another worker between our listing and our lock?
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
        """Return whether the file exists under its name, where other workers look for it."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def take_over(self, other: _File) -> None:
        """Copy the other file's unshipped reports durably. Raises OSError."""
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
            # An incomplete record would hide those after it.
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, size)
            raise

    def records(self, end: int) -> Iterator[tuple[int, Entry]]:
        """Yield the records from `shipped` to `end`, each with the offset after it."""
        return read(self.descriptor, self.shipped, end, self.unread)

    def is_of_another_version(self) -> bool:
        try:
            return is_of_another_version(self.descriptor)
        except OSError:
            return False

    def set_aside(self) -> Path:
        """Rename the file so that it is never shipped. Return the new path."""
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
        # Invalidate the descriptor: its number may be reused for another file.
        descriptor, self.descriptor = self.descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)
        _owned.discard(self.path.name)
