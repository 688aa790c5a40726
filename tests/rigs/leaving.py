"""The guard is taken out of workers while delayed retries wait."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from jobs_admin.core import keys
from tests.kit.celery import RealWorker
from tests.kit.policies import policy, published
from tests.rigs.figures import spread
from tests.rigs.waiting_retries import HOUR_S, lines, pass_the_hour, send, until

ROOT = Path(__file__).resolve().parents[2]
HOWS = ("drain", "now", "to_dead", "undrained")
IN_THEIR_TIME = ("drain", "undrained")
AWAY_S = 5.0  # for so long nobody promotes
VISIBILITY_S = "60"
_COUNTS = """
from django.db.models import Count
say({"states": {f"{state} {kind}": n for state, kind, n in Failure.objects.values_list("state", "kind").annotate(n=Count("pk"))},
     "messages": Payload.objects.filter(is_whole=True).count(), "failures": Failure.objects.count()})
"""
_DEAD = "say(list(Failure.objects.filter(state='dead', reason__startswith='store: ').values_list('first_job_id', flat=True)))"


@dataclass
class Leaving:
    """One desk, its servers, and the workers that come and go."""

    folder: Path
    broker_url: str
    store_url: str
    retries: int
    per_second: int
    workers: int = 2
    children: int = 2
    away_s: float = AWAY_S
    ran: list[RealWorker] = field(default_factory=list)  # all that ever did: each has lines of its own
    desk: Any = None
    watch: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """The key of delayed jobs."""
        return self.broker_url if self.broker_url.startswith("redis") else self.store_url

    def waiting(self) -> int:
        with redis.Redis.from_url(self.place) as client:
            return client.zcard(keys.due("shop"))

    @contextlib.contextmanager
    def open(self) -> Iterator[Leaving]:
        from tests.kit.desks import Desk

        self.desk = Desk(self.folder, self.store_url)
        sources = self.folder / "sources.toml"
        sources.write_text(f'[sources.shop]\nbackend = "celery"\nurl = "{self.broker_url}"\nqueues = ["celery"]\n')
        self.desk.environment |= {
            "REDRIVE_SOURCES": str(sources), "REDRIVE_DEMO_BROKER_URL": "", "REDRIVE_DATA": str(self.folder),
        }  # fmt: skip
        try:
            yield self
        finally:
            self.stop_watch(signal.SIGKILL)
            for worker in self.ran:
                worker.kill()

    def start_workers(self, *, is_guarded: bool) -> list[RealWorker]:
        more = {"REAL_VISIBILITY": VISIBILITY_S, **({} if is_guarded else {"REAL_STOCK": "1"})}
        made = [
            RealWorker(self.broker_url, self.store_url, concurrency=self.children, queues="celery", late_ack=True, environment=more)
            for _ in range(self.workers)
        ]  # fmt: skip
        self.ran += made
        return [worker.start(60) for worker in made]

    def start_watch(self) -> None:
        with (self.folder / "watch.log").open("ab") as log:
            self.watch = subprocess.Popen(
                [sys.executable, "manage.py", "watch", "--only", "ingest,reconcile,promote,sample"],
                cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip

    def stop_watch(self, how: int) -> None:
        """SIGKILL is the parent's alone: its steps die with it."""
        if self.watch is not None:
            with contextlib.suppress(ProcessLookupError):
                self.watch.send_signal(how)
            self.watch.wait()
            self.watch = None

    def drain(self, *how: str) -> None:
        environment = {**self.desk.environment, "REDRIVE_SPOOL": str(self.folder / "spool")}
        done = subprocess.run(
            [sys.executable, "manage.py", "drain", *how], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=1800, check=False,
        )  # fmt: skip
        if done.returncode or not done.stdout.rstrip().endswith("safe to remove install()"):
            raise SystemExit(f"drain did not end well: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def second_attempts(self) -> list[tuple[str, int, float]]:
        """(job, attempt, when it began), of all that are no first attempts."""
        return [line for line in lines(self.ran) if line[1] != 1]

    def run(self, how: str) -> dict[str, Any]:
        published(self.store_url, policy("hour", max_attempts=3, backoff={"kind": "fixed", "first_delay_s": HOUR_S}))
        self.start_watch()
        guarded = self.start_workers(is_guarded=True)
        jobs = send(guarded[0], self.retries, "try")
        until(lambda: len(lines(self.ran)) >= self.retries, 1800, "all to fail once")
        time.sleep(3)
        until(self._is_filed, 600, "the desk to know of all")
        # A broker that takes more than half a second is not waited for: such a job is dead, and says so; it may wait all the same.
        with redis.Redis.from_url(self.place) as client:
            wait = {member.decode().split(":")[0] for member in client.zrange(keys.due("shop"), 0, -1)}
        dead = set(self.desk.run(_DEAD))
        assert wait | dead == set(jobs), f"{len(set(jobs) - wait - dead)} jobs neither wait nor are told to be dead"
        jobs, self.retries = sorted(wait), len(wait)
        due: dict[str, float] = {}
        if how in IN_THEIR_TIME:
            with redis.Redis.from_url(self.place) as client:
                due = pass_the_hour(client, self.per_second, 10.0 if how == "undrained" else 2.0)
        began = time.time()
        _WAYS[how](self, guarded)
        drained_s = time.time() - began
        if how != "to_dead":
            until(lambda: len({job for job, *_ in self.second_attempts()}) >= self.retries, 1800, "all to run")
        time.sleep(3)  # whatever comes twice has come by then
        until(self._is_filed, 60, "what was reported to be filed")
        return {
            "how": how,
            "retries": self.retries,
            "left_after_s": round(drained_s, 1),
            "not_put_aside": len(dead - wait),
            **self._build_report(how, jobs, due),
        }

    def _is_filed(self) -> bool:
        with redis.Redis.from_url(self.store_url) as client:
            return not client.xlen(keys.failures("shop"))

    def _build_report(self, how: str, jobs: list[str], due: dict[str, float]) -> dict[str, Any]:
        ran = self.second_attempts()
        first = {job: at for job, _, at in sorted(ran, key=lambda line: -line[2])}
        report = {
            "ran": len(first),
            "ran_twice": sum(n > 1 for n in Counter(job for job, *_ in ran).values()),
            "strangers": len(first.keys() - set(jobs)),
            "wrong_attempt": sum(attempt != 2 for _, attempt, _ in ran),
            "still_waiting": self.waiting(),
            "desk": self.desk.run(_COUNTS),
            "load": [round(one, 1) for one in os.getloadavg()],
        }
        if how == "to_dead":
            dead = report["desk"]["states"].get("dead lost", 0)
            return report | {"lost": self.retries - min(dead, report["desk"]["messages"])}
        report["lost"] = len(set(jobs) - first.keys())
        if due:
            report["early"] = sum(at < due[job] - 0.01 for job, at in first.items())
            order = sorted(due, key=due.__getitem__)
            place = {job: n for n, job in enumerate(sorted(first, key=first.__getitem__))}
            report["displaced"] = spread((abs(place[job] - n) for n, job in enumerate(order) if job in place), 0)
        return report


def _by_drain(leaving: Leaving, guarded: list[RealWorker]) -> None:
    leaving.drain()
    _replaced(leaving, guarded)


def _now(leaving: Leaving, guarded: list[RealWorker]) -> None:
    for worker in guarded:
        worker.stop()
    leaving.drain("--now")
    leaving.start_workers(is_guarded=False)


def _to_dead(leaving: Leaving, guarded: list[RealWorker]) -> None:
    for worker in guarded:
        worker.stop()
    leaving.drain("--to-dead")


def _undrained(leaving: Leaving, guarded: list[RealWorker]) -> None:
    _replaced(leaving, guarded)
    half = leaving.retries // 2
    until(lambda: leaving.waiting() < leaving.retries * 3 // 4, 900, "a quarter to be promoted")
    leaving.stop_watch(signal.SIGTERM)
    time.sleep(leaving.away_s)
    leaving.start_watch()
    until(lambda: leaving.waiting() < half, 900, "half of them")
    leaving.stop_watch(signal.SIGKILL)
    leaving.start_watch()


def _replaced(leaving: Leaving, guarded: list[RealWorker]) -> None:
    for worker in guarded:
        worker.stop()
    leaving.start_workers(is_guarded=False)


_WAYS: dict[str, Callable[[Leaving, list[RealWorker]], None]] = {
    "drain": _by_drain, "now": _now, "to_dead": _to_dead, "undrained": _undrained,
}  # fmt: skip


def measure(
    folder: Path, how: str, retries: int, per_second: int, broker: str = "redis", **more: Any
) -> dict[str, Any]:
    """One way of leaving, on servers of its own."""
    from dashboard.setup.engine import Engine
    from tests.kit.rabbitmq import HOW_TO_GET_IT, Node, server

    with contextlib.ExitStack() as stack:
        store = Engine(folder / "store").start()
        stack.callback(store.stop)
        if broker == "rabbitmq" and server() is None:
            raise SystemExit(HOW_TO_GET_IT)
        there = (Engine(folder / "broker") if broker == "redis" else Node(folder / "node")).start()
        stack.callback(there.stop)
        leaving = Leaving(folder, there.url, store.url, retries, per_second, **more)
        with leaving.open():
            return leaving.run(how)
