"""Workers killed at random while jobs fail, on a broker and a store of their own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import redis

from jobs_admin.core import keys
from tests.rigs import journal_jobs, kill_history
from tests.rigs.kill_rig import Fleet, plan, until

ROOT = Path(__file__).resolve().parents[2]
VISIBILITY_S = 5
FAILING, SECONDS = 0.1, 0.01  # share of jobs that fail; mean time that one takes
WITHIN_S = 1800.0
# Of one run with the guard, what must be empty under late ack; and of that, and beside it, what names jobs that are nowhere.
MUST_NOT_BE = (
    "missing",
    "vanished",
    "gone_while_retrying",
    "invented",
    "begun_again_unflagged",
    "wrong_states",
    "wrong_counters",
    "left",
)
GONE = ("lost_before_they_start", "vanished", "gone_while_retrying")


class Broker(Protocol):
    url: str

    def waiting(self) -> int:
        """Jobs that no one has fetched, or that were fetched and are not acknowledged, as far as the broker reports."""
        ...


@dataclass
class OnRedis:
    url: str

    def waiting(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            lists = sum(client.llen(name) for name in client.keys(f"{journal_jobs.QUEUE}*"))
            return lists + client.hlen("unacked") + client.zcard(keys.due("shop"))


@dataclass
class OnRabbitMQ:
    url: str
    store: str

    def waiting(self) -> int:
        from kombu import Connection

        with Connection(self.url) as connection, redis.Redis.from_url(self.store) as client:
            ready = connection.default_channel.queue_declare(journal_jobs.QUEUE, passive=True).message_count
            return ready + client.zcard(keys.due("shop"))


@dataclass
class Rig:
    """One run: broker and store are empty, folder and desk are its own."""

    folder: Path
    broker: Broker
    store: Any  # an Engine
    jobs: int
    kills: int
    seed: int
    workers: int = 2
    children: int = 4
    visibility_s: int = VISIBILITY_S
    failing: float = FAILING
    hung_each: int = 5  # kills: the store hangs at each so many-th

    def run(self, how: str) -> dict[str, Any]:
        is_guarded, late_ack = not how.startswith("stock"), "late" in how
        environment = journal_jobs.environment(
            self.broker.url,
            self.store.url,
            self.folder,
            late_ack=late_ack,
            visibility_s=self.visibility_s,
            is_guarded=is_guarded,
        )
        with contextlib.ExitStack() as stack:
            trace = stack.enter_context(self._trace())
            desk = stack.enter_context(self._desk()) if is_guarded else None
            if is_guarded:
                self._publish(how)
            began = time.monotonic()
            sender = threading.Thread(target=self._send, args=(late_ack,))
            sender.start()
            stack.callback(sender.join)
            with Fleet(self.workers, self.children, environment, self.folder) as fleet:
                skipped = self._kill(fleet)
                sender.join()
                left = self._until_quiet(fleet)
                took = time.monotonic() - began
                fleet.stop()
            if desk is not None:
                left |= self._until_filed(fleet)
            found = self._build_report(how, desk, fleet)
            if trace is not None:
                found |= _whereabouts(trace, found)
            return {
                "how": how, "seed": self.seed, "kills": dict(fleet.killed), "found_nobody": skipped, **found, "left": left,
                "seconds": round(took, 1), "load": [round(one, 1) for one in os.getloadavg()],
            }  # fmt: skip

    # The parts

    def _trace(self) -> Any:
        from tests.rigs.trace import Trace

        return Trace(self.broker.url) if isinstance(self.broker, OnRedis) else contextlib.nullcontext()

    @contextlib.contextmanager
    def _desk(self) -> Iterator[Any]:
        from tests.kit.desks import Desk

        desk = Desk(self.folder, self.store.url)
        sources = self.folder / "sources.toml"
        sources.write_text(
            f'[sources.shop]\nbackend = "celery"\nurl = "{self.broker.url}"\nqueues = ["{journal_jobs.QUEUE}"]\n'
        )
        desk.environment |= {
            "REDRIVE_SOURCES": str(sources), "REDRIVE_DEMO_BROKER_URL": "", "REDRIVE_DATA": str(self.folder),
        }  # fmt: skip
        with (self.folder / "watch.log").open("ab") as log:
            watch = subprocess.Popen(
                [sys.executable, "manage.py", "watch", "--only", "ingest,reconcile,promote,sample"],
                cwd=ROOT, env=desk.environment, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        try:
            yield desk
        finally:
            watch.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                watch.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watch.pid, signal.SIGKILL)
            watch.wait()

    def _publish(self, how: str) -> None:
        from tests.kit.policies import policy, published

        backoff = {"kind": "fixed", "first_delay_s": 1}
        again = policy("again", journal_jobs.AGAIN, max_attempts=journal_jobs.TRIES, backoff=backoff)
        if how.endswith("ledger"):
            again |= {"file_lost": True}
            once = policy("once", journal_jobs.ONCE, max_attempts=1, file_lost=True)
            published(self.store.url, again, once)
        else:
            published(self.store.url, again)

    def _send(self, late_ack: bool) -> None:
        app = journal_jobs.make_app(self.broker.url, late_ack=late_ack, visibility_s=self.visibility_s)
        journal_jobs.send(app, self.jobs, self.failing, SECONDS, random.Random(self.seed))

    def _kill(self, fleet: Fleet) -> int:
        """As planned; answers how often there was no one to kill."""
        skipped = 0
        for kill in plan(self.seed, self.kills, self.jobs, self.workers, hung_each=self.hung_each):
            if not until(fleet, lambda kill=kill: fleet.starts() >= kill.after, WITHIN_S):
                raise SystemExit(f"after {fleet.killed} nothing goes on any more; {self.folder} tells")
            with self._hung() if kill.is_hung else contextlib.nullcontext():
                until(fleet, lambda: False, kill.pause_s)
                # The same kills for everybody: who was killed a moment ago is waited for.
                if not until(fleet, lambda kill=kill: fleet.kill(kill), 30):
                    skipped += 1
                until(fleet, lambda: False, 0.5 if kill.is_hung else 0)
        return skipped

    @contextlib.contextmanager
    def _hung(self) -> Iterator[None]:
        """The store does not answer; no one's connection breaks."""
        pid = self.store.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _until_quiet(self, fleet: Fleet) -> dict[str, int]:
        """Nothing is written and nothing waits for longer than the broker holds anything back. Else what is left."""
        since, before = time.monotonic(), -1

        def is_quiet() -> bool:
            nonlocal since, before
            time.sleep(0.2)
            lines = fleet.written_bytes()
            if lines != before or self.broker.waiting():
                since, before = time.monotonic(), lines
            return time.monotonic() - since > self.visibility_s + 3

        return {} if until(fleet, is_quiet, WITHIN_S) else {"in the broker": self.broker.waiting()}

    def _until_filed(self, fleet: Fleet) -> dict[str, int]:
        spool = self.folder / "spool" / "shop"

        def count_unfiled() -> dict[str, int]:
            with redis.Redis.from_url(self.store.url) as client:
                counts = {
                    "on the stream": client.xlen(keys.failures("shop")),
                    "in the spool": len(list(spool.glob("*.spool"))),
                    "kept of the dead": client.scard(keys.kept_boots("shop")),
                }
            return {where: n for where, n in counts.items() if n}

        ends = time.monotonic() + 150
        while count_unfiled() and time.monotonic() < ends:
            time.sleep(0.2)
        return count_unfiled()

    def _build_report(self, how: str, desk: Any, fleet: Fleet) -> dict[str, Any]:
        lines = list(journal_jobs.lines(self.folder / "lines"))
        filed = kill_history.desk(desk.run(kill_history.QUERY, 300)) if desk else kill_history.Desk([], {})
        found = kill_history.checked(self.jobs, lines, filed, fleet.killed)
        if desk is None:
            ended = {line.job for line in lines if line.what != journal_jobs.START}
            began = {line.job for line in lines}
            found = {name: found[name] for name in ("jobs", "began", "through", "attempts_about_to_raise",
                     "lost_before_they_start", "attempts_begun_again", "begun_again_unflagged")}  # fmt: skip
            found["vanished"] = kill_history.list_or_count(began - ended)
        return found


def _whereabouts(trace: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Jobs that are nowhere any more: whom kombu lost, and what the broker saw of the others."""
    names = {job for name in GONE for job in (found.get(name) if isinstance(found.get(name), list) else ())}
    by_kombu = sorted(job for job in names if trace.was_popped_and_never_noted(job))
    others = sorted(names - set(by_kombu))
    seen = {
        job: [f"{step.at:.3f} {step.client} {step.command} {step.key}" for step in trace.list_steps(job)]
        for job in others[:10]
    }
    return {"lost_by_kombu": by_kombu, "lost_otherwise": others, "seen_of_those": seen}


def trouble(found: dict[str, Any]) -> dict[str, Any]:
    """Faults that must not be in a run under late ack, of which kombu is not the cause."""
    kombus = set(found.get("lost_by_kombu", ()))
    wrong = {name: found[name] for name in MUST_NOT_BE if found.get(name)}
    for name in GONE:
        if isinstance(wrong.get(name), list) and set(wrong[name]) <= kombus:
            del wrong[name]
    if found.get("lost_otherwise"):
        wrong["lost_otherwise"] = found["lost_otherwise"]
    return wrong


@contextlib.contextmanager
def rigs(folder: Path, broker: str = "redis") -> Iterator[Any]:
    """Makes rigs, one after the other, on servers of their own."""
    from dashboard.setup.engine import Engine

    with contextlib.ExitStack() as stack:
        store = Engine(folder / "store").start()
        stack.callback(store.stop)
        if broker == "redis":
            engine = Engine(folder / "broker").start()
            stack.callback(engine.stop)
            there: Broker = OnRedis(engine.url)
        else:
            from tests.kit.rabbitmq import HOW_TO_GET_IT, Node, server

            if server() is None:
                raise SystemExit(HOW_TO_GET_IT)
            node = Node(folder / "node").start()
            stack.callback(node.stop)
            there = OnRabbitMQ(node.url, store.url)

        def make(**options: Any) -> Rig:
            with redis.Redis.from_url(store.url) as client:
                client.flushall()
            if isinstance(there, OnRedis):
                with redis.Redis.from_url(there.url) as client:
                    client.flushall()
            own = folder / f"run-{options.pop('name', '')}"
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir()
            return Rig(own, there, store, **options)

        yield make
