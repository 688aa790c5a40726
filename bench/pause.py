"""From *Pause queue* to the last start of a job, over workers on Redis and on RabbitMQ; and the resume.

    python -m bench.pause [--pauses 20] [--workers 3] [--held 0]

Two brokers (Valkey and, where it is installed, RabbitMQ), a store of its own, a desk's database (SQLite), prefork workers of two children
that fetch four jobs ahead for each. Jobs of 20 ms are sent at 50 a second to each broker. Each pause is made as the page does it
(`jobs_admin.holds.pause`: checks, transaction, audit, push) and lasts until 1.5 s after every worker has confirmed it. `after_confirmation`
counts jobs that started later than that: the aim is 0. At the end every job must have run once. With `--held N` a task is paused, N of its
jobs are sent to a queue, and the processor time of its workers is taken for a minute while they wait. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit import rabbitmq
from tests.kit.celery import RealWorker
from tests.rigs.empty_desk import desk
from tests.rigs.figures import spread

PATIENCE_S = 60.0
RATE = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3, help="on each broker")
    parser.add_argument("--held", type=int, default=0, help="jobs of a paused task")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        json.dump(measure(wanted, Path(folder), stack), sys.stdout, indent=2)
    print()


def measure(wanted: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    def started(server: Any) -> Any:
        stack.callback(server.stop)
        return server.start()

    store = started(Engine(folder / "store"))
    brokers = {"redis": started(Engine(folder / "redis"))}
    if rabbitmq.server():
        brokers["rabbitmq"] = started(rabbitmq.Node(folder / "rabbitmq"))
    desk(folder, REDRIVE_REDIS_URL=store.url)
    shops = {name: Shop(name, broker.url, store.url, wanted.workers, stack) for name, broker in brokers.items()}
    client = stack.enter_context(redis.Redis.from_url(store.url))
    for shop in shops.values():
        shop.wait_for(client, paused=False)
        shop.register(client)
    figures = {"machine": machine(), "versions": versions(), "workers_on_each": wanted.workers}
    for name, shop in shops.items():
        figures[name] = shop.hold(client, wanted.held) if wanted.held else shop.measure(client, wanted.pauses)
    return figures


class Shop:
    """A source with its workers."""

    def __init__(self, name: str, broker: str, store: str, workers: int, stack: contextlib.ExitStack) -> None:
        self.name = name
        environment = {"REAL_SOURCE": name, "REAL_PREFETCH": "4"}
        self.workers = [
            RealWorker(broker, store, queues="busy", late_ack=True, environment=environment) for _ in range(workers)
        ]
        for worker in self.workers:
            stack.callback(worker.stop)
            worker.start()
        self.sent = 0

    def register(self, client: redis.Redis) -> None:
        """As `watch` does when it reads their heartbeats."""
        from django.utils import timezone

        from jobs_admin.models import Worker

        for name in client.hkeys(keys.workers(self.name)):
            Worker.objects.create(source=self.name, name=name.decode(), boot="b", seen_at=timezone.now())

    def measure(self, client: redis.Redis, pauses: int) -> dict[str, Any]:
        stopped = threading.Event()
        sending = threading.Thread(target=self._send, args=(stopped,))
        sending.start()
        time.sleep(2)
        last, confirmed, late, resumed = [], [], 0, []
        for _ in range(pauses):
            time.sleep(random.uniform(1.5, 3.0))
            begins = time.monotonic()
            made = _pause(self.name, queue="busy")
            self.wait_for(client, paused=True)
            in_force = time.monotonic()
            time.sleep(1.5)
            starts = self.starts()
            last.append(max([at for at in starts if at <= in_force], default=begins) - begins)
            confirmed.append(in_force - begins)
            late += sum(at > in_force for at in starts)
            ends = time.monotonic()
            _resume(made)
            resumed.append(self._first_after(ends) - ends)
        stopped.set()
        sending.join()
        _wait(lambda: len(self.starts()) >= self.sent)
        time.sleep(1)
        ran = Counter(n for worker in self.workers for kind, _, n, *_ in self._lines(worker) if kind == "start")
        return {
            "pauses": pauses,
            "seconds_to_the_last_start": spread(last),
            "seconds_to_all_confirmations": spread(confirmed),
            "after_confirmation": late,
            "seconds_from_resume_to_the_first_start": spread(resumed),
            "jobs": self.sent,
            "lost": self.sent - len(ran),
            "ran_twice": sum(count > 1 for count in ran.values()),
        }

    def hold(self, client: redis.Redis, count: int) -> dict[str, Any]:
        made = _pause(self.name, task="noted")
        self.wait_for(client, paused=True, task=True)
        where = client if self.name == "rabbitmq" else redis.Redis.from_url(self.workers[0].broker_url)
        due, before = keys.due(self.name), where.info("memory")["used_memory"]
        began = time.monotonic()
        for n in range(count):
            self.workers[0].send("noted", n, queue="busy")
        _wait(lambda: where.zcard(due) >= count * 0.95, 600)
        put_aside = time.monotonic() - began
        time.sleep(10)
        cpu, at = self._processor_s(), time.monotonic()
        time.sleep(60)
        used = (self._processor_s() - cpu) / (time.monotonic() - at)
        waiting_bytes = where.info("memory")["used_memory"] - before
        started = len(self.starts())
        ends = time.monotonic()
        _resume(made)
        _wait(lambda: len(self.starts()) >= count, 600)
        return {
            "held": count,
            "seconds_to_put_them_aside": round(put_aside, 1),
            "processor_of_all_workers_while_they_wait": round(used, 3),
            "bytes_per_job": round(waiting_bytes / count),
            "started_while_paused": started,
            "seconds_from_resume_to_the_last_start": round(time.monotonic() - ends, 1),
        }

    def wait_for(self, client: redis.Redis, *, paused: bool, task: bool = False) -> None:
        wanted = {"queues": ["busy"] if paused and not task else [], "tasks": ["noted"] if task else []}

        def obeyed() -> bool:
            beats = [json.loads(text) for text in client.hvals(keys.workers(self.name))]
            return len(beats) == len(self.workers) and all(beat["paused"] == wanted for beat in beats)

        _wait(obeyed)

    def starts(self) -> list[float]:
        return [float(at) for worker in self.workers for kind, at, *_ in self._lines(worker) if kind == "start"]

    def _first_after(self, moment: float) -> float:
        _wait(lambda: any(at > moment for at in self.starts()))
        return min(at for at in self.starts() if at > moment)

    def _send(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self.workers[0].send("noted", self.sent, 0.02, queue="busy")
            self.sent += 1
            stopped.wait(random.expovariate(RATE))

    def _processor_s(self) -> float:
        """Processor time of the main processes: they hold and check."""
        total = 0
        for worker in self.workers:
            assert worker.process is not None
            fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / 100

    @staticmethod
    def _lines(worker: RealWorker) -> list[list[str]]:
        return [line.split() for line in worker.marks("noted")]


def _pause(source: str, **place: str) -> int:
    from jobs_admin import holds
    from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

    return holds.pause(Viewer("bench", {EVERY_SOURCE: ADMIN}), source, reason="bench", **place).pk


def _resume(number: int) -> None:
    from jobs_admin import holds
    from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

    holds.resume(Viewer("bench", {EVERY_SOURCE: ADMIN}), number)


def _wait(reached: Any, within_s: float = PATIENCE_S) -> None:
    ends = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < ends, "it took too long"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
