"""Where a worker's reports go: the stream in Redrive's store, else the spool on disk, else a count of what was lost.

A job waits for the store for 100 ms at most, whatever that does: connections are only made by the heartbeat's thread,
and one deadline spans the wait for the line, the sending and the answer. The first report that finds the store slow or
refusing opens a breaker: for five seconds reports go straight to the spool, so that a store that hangs costs a worker
100 ms once, not 100 ms a job.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis

from jobs_admin.core import keys
from jobs_admin.worker.line import CALL_TIMEOUT, Line, client
from jobs_admin.worker.spool import Entry, Spool, SpoolFull

BREAKER_SECONDS = 5.0
STREAM_BYTES = 256 * 1024**2
SHIP_BYTES = 4 * 1024**2  # in one go from the spool

logger = logging.getLogger("redrive.worker")


class StreamFull(Exception):
    """The stream holds as much as it may. What was to be shipped is still in the spool."""


class Store:
    """The worker's end of Redrive's store. `write` never raises and may be called from any thread."""

    def __init__(self, url: str, spool: Spool, stream_bytes: int = STREAM_BYTES) -> None:
        self.spool = spool
        self.dropped = 0  # reports that neither the stream nor the spool took
        self.is_full = False
        self._url = url
        self._stream_bytes = stream_bytes
        self._taken = 0  # bytes in the stream when last measured, and what this worker has added since
        self._lock = threading.Lock()  # of the line and of `_taken`
        self._line: Line | None = None
        self._closed_until = 0.0  # monotonic; before it no line is dialled
        self._trouble = ""  # why there is no line, "" while none was tried
        self._is_told = False  # that reports go to the spool
        # A connection of its own, so that a report never waits behind a heartbeat.
        self.background = client(url)

    def write(self, entry: Entry) -> None:
        """Make a report durable, or count it as dropped."""
        if not self._send(entry):
            self._keep(entry)

    def _send(self, entry: Entry) -> bool:
        deadline = time.monotonic() + CALL_TIMEOUT
        if self._line is None or self.is_full or not self._lock.acquire(timeout=CALL_TIMEOUT):
            return False
        try:
            size = sum(map(len, entry.values()))
            if self._taken + size > self._stream_bytes:
                self.is_full = True
            if self.is_full or self._line is None:
                return False
            if deadline - time.monotonic() < CALL_TIMEOUT / 2:
                return False  # spent behind other threads' reports, which says nothing against the store
            try:
                if self._line.is_stale():
                    self._hang_up("it closed the connection")
                    return False
                self._line.append(keys.failures(), entry, deadline)
            except (redis.RedisError, OSError, ValueError) as error:
                self._hang_up(_why(error))
                self._closed_until = time.monotonic() + BREAKER_SECONDS
                return False
            self._taken += size
        finally:
            self._lock.release()
        if self._is_told:
            self._is_told = False
            logger.info("Redrive's store takes reports again.")
        return True

    def dial(self) -> None:
        """See that there is a line. Called by the heartbeat, never for a job: it may take seconds.

        Raises redis.RedisError or OSError where the store is away or too slow to be asked while a job waits.
        """
        with self._lock:
            if self._line is not None and self._line.is_stale():
                self._hang_up("it closed the connection")
        if self._line is not None or time.monotonic() < self._closed_until:
            return
        try:
            line = Line(self._url)
        except (redis.RedisError, OSError) as error:
            self._trouble = _why(error)
            raise
        with self._lock:
            self._line = line

    def _hang_up(self, why: str) -> None:
        line, self._line, self._trouble = self._line, None, why
        if line is not None:
            line.close()

    def _keep(self, entry: Entry) -> None:
        if self._trouble and self._line is None and not self._is_told:
            self._is_told = True
            logger.warning(
                "Redrive's store does not take reports (%s); they go to %s.", self._trouble, self.spool.directory
            )
        try:
            self.spool.append(entry)
        except (OSError, SpoolFull) as error:
            self.dropped += 1
            if self.dropped == 1 or self.dropped % 1000 == 0:
                logger.error(
                    "Redrive dropped %d reports: neither store nor spool takes them (%r).", self.dropped, error
                )

    def measure(self) -> None:
        """Learn how much the stream holds. Called by the heartbeat, never for a job."""
        try:
            taken = self.background.memory_usage(keys.failures(), samples=20)
        except redis.ResponseError:  # a user without the right to MEMORY
            length: Any = self.background.xlen(keys.failures())
            taken = int(length) * 4096
        with self._lock:
            self._taken = int(taken or 0)
            self.is_full = self._taken >= self._stream_bytes

    def drain(self) -> int:
        """Ship what the spool holds, as far as the stream has room. Raises redis.RedisError when the store is away."""
        if self.is_full:
            return 0
        try:
            return self.spool.drain(self._ship, batch_bytes=min(SHIP_BYTES, self._stream_bytes // 64))
        except StreamFull:
            return 0

    def _ship(self, batch: list[Entry]) -> None:
        size = sum(len(value) for entry in batch for value in entry.values())
        with self._lock:
            if self._taken + size > self._stream_bytes:
                self.is_full = True
                raise StreamFull
            self._taken += size
        pipeline = self.background.pipeline(transaction=False)
        for entry in batch:
            pipeline.xadd(keys.failures(), entry)  # type: ignore[arg-type]
        pipeline.execute()

    def close(self) -> None:
        self.spool.close()
        with self._lock:
            self._hang_up("the worker ends")
        self.background.close()


def _why(error: Exception) -> str:
    """In words for the log; redis-py's own name host and port, never a password."""
    return f"{type(error).__name__}: {str(error)[:200]}"
