"""Real workers that are paused, and the jobs that they ran meanwhile."""

from __future__ import annotations

import json
import signal
import time

import redis
from kombu import Connection

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED, Pauses
from tests.kit.celery import RealWorker
from tests.kit.network import Road
from tests.kit.waiting import wait_until


class Shop:
    """One worker, its broker and its store. Queues are a test's own."""

    def __init__(self, start, engine: Engine, road: Road | None) -> None:
        """`road`: to RabbitMQ; None for Redis."""
        self._start, self.engine, self.road = start, engine, road
        self.store_url, self.broker_url = engine.url, road.url if road else None
        self.store = redis.Redis.from_url(engine.url)
        self.workers: list[RealWorker] = []
        self.sent = 0

    def work(self, *, queues: str, prefetch: int = 4, later: bool = False, **options) -> RealWorker:
        broker = {"broker_url": self.broker_url} if self.broker_url else {}
        environment = {"REAL_PREFETCH": str(prefetch), **options.pop("environment", {})}
        self.worker = self._start(
            self.store_url,
            queues=queues,
            later=later,
            environment=environment,
            **{"concurrency": 2, **broker, **options},
        )
        self.workers.append(self.worker)
        return self.worker

    def publish(self, *, queues=None, tasks=None) -> None:
        self.store.set(keys.pauses("shop"), Pauses(queues or {}, tasks or {}).render())

    def wait_for(self, **paused) -> None:
        """Wait until the heartbeats of all workers list these pauses; `paused`: names by kind, e.g. `queues=["emails"]`."""
        wanted = {"queues": [], "tasks": []} | {kind: sorted(names) for kind, names in paused.items()}

        def obeyed() -> bool:
            beats = [json.loads(text) for text in self.store.hgetall(keys.workers("shop")).values()]
            live = sum(one.process is not None and one.process.poll() is None for one in self.workers)
            return len(beats) == live and all(beat["paused"] == wanted for beat in beats)

        self.worker.wait(obeyed, what=f"the workers to obey {wanted}")

    def pause(self, *, queues=(), tasks=(), until=UNTIL_RESUMED) -> float:
        """Return the monotonic time from which on nothing may start."""
        self.publish(queues=dict.fromkeys(queues, until), tasks=dict.fromkeys(tasks, until))
        self.wait_for(queues=queues, tasks=tasks)
        return time.monotonic()

    def send(self, count: int, queue: str, seconds: float | str = 0.0, task: str = "noted", **options) -> range:
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        for n in numbers:
            self.worker.send(task, n, seconds, queue=queue, **options)
        return numbers

    def read_notes(self, what: str = "start") -> list[tuple[float, int]]:
        lines = [line.split() for worker in self.workers for line in worker.marks("noted")]
        return sorted((float(at), int(n)) for kind, at, n, *_ in lines if kind == what)

    def ran(self) -> list[int]:
        return [n for _, n in self.read_notes()]

    def queued(self, queue: str) -> int:
        if self.broker_url is None:
            with redis.Redis.from_url(self.worker.broker_url) as client:
                return client.llen(queue)
        with Connection(self.broker_url) as connection:
            return connection.default_channel.queue_declare(queue, passive=True).message_count

    def queue_exists(self, queue: str) -> bool:
        with Connection(self.broker_url) as connection:
            try:
                connection.default_channel.queue_declare(queue, passive=True)
            except connection.channel_errors:
                return False
        return True

    def due(self) -> int:
        """Jobs that wait for a time, wherever they do for this broker."""
        return self._count(keys.due("shop"))

    def on_hold(self, breaker: str) -> int:
        return self._count(keys.holds("shop", breaker))

    def _count(self, name: str) -> int:
        if self.broker_url:
            return self.store.zcard(name)
        with redis.Redis.from_url(self.worker.broker_url) as client:
            return client.zcard(name)

    def kill(self, victim: RealWorker) -> None:
        """SIGKILL. On Redis not while it fetches: kombu may lose that message (docs/failure-modes.md)."""
        if self.broker_url is None:
            live = sum(one.process is not None and one.process.poll() is None for one in self.workers)
            wait_until(lambda: self._stops_between_fetches(victim, live), "it to wait for a message", every_s=0)
        victim.kill()

    def _stops_between_fetches(self, victim: RealWorker, live: int) -> bool:
        """Stop it; let it go on if a message was handed to it, which is to say if fewer than all workers wait for one."""
        assert victim.process is not None
        victim.process.send_signal(signal.SIGSTOP)
        with redis.Redis.from_url(victim.broker_url) as client:
            for _ in range(20):
                # Nothing is handed to it between this look and its end.
                client.client_pause(500, all=False)
                if sum(one["cmd"] == "brpop" and "b" in one["flags"] for one in client.client_list()) == live:
                    return True
                time.sleep(0.02)
        victim.process.send_signal(signal.SIGCONT)
        time.sleep(0.05)
        return False

    def cut(self) -> None:
        """All connections to the broker."""
        if self.road:
            self.road.cut()
            return
        with redis.Redis.from_url(self.worker.broker_url) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def settle(self, reached, what: str):
        return self.worker.wait(reached, what=what)


def unique(name: str) -> str:
    return f"{name}-{time.monotonic_ns()}"
