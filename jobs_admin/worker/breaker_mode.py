"""Mode of a breaker, enforced or observed, in a fleet where only some workers may enforce policies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.core.breaker import Breaker

ENFORCED_FOR_S = 90.0  # a breaker stays enforced for this time after an enforcing worker's note
READ_EVERY_S = 15.0  # interval of reading the fleet's heartbeats
LIVE_S = 30.0  # a worker is live for this time after a heartbeat
MOST_WORKERS = 300  # of a fleet whose heartbeats are read
ENFORCE = "enforce"


class FleetMode:
    """Enforced breakers of a source, from this worker's policies and other workers' heartbeats."""

    def __init__(self, store: redis.Redis, source: str, may_enforce: Callable[[], bool]) -> None:
        self._store = store
        self._key = keys.workers(source)
        self._may_enforce = may_enforce
        self._enforced: set[str] = set()  # breakers that other workers enforce, by their heartbeats
        self._read_at = float("-inf")

    def follow(self, breaker: Breaker, *, is_enforced: bool, now: float) -> None:
        """Set the mode of a breaker: observed if its policies say so, or if no worker may enforce them."""
        at = untrusted.number(breaker.extra.get("enforced_at")) or 0.0
        if not self._may_enforce():
            if not 0 <= now - at < ENFORCED_FOR_S and not breaker.observe:
                # Older workers enforce without a note: without this check, they and this worker would keep changing the
                # mode.
                breaker.set_observe(breaker.name not in self._enforced_elsewhere(now), now)
            return
        breaker.set_observe(not is_enforced, now)
        if is_enforced and not 0 <= now - at < ENFORCED_FOR_S / 3:
            breaker.extra["enforced_at"] = round(now, 3)
            breaker.number += 1

    def _enforced_elsewhere(self, now: float) -> set[str]:
        """Return the breakers that live workers enforce, from their heartbeats. Raises redis.RedisError."""
        if time.monotonic() - self._read_at < READ_EVERY_S:
            return self._enforced
        size: Any = self._store.hlen(self._key)
        stored: Any = self._store.hgetall(self._key) if size <= MOST_WORKERS else {}
        found: set[str] = set()
        for text in stored.values():
            values = untrusted.read_object(text)
            at, names = untrusted.number(values.get("at")) or 0.0, values.get("breakers")
            if values.get("mode") == ENFORCE and abs(now - at) < LIVE_S and isinstance(names, list):
                found |= {name for name in names if isinstance(name, str)}
        self._enforced, self._read_at = found, time.monotonic()
        return found
