"""Costs of the guard for a worker, rung by rung, at 0 and at 1 ms from its Redis: beside stock, in one run.

    python -m bench.worker                       all of it: 6 to 8 minutes on a machine that has nothing else to do
    python -m bench.worker --lives 1 --rounds 2  a look, two minutes
    python -m bench.worker --only-success --burst 1.5 --lives 10 --places "0 ms" --kinds "stock again,off,capture"
                                                 what a job that goes well costs, to a percent: eight minutes

Seven workers (prefork, two children, `bench.shop_jobs`) live side by side and take turns at the same bursts of jobs: one without
the guard, another like it, one on each rung (`off`, `capture`, `observe` and `enforce` with a policy without limits), and *full*,
under a policy with a budget, a limit for each tenant, a rate and a crash count, none of which holds a job up. A round is one burst
of each kind of job for each worker, in a new order; reported are ratios to stock's burst of the same round: median, quartiles,
least and most.
The jobs: one that does nothing; one that fails in a library, with 0.8 kB of arguments and 15 frames, acknowledged early as
is Celery's default; the same acknowledged late. Each `life` starts all workers again.

Where they are from their Redis: `0 ms` directly; then, with three of the workers (`observe` and `enforce` make no other calls than
`capture`), `1 ms` broker and store alike half a millisecond away in each direction, as where
both are on another machine; `1 ms to the store`: only Redrive's store is, which stock does not know.

Processor time is of the worker's main process and of all its processes, from the scheduler's own nanoseconds; other work on
the machine hardly changes it, the rates it does. Last, how long one failing job holds up the main process. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench import blocking
from bench.machine import machine, versions
from bench.road import Road
from bench.shop_jobs import KWARGS, make_app
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit.policies import published

ROOT = Path(__file__).resolve().parent.parent
ONE_WAY_S = 0.0005
CHILDREN = 2
BURST_S = 0.5  # of stock
STOCK = ("stock", "stock again")
WARM_UP = 150  # jobs of each kind
JOBS = {"success": "shop.note", "failure": "shop.deliver", "failure, late ack": "shop.deliver_late"}
PLACES = {"0 ms": (False, False), "1 ms": (True, True), "1 ms to the store": (False, True)}  # far: broker, store

LIMITS = {
    "budget": {"per_minute": 100, "burst": 10},
    "poison": {"crashes": 3, "window_s": 300},
    "concurrency": {"key": "kwargs.tenant", "limit": 50},
    "rate_limit": {"max": 100_000, "per_s": 1},
}
# (REDRIVE_MODE, what the policy says). A failure is dead at once: what is compared is one report, not another run.
KINDS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "stock": ("", None),
    "stock again": ("", None),  # how far apart two lie that are the same
    "off": ("off", None),
    "capture": ("capture", None),
    "observe": ("", {"mode": "observe", "max_attempts": 1}),
    "enforce": ("", {"mode": "enforce", "max_attempts": 1}),
    "full": ("", {"mode": "enforce", "max_attempts": 1, **LIMITS}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of each life")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--kinds", help="of the workers; stock is always one")
    parser.add_argument("--only-success", action="store_true", help="no job fails")
    parser.add_argument("--burst", type=float, default=BURST_S, help="seconds that it takes stock")
    wanted = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine(), "versions": versions()}
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        broker, store = Engine(Path(folder, "broker")).start(), Engine(Path(folder, "store")).start()
        stack.callback(broker.stop)
        stack.callback(store.stop)
        for place in wanted.places.split(","):
            kinds = [*KINDS] if not any(PLACES[place]) else ["stock", "capture", "full"]
            if wanted.kinds:
                kinds = ["stock", *(kind for kind in wanted.kinds.split(",") if kind != "stock")]
            jobs = ["success"] if wanted.only_success else [*JOBS]
            bench = Bench(place, broker.url, store.url, Path(folder), kinds, jobs, wanted.burst)
            for _ in range(wanted.lives):
                bench.life(wanted.rounds)
            figures[place] = bench.summarise()
        figures["held_up_us"] = blocking.measured_all(store.url, Path(folder))
    figures["machine"]["load_average_at_the_end"] = round(os.getloadavg()[0], 1)
    json.dump(figures, sys.stdout, indent=2)
    print()


@dataclass(frozen=True, slots=True)
class Burst:
    """The rate of one worker: jobs a second, and processor microseconds a job."""

    rate: float
    main_us: float
    all_us: float


class Bench:
    def __init__(
        self,
        place: str,
        broker: str,
        store: str,
        folder: Path,
        kinds: Sequence[str],
        jobs: Sequence[str],
        burst_s: float,
    ) -> None:
        self.place, self.folder, self.kinds, self.jobs, self.burst_s = place, folder, kinds, jobs, burst_s
        self.broker, self.store = broker, store
        self.pick = random.Random(place)
        self.counts: dict[str, int] = {}  # of jobs in a burst
        self.ping_ms: dict[str, float] = {}
        self.bursts: dict[tuple[str, str], list[Burst]] = {(kind, job): [] for kind in kinds for job in jobs}

    def life(self, rounds: int) -> None:
        is_far = PLACES[self.place]
        with contextlib.ExitStack() as stack:
            broker, store = (
                stack.enter_context(Road(url, ONE_WAY_S)).url if far else url
                for url, far in zip((self.broker, self.store), is_far, strict=True)
            )
            self.ping_ms = {"broker": _ping_ms(broker), "store": _ping_ms(store)}
            for url in (self.broker, self.store):
                with redis.Redis.from_url(url) as client:
                    client.flushall()
            workers = [Worker(self, number, kind, broker, store) for number, kind in enumerate(self.kinds)]
            for worker in workers:
                stack.callback(worker.stop)
            for worker in workers:
                worker.wait_until_ready()
            for job in self.jobs:
                for worker in workers:
                    worker.burst(job, WARM_UP)
                if job not in self.counts:
                    self.counts[job] = int(max(100, workers[0].burst(job, WARM_UP).rate * self.burst_s))
            for _ in range(rounds):
                for job in self.jobs:
                    for worker in self.pick.sample(workers, len(workers)):
                        self.bursts[worker.kind, job].append(worker.burst(job, self.counts[job]))

    def summarise(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ping_ms": self.ping_ms}
        for job, count in self.counts.items():
            stock = self.bursts["stock", job]
            rows: dict[str, Any] = {"jobs_in_a_burst": count, "bursts": len(stock)}
            for kind in self.kinds:
                bursts = self.bursts[kind, job]
                rows[kind] = {
                    "jobs_per_second": round(statistics.median(b.rate for b in bursts)),
                    "main_us": round(statistics.median(b.main_us for b in bursts)),
                    "all_us": round(statistics.median(b.all_us for b in bursts)),
                }
                if kind != "stock":
                    pairs = list(zip(bursts, stock, strict=True))
                    rows[kind] |= {
                        "rate_to_stock": _spread([b.rate / s.rate for b, s in pairs]),
                        "main_to_stock": _spread([b.main_us / s.main_us for b, s in pairs]),
                        "all_to_stock": _spread([b.all_us / s.all_us for b, s in pairs]),
                    }
            found[job] = rows
        return found


class Worker:
    """`number` is that of its databases, in the broker and in the store."""

    def __init__(self, bench: Bench, number: int, kind: str, broker: str, store: str) -> None:
        self.kind = kind
        mode, policy = KINDS[kind]
        self._client = redis.Redis.from_url(_database(bench.broker, number))  # not by the long way
        self._reports = redis.Redis.from_url(_database(bench.store, number))
        if policy is not None:
            published(_database(bench.store, number), {"name": kind, "match": {"task": "shop.*"}, **policy})
        self._messages = {job: self._message(job, _database(bench.broker, number)) for job in bench.jobs}
        self._log = bench.folder / f"{kind}.log"
        self._log.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "JOBS_BROKER": _database(broker, number),
            "JOBS_QUEUE": "shop",
            "JOBS_STOCK": "1" if kind in STOCK else "",
            "REDRIVE_MODE": mode,
            "REDRIVE_REDIS_URL": _database(store, number),
            "REDRIVE_SPOOL": str(bench.folder / f"spool-{kind}"),
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "bench.shop_jobs:app", "worker", "-c", str(CHILDREN), "-l", "INFO",
                 "--without-gossip", "--without-mingle", "-n", f"{kind}@%h"],
                cwd=ROOT, env=environment, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip

    def _message(self, job: str, broker: str) -> dict[str, Any]:
        """As Celery writes it."""
        app = make_app(broker, "held")
        app.send_task(JOBS[job], kwargs=KWARGS)
        app.close()
        text: Any = self._client.lpop("held")
        message: dict[str, Any] = json.loads(text)
        message["properties"]["delivery_info"]["routing_key"] = "shop"
        return message

    def wait_until_ready(self) -> None:
        ends = time.monotonic() + 60
        while " ready." not in self._log.read_text(errors="replace"):
            assert self.process.poll() is None and time.monotonic() < ends, self._log.read_text(errors="replace")[
                -2000:
            ]
            time.sleep(0.05)
        time.sleep(1.5)  # the guard's thread has its connection, and its policies

    def burst(self, job: str, count: int) -> Burst:
        """All of it waits on the queue at once; it ends when the last job has begun and none is unacknowledged."""
        message = self._messages[job]
        pipe = self._client.pipeline(transaction=False)
        for _ in range(count):
            message["headers"]["id"] = message["properties"]["delivery_tag"] = f"{random.getrandbits(128):032x}"
            pipe.lpush("held", json.dumps(message))
        pipe.execute()
        lengths = self._client.pipeline(transaction=False)
        main, everybody = self._cpu_ns()
        started = time.perf_counter()
        self._client.rename("held", "shop")
        while any(lengths.llen("shop").hlen("unacked").execute()):
            assert self.process.poll() is None and time.perf_counter() < started + 120, self.kind
            time.sleep(0.002)
        seconds = time.perf_counter() - started
        self._wait_for_reports(job, count)
        main_after, everybody_after = self._cpu_ns()
        return Burst(count / seconds, (main_after - main) / count / 1e3, (everybody_after - everybody) / count / 1e3)

    def _wait_for_reports(self, job: str, count: int) -> None:
        """The last jobs of a burst that were acknowledged early may still run: a moment, for stock too."""
        time.sleep(0.1)
        if self.kind in {*STOCK, "off"} or job == "success":
            return
        ends = time.monotonic() + 20
        while (found := self._reports.xlen(keys.failures("shop"))) < count:  # all of them, on the stream
            assert time.monotonic() < ends, f"{self.kind}: {found} reports of {count}"
            time.sleep(0.05)
        self._reports.delete(keys.failures("shop"))

    def _cpu_ns(self) -> tuple[int, int]:
        """Processor nanoseconds so far: of the main process, and of all."""
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        taken = [sum(_threads_ns(int(pid))) for pid in (main, *children)]
        return taken[0], sum(taken)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._client.close()
        self._reports.close()


def _threads_ns(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        yield int(file.read_text().split()[0])


def _database(url: str, number: int) -> str:
    return f"{url.rpartition('/')[0]}/{number}"


def _ping_ms(url: str) -> float:
    taken = []
    with redis.Redis.from_url(url) as client:
        for _ in range(100):
            started = time.perf_counter()
            client.ping()
            taken.append((time.perf_counter() - started) * 1e3)
    return round(statistics.median(taken), 3)


def _spread(ratios: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    if len(ratios) > 3:
        found["lower_quarter"], _, found["upper_quarter"] = statistics.quantiles(ratios, n=4)
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
