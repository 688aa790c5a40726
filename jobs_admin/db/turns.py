"""Turns of processes with many writes on SQLite (filing reports, creating replay items), which leave time for others.

SQLite has one writer at a time, and a waiting one retries at intervals that grow to 100 ms. Of two processes that file
reports, one would mostly sleep while the lock is free; between two that did not sleep, a person's click would find the
lock taken for seconds. So they wait for each other at a separate lock, which wakes them immediately, and after each
turn none of them has a turn for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator

from django.db import connection

# After a turn, others have this share of the time that it took, but never more than the limit.
_REST = 0.25
_LONGEST_REST_S = 0.1

# Identifies the lock under which reports are written and failures moved (PostgreSQL's advisory locks are numbers).
_WRITE_LOCK = 0x7265_6472_6976_6501


def turn() -> contextlib.AbstractContextManager[None]:
    """Wait for other processes with many writes. Does not wait if the database allows several writers."""
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return contextlib.nullcontext()
    return turn_at(f"{connection.settings_dict['NAME']}-turn")


def rest(began: float) -> None:
    """Sleep on SQLite as long as the writes since `began` (time.monotonic) took: half of the time is for others."""
    if connection.vendor == "sqlite":
        time.sleep(max(0.0, time.monotonic() - began))


def lock_writers() -> None:
    """Let one process at a time write reports or move failures, until its transaction ends, as SQLite always does.

    Required as the first statement of each transaction that changes the key of a failure's counter (`FailureCount`), or several
    failures: a report changes several counters, and two such transactions could otherwise deadlock. Ids then also increase in the
    order of commits: a replay's scope ("up to this id") gains nothing afterwards, and a list has no late rows below its
    first row. Expensive work, reading and encrypting, is done before.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_WRITE_LOCK])


@contextlib.contextmanager
def turn_at(path: str) -> Iterator[None]:
    """Wait for a turn at a lock file, which is created if it does not exist."""
    with open(path, "r+b", buffering=0, opener=_open_or_make) as place:
        with contextlib.suppress(OSError):  # on a file system without locks, the database's own must suffice
            fcntl.flock(place, fcntl.LOCK_EX)
        place.seek(0)
        # When the next turn may start, by the clock that all processes of a machine share.
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
    # Not opened for appending: truncating and growing a file in each turn costs milliseconds on a busy disk.
    return os.open(path, flags | os.O_CREAT, 0o666)
