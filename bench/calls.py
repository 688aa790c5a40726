"""Costs of each call to Redis that a worker makes: reports, heartbeat, and all that policies ask. Microseconds.

    python -m bench.calls [--calls 20000]        three minutes; --calls 4000 for a look

One process, one connection, as a child of a worker's pool has them, on a Valkey of its own on the same machine. `wall` is what a job
waits for the call; `own` the processor time of this process and `server` that of Valkey, which other work on the machine
hardly changes. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
from celery.worker.request import Request

from bench import main_calls
from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core.policy import Policy, parse
from jobs_admin.worker.at_start import AtStart, Job, Proceed
from jobs_admin.worker.budget import Budgets
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.ledger import Ledger
from jobs_admin.worker.policies import Policies
from jobs_admin.worker.report import Origin, success
from tests.kit.celery import make_app
from tests.rigs.figures import spread

HELD = 8  # jobs of a worker whose leases one renewal keeps
MESSAGE = b" " * 1500
HOUR_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        engine = Engine(Path(folder)).start()
        try:
            figures = {"machine": machine(), "versions": versions(), "calls": wanted.calls}
            found = measure(engine.url, wanted.calls, Path(folder))
            json.dump(figures | {"microseconds": found}, sys.stdout, indent=2)
        finally:
            engine.stop()
    print()


def measure(url: str, count: int, folder: Path) -> dict[str, Any]:
    calls = Calls(url, "the bench", timeout_s=10)
    with redis.Redis.from_url(url) as client:
        bench = Bench(client, count)
        budgets, at_start = Budgets(calls, "shop"), AtStart(calls, "shop", "boot", "w@here", "here")
        found = {
            **bench.timed({"budget: granted": lambda _: budgets.spend("mail", 1_000_000, 100_000)}),
            **bench.timed({"budget: refused": lambda _: budgets.spend("none", 0, 1)}),
            **_at_start(bench, at_start),
            **_time_leases(bench, at_start, AtStart(calls, "shop", "other", "x@here", "here")),
            **_delays(bench, Delays(client, "shop")),
            **_time_ledger(bench, calls, url),
            **main_calls.measured(bench, url, folder),
        }
    return found


def _at_start(bench: Bench, at_start: AtStart) -> dict[str, Any]:
    """Each kind alone, then all in one, as the wrapper asks."""
    kinds: dict[str, Any] = {
        "limit": {"concurrency": {"key": "kwargs.customer", "limit": 5}},
        "rate": {"rate_limit": {"max": 100_000, "per_s": 1}},
        "poison": {"poison": {"crashes": 3, "window_s": 300}},
    }
    kinds["all three"] = {name: rule for kind in kinds.values() for name, rule in kind.items()}
    found: dict[str, Any] = {}
    for name, fields in kinds.items():
        policy = _policy(fields)
        jobs = [_job(n) for n in range(bench.count)]
        found |= bench.timed(
            {
                f"{name}: begin": lambda n, policy=policy, jobs=jobs: at_start.starting(policy, jobs[n]),
                f"{name}: end": lambda n, policy=policy, jobs=jobs: at_start.ended(policy, jobs[n]),
            }
        )
    del found["rate: end"]  # it gives nothing back, and makes no call
    return found


def _time_leases(bench: Bench, at_start: AtStart, other: AtStart) -> dict[str, Any]:
    """A worker whose places are all taken: what keeping them costs, and what a job that must wait."""
    bench.empty()
    policy = _policy({"concurrency": {"key": "task", "limit": HELD}})
    for n in range(HELD):
        other._token = lambda pid=None, n=n: f"other:{n}"  # type: ignore[method-assign]  # as so many children
        assert isinstance(other.starting(policy, _job(n)), Proceed)
    waits = bench.timed({"limit: must wait": lambda n: at_start.starting(policy, _job(n % 1000))}, is_empty=False)
    return waits | bench.timed({f"limit: renew {HELD}": lambda _: other.beat()}, is_empty=False)


def _delays(bench: Bench, delays: Delays) -> dict[str, Any]:
    heads = [Head(f"j{n}", 2, "shop.deliver", "webhooks", "hour@1", list="webhooks") for n in range(bench.count)]
    return bench.timed({"delays: schedule 1.5 kB": lambda n: delays.schedule(heads[n], MESSAGE, HOUR_S)})


def _time_ledger(bench: Bench, calls: Calls, url: str) -> dict[str, Any]:
    """A job that is kept while it runs: all that the worker's main process does for it, the report that it makes included."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        policies = Policies("shop", "enforce", Path(folder))
        policies._take({"k": {"name": "k", "version": 1, "policy": {"mode": "enforce", "file_lost": True}}})
        origin = Origin("shop", "2026.11", ("kwargs.customer",))
        ledger = Ledger(calls, policies.in_force(), origin, "boot", 1 << 30)
        found: dict[str, Any] = {}
        for size, more in (("", {}), (" 10 kB", {"text": "word " * 2000})):
            one = _request(url, {"customer": "c7", "order": 4711, "lines": [{"sku": "a", "n": 1}] * 3, **more})
            report = success(one, origin, 0.1)
            found |= bench.timed(
                {
                    f"kept{size}: begin": lambda _, one=one: ledger.begins(one),
                    f"kept{size}: end": lambda _, one=one, report=report: ledger.ended(one, report),
                }
            )
        assert not ledger.unkept
        return found


def _request(url: str, kwargs: dict[str, Any]) -> Any:
    """As a worker has it: a message that was sent, and fetched."""
    app = make_app(url)
    app.send_task("ok", kwargs=kwargs, queue="bench")
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("bench").get(timeout=10)
        message.ack()
        return Request(message, app=app, hostname="w@here", task=app.tasks["ok"])


def _policy(fields: dict[str, Any]) -> Policy:
    return parse({"name": "bench", "match": {"task": "*"}, "mode": "enforce", **fields})


def _job(n: int) -> Job:
    return Job(f"0b5a4c9e-9f6d-4a6e-8b8a-{n:012d}", 1, "shop.deliver", "webhooks", (), {"customer": f"c{n % 40}"})


@dataclass(frozen=True, slots=True)
class Bench:
    client: redis.Redis
    count: int

    def less(self, most: int) -> Bench:
        return replace(self, count=min(self.count, most))

    def timed(
        self,
        calls: dict[str, Callable[[int], Any]],
        *,
        is_empty: bool = True,
        server: tuple[str, ...] = ("evalsha", "eval"),
    ) -> dict[str, Any]:
        """Make each of the calls in turn, `count` times; `server` is of all of them together, reported with the first."""
        if is_empty:
            self.empty()
        for call in calls.values():
            call(0)  # the script is known and the connection open
        walls: dict[str, list[float]] = {name: [] for name in calls}
        own, before = dict.fromkeys(calls, 0.0), self._server_us(server)
        for n in range(self.count):
            for name, call in calls.items():
                cpu, began = time.process_time(), time.perf_counter()
                call(n)
                walls[name].append((time.perf_counter() - began) * 1e6)
                own[name] += time.process_time() - cpu
        found = {
            name: {"wall": spread(walls[name], 1), "own": round(own[name] / self.count * 1e6, 1)} for name in calls
        }
        found[next(iter(calls))]["server"] = round((self._server_us(server) - before) / self.count, 1)
        return found

    def empty(self) -> None:
        self.client.flushdb()

    def _server_us(self, commands: tuple[str, ...]) -> float:
        stats: Any = self.client.info("commandstats")
        return sum(row["usec"] for name, row in stats.items() if name.removeprefix("cmdstat_") in commands)


if __name__ == "__main__":
    main()
