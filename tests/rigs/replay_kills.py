"""A replay whose sender, web and Redis are killed again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kombu import Connection

from jobs_admin.worker.redis_clients import from_url
from tests.kit.forked import Forked
from tests.kit.sentinels import SentinelSet
from tests.kit.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
_STATE = """
r = Replay.objects.get()
say({"state": r.state, "total": r.total, "planned": r.planned, "sent": r.sent, "running": r.running, "succeeded": r.succeeded,
     "failed_again": r.failed_again, "uncertain": r.uncertain, "cancelled": r.cancelled, "held_because": r.held_because,
     "uncertain_jobs": [int(j[1:]) for j in r.items.filter(state="uncertain").values_list("failure__first_job_id", flat=True)]})
"""


@dataclass
class Havoc:
    """The parts of a desk, to be killed and started again."""

    folder: Path
    jobs: int
    rate: float | None
    outcome_within_s: int
    seed: int
    on_rabbitmq: str = ""  # its URL, where it is the broker
    on_sentinels: SentinelSet | None = None  # where it is the broker and the store
    kills: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Havoc:
        from dashboard.setup.engine import Engine, free_port
        from tests.kit.celery import RealWorker
        from tests.kit.desks import Desk

        self.random = random.Random(self.seed)
        self.stack = contextlib.ExitStack()
        if self.on_sentinels is None:
            self.engine = Engine(self.folder / "engine").start()
            self.stack.callback(lambda: self.engine.stop())
        store = self.engine.url if self.on_sentinels is None else self.on_sentinels.url
        self.port = free_port()
        self.broker = self.on_rabbitmq or store
        self.desk = Desk(self.folder, store)
        sources = self.folder / "sources.toml"
        sources.write_text(
            f'[sources.shop]\nbackend = "celery"\nurl = "{self.broker}"\nqueues = ["emails"]\n'
            f"outcome_within_s = {self.outcome_within_s}\n"
        )
        self.desk.environment |= {
            "REDRIVE_SOURCES": str(sources), "REDRIVE_DEMO_BROKER_URL": "", "REDRIVE_DATA": str(self.folder), "ALLOWED_HOSTS": "*",
        }  # fmt: skip
        self.parts = {"watch": self._watch(), "sender": self._sender(), "web": self._web()}
        self.stack.callback(self._stop_parts)
        self.worker = RealWorker(self.broker, store, pool="solo", concurrency=1, queues="emails").start()
        self.stack.callback(self.worker.kill)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _watch(self, steps: str = "ingest,settle,lay,reconcile") -> Forked:
        code = f"from django.core.management import call_command\ncall_command('watch', '--only', {steps!r})"
        return self._run(code)

    def _run(self, code: str) -> Forked:
        return self.desk.start(code, self.folder / "parts.log")

    def _sender(self) -> Forked:
        return self._watch("send")

    def _web(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dashboard.web", f"127.0.0.1:{self.port}"]
        with (self.folder / "parts.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log, process_group=0
            )

    def _stop_parts(self) -> None:
        for process in self.parts.values():
            _kill(process)

    def run(self, kills: int) -> dict:
        self.desk.run(f"bury({self.jobs}, 'noted')", 900)
        pace = {"style": "at_once"} if self.rate is None else {"style": "steady", "rate": self.rate}
        self.desk.run(
            f"replays.start(ANN, replays.draft(ANN, query='queue:emails', pace={pace!r}, reason='bench')); say(1)", 300
        )
        begun = time.monotonic()
        # So many jobs have run before the next kill: moments all over the replay, whatever the machine does meanwhile.
        moments = sorted(self.random.randrange(1, self.jobs) for _ in range(kills))
        for number, moment in enumerate(moments):
            self._until(lambda moment=moment: self._ran() >= moment, 300, f"kill {number + 1}")
            self._kill_one("primary" if self.on_sentinels else ("sender", "redis", "web")[number % 3])
        result = self._until_ended(begun)
        took = time.monotonic() - begun
        # A job without news is uncertain after `outcome_within_s`, wherever it is: a worker that was slow may still have it before it.
        self._until(lambda: not self._count_queued(), 120, "the queue to be empty")
        return self._account(result, took)

    def _kill_one(self, what: str) -> None:
        time.sleep(self.random.random() * 0.2)
        self.kills.append(what)
        if self.on_sentinels is not None:
            self.on_sentinels.primary.kill()
        elif what == "redis":
            from dashboard.setup.engine import Engine

            assert self.engine.process is not None
            _kill(self.engine.process)
            self.engine = Engine(self.folder / "engine", self.engine.port, self.engine.password).start()
        else:
            _kill(self.parts[what])
            self.parts[what] = {"sender": self._sender, "web": self._web}[what]()

    def _ran(self) -> int:
        self._probe_web()
        return len(self.worker.marks("noted")) // 2

    def _probe_web(self) -> None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2) as answer:
                self.answers[str(answer.status)] += 1
        except OSError as error:
            self.answers[type(error).__name__] += 1

    def _until(self, reached, deadline_s: float, what: str):
        def text() -> str:
            return f"{self.desk.run(_STATE)}\n{self.worker.text()[-2000:]}"

        return wait_until(reached, what, within_s=deadline_s, every_s=0.05, text=text)

    def _until_ended(self, begun: float) -> dict:
        def ended():
            rows = self.desk.run(_STATE)
            return rows if not (rows["planned"] or rows["sent"] or rows["running"]) else None

        return self._until(ended, 300 + 2 * self.outcome_within_s, "the replay to end")

    def _account(self, result: dict, took: float) -> dict:
        lines = [line.split() for line in self.worker.marks("noted")]
        ran = Counter(int(n) for what, _, n, _, again in lines if what == "start" and again == "first")
        again = Counter(int(n) for what, _, n, _, again in lines if what == "start" and again == "again")
        uncertain = set(result.pop("uncertain_jobs"))
        every = range(self.jobs)
        return {
            "jobs": self.jobs,
            "kills": dict(Counter(self.kills)),
            "seconds": round(took, 1),
            "replay": result,
            "ran_once": sum(ran[n] + again[n] == 1 for n in every),
            "never_ran_and_uncertain": sum(not ran[n] + again[n] and n in uncertain for n in every),
            # What must be nought:
            "never_ran_and_not_uncertain": sum(not ran[n] + again[n] and n not in uncertain for n in every),
            "ran_twice": sum(ran[n] > 1 for n in every),
            # Celery's worker gives back what it has fetched when it loses its connection, and marks it as redelivered.
            "ran_again_by_the_broker": sum(again[n] > 0 and ran[n] + again[n] > 1 for n in every),
            "left_in_the_queue": self._count_queued(),
            "healthz": dict(self.answers),
        }

    def _count_queued(self) -> int:
        if not self.on_rabbitmq:
            with from_url(self.broker, socket_timeout=5) as client:
                return client.llen("emails")
        with Connection(self.broker) as connection:
            return connection.default_channel.queue_declare("emails", passive=True).message_count


def _kill(process: subprocess.Popen[bytes] | Forked) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
