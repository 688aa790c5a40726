"""A rate for each customer (or whatever a pace counts by), shared by who chooses jobs and who sends them."""

from __future__ import annotations

import threading
import time

from jobs_admin.core.pacing import Bucket

_REMEMBERED = 10_000  # keys; of more, those are forgotten that may send at once


class KeyRates:
    """One bucket for each key that was asked for. Every method may be called by several threads at once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # jobs per second
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def ahead(self, key: str, seconds: float) -> int:
        """How many jobs of the key may go within so many seconds."""
        now = time.monotonic()
        with self._lock:
            return self._bucket(key, now).ahead(seconds, now)

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next one of the key may go."""
        with self._lock:
            return self._bucket(key, now).wait(now)

    def take(self, key: str, now: float) -> None:
        with self._lock:
            self._bucket(key, now).take(1, now)

    def _bucket(self, key: str, now: float) -> Bucket:
        if (found := self._buckets.get(key)) is None:
            if len(self._buckets) >= _REMEMBERED:
                self._buckets = {k: b for k, b in self._buckets.items() if b.wait(now)}
            found = self._buckets[key] = Bucket(self.rate, now)
        return found
