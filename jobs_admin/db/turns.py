"""Turns of processes that write much (file reports, create replay items) on SQLite, which leave a part of the time to
all others.

SQLite has one writer at a time, and a waiting one tries again at intervals that grow to 100 ms. Of two processes that
file reports one would mostly sleep while the lock is free, and between two that did not sleep a person's click would
find it taken for seconds. So these wait for each other at a lock of their own, which wakes them at once, and after each
turn no process has one for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator

from django.db import connection

# After a turn it is everybody else's for so much of the time that it took, and never for longer than this.
_REST = 0.25
_LONGEST_REST_S = 0.1

# Names the lock under which reports are written (PostgreSQL's advisory locks are numbers).
_WRITE_LOCK = 0x7265_6472_6976_6501


def turn() -> contextlib.AbstractContextManager[None]:
    """Wait for the others that write much. Nothing to wait for where the database lets several write."""
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return contextlib.nullcontext()
    return turn_at(f"{connection.settings_dict['NAME']}-turn")


def rest(began: float) -> None:
    """Sleep on SQLite as long as the writes since `began` (time.monotonic) took: half of the time is for other writers."""
    if connection.vendor == "sqlite":
        time.sleep(max(0.0, time.monotonic() - began))


def lock_writers() -> None:
    """Let one process write reports at a time, until its transaction ends, as is so on SQLite anyway.

    Ids then rise in the order of commits: a replay's scope ("up to this id") can gain nothing afterwards, and a list has
    no late arrivals below its first row. What takes long, reading and encrypting, is done before.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_WRITE_LOCK])


@contextlib.contextmanager
def turn_at(path: str) -> Iterator[None]:
    """The same at a file, which is made where it is not there."""
    with open(path, "r+b", buffering=0, opener=_open_or_make) as place:
        with contextlib.suppress(OSError):  # a file system without locks: the database's own must do
            fcntl.flock(place, fcntl.LOCK_EX)
        place.seek(0)
        # When the next turn may begin, by the clock that all processes of a machine share.
        (begins,) = struct.unpack("d", place.read(8).ljust(8, b"\0"))
        rest_s = min(begins - time.monotonic(), _LONGEST_REST_S)
        if rest_s > 0:
            time.sleep(rest_s)
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            place.seek(0)
            place.write(struct.pack("d", ended + (ended - began) * _REST))


def _open_or_make(path: str, flags: int) -> int:
    # Not to append: a file that is cut and grows again for each turn costs milliseconds on a busy disk.
    return os.open(path, flags | os.O_CREAT, 0o666)
