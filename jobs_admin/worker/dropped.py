"""Count of reports that neither the store nor the spool accepted. It survives its worker.

It is in a small file beside the spool, allocated on creation: on most disks, counting needs no more space, and the
count survives a kill. If the file cannot be written, counting continues in memory. Each file is reported to the store
under its own name with its total, so repeated reports change nothing. A dead worker's file is reported by the next
worker that finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobs_admin.core import keys
from jobs_admin.worker.spool import own_directory

QUIET_S = 3600.0  # after this time without a dropped report, the next starts a new episode
EXPIRY_S = 30 * 86_400  # in the store, if no desk reads it

_NUMBERS = struct.Struct("=Qdd")  # count, first and last time (Unix seconds)


@dataclass(slots=True)
class Episode:
    """A series of dropped reports."""

    name: str
    count: int = 0
    since: float = 0.0
    last: float = 0.0


class Dropped:
    """Counter of dropped reports. `add` may be called from any thread, the other methods by the heartbeat's thread."""

    def __init__(self, directory: Path) -> None:
        self.total = 0  # since this worker started
        self._directory = directory
        self._lock = threading.Lock()
        self._episode = Episode(uuid4().hex)
        self._told = 0
        self._file: _File | None = None

    def add(self, now: Callable[[], float] = time.time) -> int:
        """Count one dropped report. Return the number since this worker started."""
        with self._lock:
            self.total += 1
            self._episode.count += 1
            self._episode.last = now()
            self._episode.since = self._episode.since or self._episode.last
            if self._file is not None:
                # A copy-on-write disk may need space even for this. The count is then reported from memory, and written
                # next time.
                with contextlib.suppress(OSError):
                    self._file.write(self._episode)
            return self.total

    def keep(self) -> None:
        """Make the count survive this worker. Raises OSError if the disk is full."""
        if self._file is None:
            own_directory(self._directory)
            file = _File.create(self._directory / f"{self._episode.name}.dropped")
            with self._lock:
                self._file = file
                file.write(self._episode)

    def report(self, client: Any, source: str, now: Callable[[], float] = time.time) -> None:
        """Report the count to the store if it changed. Raises redis.RedisError; the next call then reports it."""
        with self._lock:
            episode = Episode(*_parts(self._episode))
        if episode.count > self._told:
            _write_episode(client, source, episode)
            self._told = episode.count
        for path in sorted(self._directory.glob("*.dropped")):
            left = None if path.name in _owned else _File.adopt(path)
            if left is not None:
                try:
                    if left.episode.count:
                        _write_episode(client, source, left.episode)
                    left.delete()
                finally:
                    left.close()
        with self._lock:
            if self._told and self._told == self._episode.count and now() - self._episode.last > QUIET_S:
                self._reset()

    def _reset(self) -> None:
        if self._file is not None:
            self._file.delete()
            self._file.close()
        self._file, self._told, self._episode = None, 0, Episode(uuid4().hex)

    def close(self) -> None:
        """Close the file. An unreported count stays for the next worker."""
        with self._lock:
            if self._file is not None:
                if self._told == self._episode.count:
                    self._file.delete()
                self._file.close()
                self._file = None


def _parts(episode: Episode) -> tuple[str, int, float, float]:
    return episode.name, episode.count, episode.since, episode.last


def _write_episode(client: Any, source: str, episode: Episode) -> None:
    values = {
        "host": socket.gethostname(),
        "count": episode.count,
        "since": episode.since,
        "last": episode.last,
    }
    pipeline = client.pipeline(transaction=False)
    pipeline.hset(keys.dropped(source), episode.name, json.dumps(values))
    pipeline.expire(keys.dropped(source), EXPIRY_S)
    pipeline.execute()


# Names of files locked by this process: its own lock does not exclude itself, and closing a second handle would drop
# the lock.
_owned: set[str] = set()


class _File:
    """A file locked by this process (POSIX locks are not inherited by children).

    Written with system calls, not mmap: with a truncated file or a full disk, mapped memory ends the process (SIGBUS).
    """

    def __init__(self, path: Path, descriptor: int, episode: Episode) -> None:
        self.path = path
        self.episode = episode  # as read from the file
        self._descriptor = descriptor
        _owned.add(path.name)

    @classmethod
    def create(cls, path: Path) -> _File:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not only extended: a sparse file would need disk space at its first write.
            os.write(descriptor, bytes(_NUMBERS.size))
            os.fsync(descriptor)
            return cls(path, descriptor, Episode(path.stem))
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    @classmethod
    def adopt(cls, path: Path) -> _File | None:
        """Return a dead worker's file; None while its owner lives."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            numbers = os.pread(descriptor, _NUMBERS.size, 0)
            if os.fstat(descriptor).st_nlink and len(numbers) == _NUMBERS.size:
                return cls(path, descriptor, Episode(path.stem, *_NUMBERS.unpack(numbers)))
        except OSError:
            pass
        os.close(descriptor)
        return None

    def write(self, episode: Episode) -> None:
        """Write the count so that another process can read it, even after SIGKILL. Raises OSError."""
        os.pwrite(self._descriptor, _NUMBERS.pack(episode.count, episode.since, episode.last), 0)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        _owned.discard(self.path.name)
