"""A desk in this process with made-up Celery systems on a real Valkey: what histories of the desk itself begin with."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from tests.histories.bounds import SmallBounds
from tests.histories.deaths import dying_after, forget_process
from tests.histories.desk import empty_desk, open_desk
from tests.histories.kit import Clock, Divergence, World, run_in_child

_DEATHS, _KILLS = 0.15, 0.3  # of the acts that may die, so many do


class CeleryDesk(World):
    """Each source is a database of one private engine; `bounds` are made small as `SmallBounds` takes them."""

    killed = restarted = 0  # processes of the desk, and servers

    def __init__(self, folder: Path, sources: Sequence[str], bounds: dict[str, Any]) -> None:
        from dashboard.setup.engine import Engine

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
        self.jobs_made = 0

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
            for active in sender._active.values():
                with active.line.lock:
                    active.line.lock.notify()

    def dies(self, rng: random.Random, most: int, work: Callable[[], object]) -> bool:
        """Do `work`, mostly in peace; else the process that does it dies. Return whether it did, wherever it had come to.

        A death is played: before one of its first `most` calls. With `kills` it is a process of its own, ended by SIGKILL, and
        now and then the store and the brokers are killed with it and started again.
        """
        draw = rng.random()
        if draw >= (_KILLS if self.kills else _DEATHS):
            work()
            return False
        if not self.kills:
            with dying_after(rng.randrange(most)):
                work()
            return True
        self._be_killed(work, rng.choice([0.0, 0.01, 0.03, 0.1, 0.3]))
        if draw < _KILLS / 8:
            self.restart_engine()
        return True

    def _be_killed(self, work: Callable[[], object], after_s: float) -> None:
        from django.db import connections

        forget_process()
        connections.close_all()
        self.killed += run_in_child(work, kill_after_s=after_s)

    def restart_engine(self) -> None:
        """Valkey is killed, and comes back with what it had written down."""
        forget_process()
        self.engine.kill()
        self.engine.start()
        for client in (self.store, *self.brokers.values()):
            client.connection_pool.disconnect()
        self.restarted += 1

    def file(self, entries: Sequence[dict[bytes, bytes]], rng: random.Random | None = None) -> None:
        """The desk reads these reports, all of them, also where the process that does so dies once."""
        from jobs_admin.core import keys

        with self.store.pipeline(transaction=False) as pipe:
            for entry in entries:
                pipe.xadd(keys.failures(json.loads(entry[b"meta"])["source"]), entry)
            pipe.execute()
        if rng is not None:
            self.dies(rng, 30, self._ingest_all)
        self._ingest_all()

    def settle_all(self) -> None:
        from jobs_admin import replays

        for _ in range(500):
            if not replays.settle():
                return
        raise Divergence("Settling finds the same again and again")

    def _ingest_all(self) -> None:
        from jobs_admin import ingest
        from jobs_admin.core import keys

        while any(map(self.store.xlen, map(keys.failures, self.brokers))):
            ingest.step("ingest", wait_s=0.001)
