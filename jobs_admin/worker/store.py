"""Where a worker's reports go: the stream in Redrive's store, else the spool on disk, else a count of what was lost.

A call takes at most 100 ms. The first one that times out or is refused opens a breaker: for five seconds reports go
straight to the spool, so that a store that hangs costs a worker 100 ms once, not 100 ms a job.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.core import keys
from jobs_admin.worker.spool import Entry, Spool, SpoolFull

CALL_TIMEOUT = 0.1  # seconds, while a job waits for the call
BACKGROUND_TIMEOUT = 2.0  # seconds, in the heartbeat's thread, where nothing waits
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
        self._stream_bytes = stream_bytes
        self._taken = 0  # bytes in the stream when last measured, and what this worker has added since
        self._lock = threading.Lock()
        self._closed_until = 0.0  # monotonic; before it the store is not asked
        self._foreground = client(url, CALL_TIMEOUT)
        # A connection of its own, so that a report never waits behind a heartbeat.
        self.background = client(url, BACKGROUND_TIMEOUT)

    def write(self, entry: Entry) -> None:
        """Make a report durable, or count it as dropped."""
        with self._lock:
            if not self._send(entry):
                self._keep(entry)

    def _send(self, entry: Entry) -> bool:
        size = sum(map(len, entry.values()))
        if self._taken + size > self._stream_bytes:
            self.is_full = True
        if self.is_full or time.monotonic() < self._closed_until:
            return False
        try:
            self._foreground.xadd(keys.failures(), entry)  # type: ignore[arg-type]
        except (redis.RedisError, OSError) as error:
            was_closed = self._closed_until > 0
            self._closed_until = time.monotonic() + BREAKER_SECONDS
            if not was_closed:
                logger.warning(
                    "Redrive's store does not take reports (%s); they go to %s.", _why(error), self.spool.directory
                )
            return False
        if self._closed_until:
            self._closed_until = 0.0
            logger.info("Redrive's store takes reports again.")
        self._taken += size
        return True

    def _keep(self, entry: Entry) -> None:
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
        self._foreground.close()
        self.background.close()


def client(url: str, timeout: float) -> redis.Redis:
    """A client that tries once, on one connection, and gives up after `timeout` seconds. Connects when first used."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        max_connections=1,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        health_check_interval=0,
        decode_responses=False,
        client_name="redrive-worker",
    )


def _why(error: Exception) -> str:
    """The error's text without anything that a URL could carry."""
    return f"{type(error).__name__}: {str(error)[:200]}"
