"""A desk in this process with made-up Celery systems on a real Valkey: what histories of the desk itself begin with."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from tests.histories.bounds import SmallBounds
from tests.histories.deaths import dying_after, forget_process
from tests.histories.desk import empty_desk, open_desk
from tests.histories.kit import Clock, World

_DEATHS = 0.15  # of the acts that may die, so many do


class CeleryDesk(World):
    """Each source is a database of one private engine; `bounds` are made small as `SmallBounds` takes them."""

    def __init__(self, folder: Path, sources: Sequence[str], bounds: dict[str, Any]) -> None:
        from dashboard.engine import Engine

        self.engine = Engine(folder / "engine").start()
        base = self.engine.url.rpartition("/")[0]
        urls = {name: f"{base}/{n}" for n, name in enumerate(sources, 1)}
        (folder / "desk").mkdir()
        tables = (f'[sources.{name}]\nbackend = "celery"\nurl = "{url}"\n' for name, url in urls.items())
        open_desk(folder / "desk", "".join(tables), self.engine.url)
        self.store = redis.Redis.from_url(self.engine.url)
        self.brokers = {name: redis.Redis.from_url(url) for name, url in urls.items()}
        self.clock = Clock().install()
        self._bounds = SmallBounds(bounds)
        self._monotonic, self._skipped = time.monotonic, 0.0
        time.monotonic = lambda: self._monotonic() + self._skipped
        self.jobs_made = self.checked = 0

    def close(self) -> None:
        forget_process()
        self._bounds.restore()
        self.engine.stop()

    def begin(self, rng: random.Random) -> None:
        forget_process()
        for client in (self.store, *self.brokers.values()):
            client.flushdb()
        self.clock.reset()
        empty_desk()
        forget_process()

    def now(self) -> float:
        """A moment ago by the desk's clock, seconds since 1970."""
        from django.utils import timezone

        return (timezone.now() - timedelta(seconds=1)).timestamp()

    def skip(self, seconds: float) -> None:
        """The machine's own clock goes on: what is paced is due."""
        from jobs_admin.replays import sending

        self._skipped += seconds
        for sender in sending._senders.values():
            for held in sender._held.values():
                with held.line.lock:
                    held.line.lock.notify()

    def death(self, rng: random.Random, most: int) -> int | None:
        """After how many calls the process dies, fewer than `most`; None where it lives."""
        return rng.randrange(most) if rng.random() < _DEATHS else None

    def file(self, entries: Sequence[dict[bytes, bytes]], death: int | None = None) -> None:
        """The desk reads these reports, all of them, also where the process that does so dies once."""
        from jobs_admin import ingest
        from jobs_admin.core import keys

        for entry in entries:
            self.store.xadd(keys.failures(), entry)
        with dying_after(death):
            self._ingest_all(ingest, keys)
        self._ingest_all(ingest, keys)

    def _ingest_all(self, ingest: Any, keys: Any) -> None:
        while self.store.xlen(keys.failures()):
            ingest.step("ingest", wait_s=0.001)
