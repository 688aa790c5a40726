"""What the guard costs a worker: jobs a second with and without it, in one run, and the time of one report.

    python -m bench.worker [--jobs 4000] [--rounds 3] [--milliseconds 0,5,20] [--only success]

Stock and guarded workers take turns, so that a noisy machine disturbs both alike: a job that fails, without a policy; then jobs
that succeed and take so many milliseconds, stock, guarded without a policy, and *full*: under a policy that has a budget, a limit
for each customer, a rate and a crash count, none of which holds a job up. Everything (broker, store, worker with two children,
log at INFO as Celery has it) shares one machine. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from bench.machine import machine, versions
from dashboard.engine import Engine

if TYPE_CHECKING:
    from jobs_admin.worker.guard import Guard

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--jobs", type=int, default=4000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--milliseconds", default="0,5,20")
    asked.add_argument("--only", choices=("success", "failure", "reporting"), action="append")
    wanted = asked.parse_args()
    milliseconds = [int(ms) for ms in wanted.milliseconds.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        broker, store = Engine(Path(folder, "broker")).start(), Engine(Path(folder, "store")).start()
        try:
            parts: dict[str, Callable[[], dict[str, Any]]] = {
                "success": lambda: succeeding(broker, store, wanted.jobs, wanted.rounds, milliseconds),
                "failure": lambda: failing(broker, store, wanted.jobs, wanted.rounds),
                "reporting": lambda: reporting(store, Path(folder)),
            }
            figures: dict[str, Any] = {"machine": machine(), "versions": versions()}
            figures |= {name: part() for name, part in parts.items() if name in (wanted.only or parts)}
        finally:
            broker.stop()
            store.stop()
    json.dump(figures, sys.stdout, indent=2)
    print()


def failing(broker: Engine, store: Engine, jobs: int, rounds: int) -> dict[str, Any]:
    return compared(broker, store, ("stock", "guarded"), ("fail",), jobs // 2, rounds)


def succeeding(broker: Engine, store: Engine, jobs: int, rounds: int, milliseconds: list[int]) -> dict[str, Any]:
    """For each time that a job takes. Long jobs are fewer: two children, three seconds a round at least."""
    return {
        f"{ms}_ms": compared(
            broker, store, ("stock", "guarded", "full"), ("slow", ms / 1000) if ms else ("ok",),
            jobs if not ms else min(jobs, max(600, 8000 // ms)), rounds,
        )
        for ms in milliseconds
    }  # fmt: skip


def compared(
    broker: Engine, store: Engine, kinds: tuple[str, ...], job: tuple[Any, ...], count: int, rounds: int
) -> dict[str, Any]:
    """Jobs a second and the worker's processor time a job, medians of the rounds; each beside stock in the same round.

    The processor time tells the guard's share better than the rate, which other work on the machine disturbs.
    """
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for n in range(rounds):
        for kind in kinds if n % 2 == 0 else kinds[::-1]:
            taken[kind].append(one_round(broker, store, kind, job, count))
    found: dict[str, Any] = {"jobs": count, "rounds": rounds}
    for kind, rows in taken.items():
        rates = [rate / stock for (rate, _), (stock, _) in zip(rows, taken["stock"], strict=True)]
        cpus = [cpu / stock for (_, cpu), (_, stock) in zip(rows, taken["stock"], strict=True)]
        found[kind] = {
            "jobs_per_second": round(statistics.median(rate for rate, _ in rows), 1),
            "cpu_ms_per_job": round(statistics.median(cpu for _, cpu in rows) * 1000, 3),
        }
        if kind != "stock":
            found[kind] |= {"rate_to_stock": told(rates), "cpu_to_stock": told(cpus)}
    return found


def told(ratios: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def cpu_seconds(group: int) -> float:
    """Processor time of all processes of a group so far."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            columns = file.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(columns[2]) == group:
            ticks += int(columns[11]) + int(columns[12])
    return ticks / os.sysconf("SC_CLK_TCK")


FULL = {
    "max_attempts": 5,
    "budget": {"per_minute": 100, "burst": 10},
    "poison": {"crashes": 3, "window_s": 300},
    "concurrency": {"key": "kwargs.customer", "limit": 50},
    "rate_limit": {"max": 100_000, "per_s": 1},
}


def one_round(broker: Engine, store: Engine, kind: str, job: tuple[Any, ...], count: int) -> tuple[float, float]:
    """Jobs a second, and processor seconds a job."""
    from tests.jobs_admin.worker.policies import policy, published
    from tests.real_celery import RealWorker

    environment = {"REAL_STOCK": "1" if kind == "stock" else "", "REAL_MARKS": ""}
    worker = RealWorker(broker.url, store.url, environment=environment)
    with redis.Redis.from_url(broker.url) as client, redis.Redis.from_url(store.url) as reports:
        client.flushall()
        reports.flushall()
        if kind == "full":
            published(store.url, policy("full", job[0], **FULL))
        worker.send(*job, queue="held", kwargs={"customer": "acme"})
        message = json.loads(client.lrange("held", 0, -1)[0])
        client.flushall()
        worker.start()
        for number in range(count):
            message["headers"]["id"] = message["properties"]["delivery_tag"] = f"{kind}-{number}"
            client.lpush("held", json.dumps(message))
        started, cpu = time.perf_counter(), cpu_seconds(worker.process.pid)
        client.rename("held", "celery")
        worker.wait(lambda: not client.llen("celery") and not client.hlen("unacked"), 300, "the jobs")
        seconds, cpu = time.perf_counter() - started, cpu_seconds(worker.process.pid) - cpu
        if kind == "guarded" and job[0] == "fail":
            worker.wait(lambda: reports.xlen("redrive:failures") >= count, 60, f"{count} reports")
        if kind == "full":
            calls = reports.info("commandstats")["cmdstat_evalsha"]["calls"]
            # One before and one after. A busy machine's store does not answer now and then, and such a job is not counted.
            assert calls >= 1.8 * count, f"{calls} scripts for {count} jobs: not all was on"
    worker.stop()
    return count / seconds, cpu / count


def reporting(store: Engine, folder: Path) -> dict[str, dict[str, float]]:
    """Microseconds that one failing job holds up the worker's main process, by where its report goes."""
    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.report import Origin
    from jobs_admin.worker.spool import Spool
    from jobs_admin.worker.store import Store

    def guard(url: str) -> Guard:
        made = Store(url, Spool(folder / "spool"))
        with contextlib.suppress(redis.RedisError):  # one of them leads nowhere, as it should
            made.dial()  # the heartbeat's work in a worker
        return Guard(Origin("shop", "", ("kwargs.tenant",), {}), made)

    with redis.Redis.from_url(store.url) as client:
        client.flushall()
    found = {"stream": measured(guard(store.url), 2000), "spool": measured(guard("redis://127.0.0.1:1/0"), 500)}
    off = guard(store.url)
    off.is_silenced = True
    found["switched off"] = measured(off, 2000)
    found["none: the job succeeds"] = measured(guard(store.url), 2000, fails=False)
    return found


def measured(guard: Guard, count: int, *, fails: bool = True) -> dict[str, float]:
    from billiard.einfo import ExceptionInfo
    from celery.worker.request import Request
    from kombu import Connection
    from kombu.transport.virtual import Message

    from jobs_admin.worker.request import guarded
    from tests.real_celery import make_app

    app = make_app("memory://")
    app.send_task(
        "fail", args=["the partner is down"], kwargs={"tenant": "acme", "order": {"id": 7, "lines": [1, 2, 3]}}
    )
    channel = Connection("memory://").channel()
    payload = channel._get("celery")
    request_class = guarded(Request, guard)
    try:
        app.tasks["fail"].run("the partner is down")
    except Exception:
        error = ExceptionInfo()
    taken = []
    for number in range(count):
        payload["headers"]["id"] = f"job-{number}"
        request = request_class(Message(payload, channel=channel), app=app, hostname="w@bench", task=app.tasks["fail"])
        started = time.perf_counter()
        guard.job_started(request)
        if fails:
            guard.job_failed(request, error)
        else:
            guard.job_succeeded(request, 0.01)
        taken.append((time.perf_counter() - started) * 1e6)
    assert guard.broken == guard.store.dropped == 0
    taken.sort()
    return {"median": round(statistics.median(taken)), "p99": round(taken[int(count * 0.99)])}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
