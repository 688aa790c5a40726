"""The count of reports that neither the store nor the spool took, kept so that it is not lost with its worker.

It is in a small file beside the spool, which takes its room when it is made: counting needs no more room on most disks,
and what was counted is there after a kill. Where it cannot be written, the count goes on in memory. A file is reported
to the store under a name of its own, always with its total, so that reporting it twice changes nothing. The file of a
dead worker is reported by the next one that finds it.
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

QUIET_S = 3600.0  # after so long without one more, the next begins an episode of its own
EXPIRY_S = 30 * 86_400  # in the store, should no desk read it

_NUMBERS = struct.Struct("=Qdd")  # how many, the first and the last of them (seconds since 1970)


@dataclass(slots=True)
class Episode:
    """Reports that were dropped one after the other."""

    name: str
    count: int = 0
    since: float = 0.0
    last: float = 0.0


class Dropped:
    """`add` is called from any thread, the rest by the heartbeat's."""

    def __init__(self, directory: Path) -> None:
        self.total = 0  # since this worker started
        self._directory = directory
        self._lock = threading.Lock()
        self._episode = Episode(uuid4().hex)
        self._told = 0
        self._file: _File | None = None

    def add(self, now: Callable[[], float] = time.time) -> int:
        """One more. Answers how many they are since this worker started."""
        with self._lock:
            self.total += 1
            self._episode.count += 1
            self._episode.last = now()
            self._episode.since = self._episode.since or self._episode.last
            if self._file is not None:
                # A copy-on-write disk may want room even for this: then it is told from memory, and written with the next one.
                with contextlib.suppress(OSError):
                    self._file.write(self._episode)
            return self.total

    def keep(self) -> None:
        """See that what is counted outlives this worker. Raises OSError where there is no room on the disk for that."""
        if self._file is None:
            own_directory(self._directory)
            file = _File.create(self._directory / f"{self._episode.name}.dropped")
            with self._lock:
                self._file = file
                file.write(self._episode)

    def report(self, client: Any, source: str, now: Callable[[], float] = time.time) -> None:
        """Report the count to the store, where it is new. Raises redis.RedisError: then it is reported next time."""
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
        """Close the file. A count that was not reported stays for the next worker."""
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


# Names of the files that this process holds: its own lock never stops a process, and closing a second handle would drop it.
_owned: set[str] = set()


class _File:
    """Locked by this process (POSIX: never by the children that inherit it).

    Written by calls, not as memory: memory of a file that was cut short, or whose disk is full, ends the process
    (SIGBUS).
    """

    def __init__(self, path: Path, descriptor: int, episode: Episode) -> None:
        self.path = path
        self.episode = episode  # as it was found
        self._descriptor = descriptor
        _owned.add(path.name)

    @classmethod
    def create(cls, path: Path) -> _File:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not only made longer: what is a hole would need a disk with room when it is first used.
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
        """Return the file of a dead worker; None while its owner lives."""
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
        """Write the count so that another process reads it, also after a SIGKILL. Raises OSError."""
        os.pwrite(self._descriptor, _NUMBERS.pack(episode.count, episode.since, episode.last), 0)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        _owned.discard(self.path.name)
