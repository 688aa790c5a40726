"""An incident of BullMQ jobs, for real: failed by a Node worker, read by a desk, replayed to a service that warms up."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from demo import control
from demo.temper import Temper
from tests.rigs.recovery_real import WARMING_S, end, known_s

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "webhooks"
COLD, WARM = 20.0, 300.0  # requests/s that the service carries when it is back, and so much later
AT_ONCE, TAKES_MS = 150, 50  # jobs of the worker at a time, and how long each takes at least
RESUMED_S = 20.0  # a held replay waits so long for its operator
WITHIN_S = 1_800.0
_SOURCES = """
[sources.hooks]
backend = "bullmq"
url = "{url}"
"""
_REPLAYED = """
from demo import control
from django.db.models import Count
draft = replays.draft(ANN, query="source:hooks state:dead", pace={pace!r}, reason="the customer is back")
control.set_mode("{partner}", "warming")
replay = replays.start(ANN, draft)
began, held_at = time.time(), None
say({{"began": began, "pace": replay.pace, "total": replay.total}})
ends = time.monotonic() + {within_s}
while replay.state != "done" and time.monotonic() < ends:
    time.sleep(0.5)
    replay.refresh_from_db()
    now = time.time() - began
    gone = replay.sent + replay.running + replay.succeeded + replay.failed_again
    say([round(now, 1), replay.state, replay.rate, gone, replay.held_because])
    held_at = (held_at or now) if replay.state == "held" else None
    if held_at is not None and now - held_at > {resumed_s}:
        replay = replays.resume(ANN, replay, reason="bench")
say({{"state": replay.state, "succeeded": replay.succeeded, "failed_again": replay.failed_again, "uncertain": replay.uncertain,
      "planned": replay.planned, "first_attempts_failed": replay.items.filter(first_ok=False).count(),
      "states": dict(Failure.objects.values_list("state").annotate(n=Count("pk"))), "took_s": round(time.time() - began, 1)}})
"""


def serve(port: int, diary: Path, cold: float, warm: float) -> None:
    """HTTP with connections that stay open: a thread a request would be the bottleneck at 300 a second."""
    temper = Temper(time.monotonic(), lambda since: cold + (warm - cold) * min(1.0, since / WARMING_S), sheds=True)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: Any) -> None:
        try:
            while line := await reader.readline():
                method, length = line.split()[0], 0
                while (header := await reader.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                    elif header.lower().startswith(b"transfer-encoding:"):
                        length = -1
                body = await (_chunks(reader) if length < 0 else reader.readexactly(length))
                now, status = time.monotonic(), 200
                if method == b"PUT":
                    temper.change(json.loads(body)["mode"], now)
                else:
                    status = temper.answer(now).status
                    lines.write(f"{time.time():.3f} {status} {temper.mode.name}\n")
                if status == 0:
                    break
                writer.write(
                    b"HTTP/1.1 %d Said\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % status
                )
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        with diary.open("w", buffering=1) as lines:
            server = await asyncio.start_server(lambda r, w: converse(r, w, lines), "127.0.0.1", port, backlog=512)
            await server.serve_forever()

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(run())


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


@dataclass
class Service:
    """The customer's service, in a process of its own, and what it wrote down."""

    folder: Path
    stack: ExitStack
    cold: float
    warm: float

    def start(self) -> Service:
        from dashboard.setup.engine import free_port

        port = free_port()
        self.url, self.diary = f"http://127.0.0.1:{port}", self.folder / f"diary-{port}"
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(port, self.diary, self.cold, self.warm), daemon=True
        )
        process.start()
        self.stack.callback(process.kill)
        ends = time.monotonic() + 20
        while True:
            try:
                control.set_mode(self.url, "outage")
                return self
            except control.DemoUnreachable:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)

    def count_requests(self, since: float) -> dict[str, Any]:
        requests = [line.split() for line in self.diary.read_text().splitlines()]
        mine = [(float(at), status, mode) for at, status, mode in requests if float(at) >= since]
        modes = ["warming", *(mode for _, _, mode in mine)]
        seconds = Counter(int(at) for at, _, _ in mine)
        return {
            "requests": len(mine),
            "served": sum(status == "200" for _, status, _ in mine),
            "collapses": sum(then == "outage" != before for before, then in pairwise(modes)),
            "requests_while_down": modes.count("outage"),
            "most_in_a_second": max(seconds.values(), default=0),
        }


@dataclass
class Incident:
    """BullMQ with its jobs, the service and the desk."""

    folder: Path
    jobs: int
    cold: float = COLD
    warm: float = WARM
    major: int = 6
    only: str = ""  # steps of `watch`; all where none is named
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Incident:
        with ExitStack() as stack:
            self._bring_up(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _bring_up(self, stack: ExitStack) -> None:
        from dashboard.setup.engine import Engine
        from tests.kit import node
        from tests.kit.desks import Desk

        engine = Engine(self.folder / "engine").start()
        stack.callback(engine.stop)
        self.store = engine.url
        self.project = node.project(self.folder / "node", self.major)
        shutil.copy(Path(__file__).with_suffix(".mjs"), self.project)
        self.desk = Desk(self.folder, engine.url)
        (self.folder / "sources.toml").write_text(_SOURCES.format(url=self.database(1)))
        self.desk.environment.pop("REDRIVE_DEMO_BROKER_URL")
        self.desk.environment |= {
            "REDRIVE_SOURCES": str(self.folder / "sources.toml"),
            "REDRIVE_DATA": str(self.folder),
        }
        self.services = stack.enter_context(ExitStack())

    def database(self, number: int) -> str:
        return f"{self.store.removesuffix('/0')}/{number}"

    def client(self, number: int) -> redis.Redis:
        return redis.Redis.from_url(self.database(number))

    def node(self, do: str, number: int = 1, **more: Any) -> Any:
        from tests.kit import node

        request = {"do": do, "url": self.database(number), "queue": QUEUE, **more}
        return node.Script(self.project / "bullmq_incident.mjs", json.dumps(request)).start()

    def make(self) -> dict[str, Any]:
        script = self.node("make", jobs=self.jobs)
        answer = json.loads(script.wait_for('"made"', deadline_s=WITHIN_S))
        script.stop()
        for number in (2, 3):  # for the dashboards
            self._copy(number)
        return {name: round(answer[name], 1) for name in ("added_s", "died_s")}

    def _copy(self, number: int) -> None:
        client = self.client(1)
        keys = client.scan_iter(count=5_000)
        pipe = client.pipeline(transaction=False)
        for n, key in enumerate(keys, 1):
            pipe.copy(key, key, destination_db=number)
            if n % 5_000 == 0:
                pipe.execute()
        pipe.execute()

    # (a)

    def indexed(self) -> dict[str, Any]:
        """From the start of `watch` on an empty desk until every dead job is a row that can be searched."""
        began = time.time()
        command = [sys.executable, "manage.py", "watch", *(["--only", self.only] if self.only else [])]
        with (self.folder / "watch.log").open("ab") as log:
            watch = subprocess.Popen(
                command, cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log,
                process_group=0,
            )  # fmt: skip
        self.stack.callback(end, watch)
        samples: list[tuple[float, int]] = []
        while not samples or samples[-1][1] < self.jobs:
            time.sleep(0.1)
            samples.append((time.time() - began, self._rows()))
            assert samples[-1][0] < WITHIN_S and watch.poll() is None, (self.folder / "watch.log").read_text()[-3000:]
        first = next(at for at, rows in samples if rows)
        return {
            "all_in_the_index_after_s": round(samples[-1][0], 1),
            "of_it_until_the_first_s": round(first, 1),
            "rows_per_s": round(self.jobs / (samples[-1][0] - first + 0.1)),
        }

    def _rows(self) -> int:
        with sqlite3.connect(f"file:{self.folder / 'desk.sqlite3'}?mode=ro", uri=True, timeout=5) as database:
            return int(database.execute("SELECT count(*) FROM jobs_admin_failure WHERE state = 'dead'").fetchone()[0])

    def flowed(self, seconds: float) -> dict[str, Any]:
        """Other jobs of the queue succeed, as many a second as the service carries, and the desk counts them by BullMQ's events."""
        script = self.node("flow", rate=round(self.warm), seconds=seconds, takes_ms=TAKES_MS)
        answer = json.loads(script.wait_for('"flowed"', deadline_s=WITHIN_S))
        script.stop()
        time.sleep(10)  # what the desk has read by now is in its counters
        return {name: round(answer[name], 1) for name in ("jobs", "seconds")}

    # (b), (c)

    def replayed(self, pace: dict[str, Any]) -> dict[str, Any]:
        service = Service(self.folder, self.stack, self.cold, self.warm).start()
        lines = self.folder / "lines-careful"
        worker = self._worker(1, service, lines)
        operator = self.desk.start(
            _REPLAYED.format(pace=pace, partner=service.url, resumed_s=RESUMED_S, within_s=WITHIN_S)
        )
        assert operator.stdout is not None
        samples: list[tuple[float, int, int]] = []
        is_over = threading.Event()
        sampler = threading.Thread(target=self._watch_queue, args=(samples, is_over), daemon=True)
        sampler.start()
        try:
            acts = [json.loads(line) for line in operator.stdout]
        finally:
            operator.kill()
            is_over.set()
            sampler.join()
        begun, course, ended = acts[0], acts[1:-1], acts[-1]
        worker.stop()
        ran = [line.split() for line in lines.read_text().splitlines()]
        ok = Counter(job for job, how, *_ in ran if how == "ok")
        reasons = [why for (*_, before), (_, state, *_, why) in pairwise(course) if why != before and state == "held"]
        gone = {s: self.jobs - min(dead for at, dead, _ in samples if at <= begun["began"] + s) for s in (1, 2, 5)}
        return {
            **service.count_requests(begun["began"]),
            **ended,
            "pace": begun["pace"],
            "held_because": reasons,
            "course": [
                f"{at:.0f} s: {state}, {rate:.0f}/s, {sent:,} sent" for at, state, rate, sent, _ in course[::60] if rate
            ],
            "ready_in_the_first_second": gone[1],
            "within_2_s": gone[2],
            "within_5_s": gone[5],
            "most_prioritized_at_once": max(urgent for *_, urgent in samples),
            "worker": {
                "jobs_that_ran_well": len(ok),
                "more_than_once": sum(n > 1 for n in ok.values()),
                "runs_that_failed": sum(how == "failed" for _, how, *_ in ran),
                "began_at_attempt": dict(Counter(attempts for *_, attempts in ran)),
            },
            "bullmq": self._counts(1),
            "one_that_knows_the_capacity_s": round(known_s(self.jobs, self.cold, self.warm), 1),
            "load": round(os.getloadavg()[0], 1),
        }

    def _watch_queue(self, samples: list[tuple[float, int, int]], is_over: threading.Event) -> None:
        """(When, dead, of those that wait the urgent): a hundred times a second."""
        client, key = self.client(1), f"bull:{QUEUE}:"
        while not is_over.wait(0.01):
            dead, urgent = client.pipeline(transaction=False).zcard(key + "failed").zcard(key + "prioritized").execute()
            samples.append((time.time(), dead, urgent))

    # (d)

    def retried(self, do: str, number: int) -> dict[str, Any]:
        client, key = self.client(number), f"bull:{QUEUE}:"
        service = Service(self.folder, self.stack, self.cold, self.warm).start()
        control.set_mode(service.url, "warming")
        lines = self.folder / f"lines-{do}"
        lines.touch()
        worker = self._worker(number, service, lines)
        before = client.zcard(key + "failed")
        dashboard = self.node(do, number)
        pressed = json.loads(dashboard.wait_for('"ready"'))["at"]
        samples: list[tuple[float, int]] = []
        stored: dict[str, int] = {}
        ends = time.monotonic() + WITHIN_S
        while time.monotonic() < ends:
            waiting, urgent, active, delayed = (
                client.pipeline(transaction=False).llen(key + "wait").zcard(key + "prioritized").llen(key + "active")
                .zcard(key + "delayed").execute()
            )  # fmt: skip
            samples.append((time.time() - pressed, waiting + urgent + active))
            stored["most_prioritized_at_once"] = max(stored.get("most_prioritized_at_once", 0), urgent)
            if not dashboard.is_running and not (waiting + urgent + active + delayed):
                break
            time.sleep(0.02)
        worker.stop()
        ran = [line.split() for line in lines.read_text().splitlines()]
        ready = {s: max((n for at, n in samples if at <= s), default=0) for s in (1, 2, 5)}
        return {
            "dead_before": before,
            "ready_in_the_first_second": ready[1],
            "within_2_s": ready[2],
            "within_5_s": ready[5],
            **service.count_requests(pressed),
            "ran_well": sum(how == "ok" for _, how, *_ in ran),
            "dead_again": client.zcard(key + "failed"),
            "took_s": round(samples[-1][0], 1),
            "began_at_attempt": dict(Counter(attempts for *_, attempts in ran)),
            "jobs_with_a_priority": math.ceil(self.jobs / 10),
            **stored,
            "load": round(os.getloadavg()[0], 1),
        }

    def _worker(self, number: int, service: Service, lines: Path) -> Any:
        lines.touch()
        worker = self.node("work", number, partner=service.url, lines=str(lines), at_once=AT_ONCE, takes_ms=TAKES_MS)
        worker.wait_for('"done"')
        return worker

    def _counts(self, number: int) -> dict[str, int]:
        script = self.node("counts", number)
        answer: dict[str, Any] = json.loads(script.wait_for('"counts"'))
        script.stop()
        return {state: n for state, n in answer["counts"].items() if n}
