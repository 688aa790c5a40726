"""Poison pills among good jobs: how often each pill starts before it is in quarantine, and what becomes of the others.

    python -m bench.poison [--pills 20] [--good 2000] [--k 1,3,5] [--deaths 10] [--stock 60]

Pills of six kinds, 20 each: SIGKILL, segfault, os._exit, out of memory, hard limit, and one that takes its whole worker
along. Two prefork workers of four children each, started again whenever one dies; Redis broker, late ack,
`reject_on_worker_lost`. `--deaths` is a run of its own: whole workers are killed from outside so often, at random moments,
while good jobs run; no job may be convicted. `--stock`: seconds of the same without a guard. Prints JSON.

What is counted comes from the jobs' own lines and from the reports in the store, never from the guard's counts. A job that
is nowhere any more (not ended, not quarantined, not in the broker) is reported with what the broker's MONITOR saw of it
(`tests/rigs/trace.py`): `lost_by_kombu` if the last of that is a push on its list, so that a BRPOP took it and whoever asked died
before it noted that; else `lost_otherwise`, which would be ours. The same is counted for stock Celery (`killed_from_outside`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from bench import pills
from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, decode
from tests.kit.policies import policy, published, running
from tests.rigs.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
WORKERS, CHILDREN = 2, 4
PATIENCE_S = 1500
BACKLOG, LIFE_S = 300, 7.0  # jobs that wait while workers are killed, and how long each lives: it is at work by then
WINDOW_S = 3600  # longer than a run takes: a pill that comes back after the window counts anew


class Fleet:
    """Workers that are started again whenever they die, as a supervisor does."""

    workers, children = WORKERS, CHILDREN

    def __init__(self, broker: str, store: str, folder: Path, *, is_stock: bool = False) -> None:
        self.folder, self.deaths = folder, 0
        self._environment = pills.environment(broker, store, folder, is_stock=is_stock)
        self._log = (folder / "log").open("ab")
        self._workers: list[subprocess.Popen[bytes]] = []
        self._since = [0.0] * self.workers  # monotonic

    def __enter__(self) -> Fleet:
        self._workers = [self._start(n) for n in range(self.workers)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._log.close()

    def _start(self, n: int) -> subprocess.Popen[bytes]:
        self._since[n] = time.monotonic()
        return subprocess.Popen(
            pills.worker_command(f"w{n}", self.children),
            cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log, process_group=0,
        )  # fmt: skip

    def restart_dead(self) -> None:
        for n, worker in enumerate(self._workers):
            if worker.poll() is not None:
                _end(worker)  # children that lost their parent
                self.deaths += 1
                self._workers[n] = self._start(n)

    def oldest_s(self) -> float:
        """The age of the one that lives longest."""
        return time.monotonic() - min(self._since)

    def kill_oldest(self) -> None:
        _end(self._workers[self._since.index(min(self._since))])

    def lines(self) -> list[list[str]]:
        file = self.folder / "lines"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def _end(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def reports(store: redis.Redis) -> list[Envelope]:
    return [decode(fields) for _, fields in store.xrange(keys.failures("shop"))]


def wait(fleet: Fleet, is_done: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        fleet.restart_dead()
        if is_done():
            return True
        time.sleep(0.25)
    return False


def in_force(fleet: Fleet, store: redis.Redis, url: str, k: int) -> None:
    fields = {"max_attempts": 50, "poison": {"crashes": k, "window_s": WINDOW_S}}
    version = published(url, policy("all", "*", **fields, backoff={"kind": "fixed", "first_delay_s": 0.2}))
    is_reported = wait(
        fleet, lambda: [one["policies"] for one in running(url)] == [{"all": version}] * fleet.workers, 60
    )
    assert is_reported, "the policy did not come into force"


def run(k: int, each: int, good: int, engines: tuple[Engine, Engine]) -> dict[str, Any]:
    broker, store = engines
    with (
        tempfile.TemporaryDirectory() as name,
        redis.Redis.from_url(store.url) as reader,
        Trace(broker.url) as trace,
        Fleet(broker.url, store.url, Path(name)) as fleet,
    ):
        in_force(fleet, reader, store.url, k)
        ids = send(broker.url, each, good)
        began = time.monotonic()

        def open_jobs() -> set[str]:
            quarantined = {one.job_id for one in reports(reader) if one.crashes}
            ended = {f"good-{line[2]}" for line in fleet.lines() if line[:2] == ["end", "good"]}
            return (ids.keys() | {f"good-{n}" for n in range(good)}) - quarantined - ended

        gone = Gone(broker.url)
        is_over = wait(fleet, lambda: not open_jobs() - gone.among(open_jobs()))
        took = time.monotonic() - began
        lost = sorted(open_jobs())
        wait(fleet, lambda: False, 12)  # nothing may start any more
        found = summarise(k, ids, good, fleet, reports(reader))
        return found | whereabouts(trace, lost) | {"over": is_over, "seconds": round(took, 1), "load": load()}


def load() -> list[float]:
    return [round(one, 1) for one in os.getloadavg()]


def whereabouts(trace: Trace, lost: list[str]) -> dict[str, Any]:
    by_kombu = [job for job in lost if trace.was_popped_and_never_noted(job)]
    return {
        "lost_by_kombu": by_kombu,
        "lost_otherwise": sorted(set(lost) - set(by_kombu)),
        "seen_of_the_lost": {
            job: [f"{step.at:.3f} {step.client} {step.command} {step.key}" for step in trace.list_steps(job)]
            for job in lost
        },
    }


class Gone:
    """Jobs that the broker does not have: seen nowhere for so long that none can be between two places."""

    def __init__(self, url: str, for_s: float = 20.0) -> None:
        self._client = redis.Redis.from_url(url)
        self._for_s = for_s
        self._since: dict[str, float] = {}

    def among(self, jobs: set[str]) -> set[str]:
        now, here = time.monotonic(), self._find_jobs()
        self._since = {job: self._since.get(job, now) for job in jobs - here}
        return {job for job, since in self._since.items() if now - since > self._for_s}

    def _find_jobs(self) -> set[str]:
        texts = [text for key in self._client.keys("jobs*") for text in self._client.lrange(key, 0, -1)]
        texts += [json.loads(text)[0] for text in self._client.hvals("unacked")]
        texts += [text.partition(b"\n")[2] for text in self._client.hvals(keys.due_jobs("shop"))]
        found = [text if isinstance(text, dict) else json.loads(text) for text in texts]
        return {message["headers"]["id"] for message in found}


def send(broker: str, each: int, good: int) -> dict[str, tuple[str, int]]:
    app = pills.make_app(broker)
    jobs = [(kind, n) for kind in pills.KINDS for n in range(each)] + [("good", n) for n in range(good)]
    random.Random(4).shuffle(jobs)
    ids = {}
    for kind, n in jobs:
        if kind == "good":
            app.send_task("good", args=[n, 0.02], queue="jobs", task_id=f"good-{n}")
        else:
            ids[app.send_task(f"pill.{kind}", args=[n], queue="jobs", task_id=f"{kind}-{n}").id] = (kind, n)
    return ids


def summarise(
    k: int, ids: dict[str, tuple[str, int]], good: int, fleet: Fleet, found: list[Envelope]
) -> dict[str, Any]:
    lines = fleet.lines()
    starts = Counter((line[1], int(line[2])) for line in lines if line[0] == "begin")
    blamed = {one.job_id: one for one in found if one.crashes}
    ended = Counter(int(line[2]) for line in lines if line[:2] == ["end", "good"])
    by_kind = {kind: Counter(starts[kind, n] for of, n in ids.values() if of == kind) for kind in pills.KINDS}
    records = {kind: Counter(len(json.loads(one.crashes)) for one in blamed.values() if ids.get(one.job_id, ("",))[0] == kind)
               for kind in pills.KINDS}  # fmt: skip
    return {
        "k": k,
        "starts_of_pills": {kind: dict(sorted(counts.items())) for kind, counts in by_kind.items()},
        "crash_records": {kind: dict(counts) for kind, counts in records.items()},
        "quarantined": len(blamed.keys() & ids.keys()),
        "of_pills": len(ids),
        "quarantined_wrongly": sorted(blamed.keys() - ids.keys()),
        "other_than_k": {
            job: story(lines, blamed.get(job), of, n) for job, (of, n) in ids.items() if starts[of, n] != k
        },
        "store_did_not_answer": (fleet.folder / "log").read_text(errors="replace").count("store does not answer"),
        "good_done": len(ended),
        "of_good": good,
        "good_run_twice": sum(1 for n in ended.values() if n > 1),
        "deaths_of_workers": fleet.deaths,
    }


def story(lines: list[list[str]], blamed: Envelope | None, of: str, n: int) -> dict[str, Any]:
    """The starts of a pill that started more or less often than it should: when, in which process, and what its records
    say.
    """
    began = [f"{line[4]} in {line[3]}" for line in lines if line[:3] == ["begin", of, str(n)]]
    return {"began": began, "records": json.loads(blamed.crashes) if blamed else None}


def outside_deaths(k: int, deaths: int, engines: tuple[Engine, Engine]) -> dict[str, Any]:
    """`k` 0: stock Celery."""
    broker, store = engines
    draw = random.Random(k)
    with (
        tempfile.TemporaryDirectory() as name,
        redis.Redis.from_url(store.url) as reader,
        Trace(broker.url) as trace,
        Fleet(broker.url, store.url, Path(name), is_stock=not k) as fleet,
    ):
        if k:
            in_force(fleet, reader, store.url, k)
        app, sent = pills.make_app(broker.url), 0
        waiting = redis.Redis.from_url(broker.url)

        def is_old_enough() -> bool:
            nonlocal sent
            while waiting.llen("jobs") < BACKLOG:
                app.send_task("good", args=[sent, 0.02], queue="jobs", task_id=f"good-{sent}")
                sent += 1
            return fleet.oldest_s() > LIFE_S

        def ended() -> set[str]:
            return {f"good-{line[2]}" for line in fleet.lines() if line[:2] == ["end", "good"]}

        for _ in range(deaths):
            wait(fleet, is_old_enough, 120)
            time.sleep(draw.uniform(0, 1))
            fleet.kill_oldest()
        gone = Gone(broker.url)

        def open_jobs() -> set[str]:
            return {f"good-{n}" for n in range(sent)} - ended()

        is_over = wait(fleet, lambda: not open_jobs() - gone.among(open_jobs()), 300)
        began = Counter(line[2] for line in fleet.lines() if line[:2] == ["begin", "good"])
        return {
            "k": k or "stock",
            "deaths_of_workers": fleet.deaths,
            "good_done": len(ended()),
            "of_good": sent,
            **whereabouts(trace, sorted(open_jobs())),
            "begun_more_than_once": sum(1 for n in began.values() if n > 1),
            "quarantined_wrongly": sorted({one.job_id for one in reports(reader) if one.crashes}),
            "over": is_over,
            "load": load(),
        }


def stock(seconds: float, each: int, good: int, engines: tuple[Engine, Engine]) -> dict[str, Any]:
    broker, store = engines
    with tempfile.TemporaryDirectory() as name, Fleet(broker.url, store.url, Path(name), is_stock=True) as fleet:
        send(broker.url, each, good)
        wait(fleet, lambda: False, seconds)
        lines = fleet.lines()
        starts = Counter((line[1], int(line[2])) for line in lines if line[0] == "begin" and line[1] != "good")
        ended = {line[2] for line in lines if line[:2] == ["end", "good"]}
        return {
            "seconds": seconds,
            "starts_of_pills": sum(starts.values()),
            "most_starts_of_one": max(starts.values(), default=0),
            "good_done": len(ended),
            "of_good": good,
            "deaths_of_workers": fleet.deaths,
        }


def emptied(engines: tuple[Engine, Engine]) -> tuple[Engine, Engine]:
    for engine in engines:
        with redis.Redis.from_url(engine.url) as client:
            client.flushall()
    return engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pills", type=int, default=20)
    parser.add_argument("--good", type=int, default=2000)
    parser.add_argument("--k", default="1,3,5")
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--stock", type=float, default=60)
    wanted = parser.parse_args()
    ks = [int(k) for k in wanted.k.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        engines = Engine(Path(folder, "broker")).start(), Engine(Path(folder, "store")).start()

        try:
            figures: dict[str, Any] = {
                "machine": machine(),
                "versions": versions(),
                "guarded": [run(k, wanted.pills, wanted.good, emptied(engines)) for k in ks] if wanted.pills else [],
            }
            if wanted.deaths:
                figures["killed_from_outside"] = [outside_deaths(k, wanted.deaths, emptied(engines)) for k in [*ks, 0]]
            if wanted.stock:
                figures["stock"] = stock(wanted.stock, wanted.pills, wanted.good, emptied(engines))
        finally:
            for engine in engines:
                engine.stop()
    json.dump(figures, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
