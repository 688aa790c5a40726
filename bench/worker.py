"""What the guard costs a worker: jobs a second with and without it, in one run, and the time of one report.

    python -m bench.worker [--jobs 4000] [--rounds 3]

Stock and guarded workers take turns, so that a noisy machine disturbs both alike. Everything (broker, store, worker
with two children, log at INFO as Celery has it) shares one machine. Prints JSON.
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
from pathlib import Path
from typing import TYPE_CHECKING

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
    wanted = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker, store = Engine(Path(folder, "broker")).start(), Engine(Path(folder, "store")).start()
        try:
            figures = {
                "machine": machine(),
                "versions": versions(),
                "worker": throughput(broker, store, wanted.jobs, wanted.rounds),
                "microseconds_in_the_main_process": reporting(store, Path(folder)),
            }
        finally:
            broker.stop()
            store.stop()
    json.dump(figures, sys.stdout, indent=2)
    print()


def throughput(broker: Engine, store: Engine, jobs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Jobs a second, and the worker's processor time a job: medians of the rounds, for good and for failing jobs.

    The processor time tells the guard's share better than the rate, which other work on the machine disturbs.
    """
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for task in ("ok", "fail"):
            for kind in ("stock", "guarded"):
                count = jobs if task == "ok" else jobs // 2
                taken.setdefault((kind, task), []).append(one_round(broker, store, kind, task, count))
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in taken.items()}
    found: dict[str, dict[str, float]] = {}
    for name, task in (("success", "ok"), ("failure", "fail")):
        (rate, cpu), (guarded_rate, guarded_cpu) = medians["stock", task], medians["guarded", task]
        found[name] = {
            "stock_jobs_per_second": round(rate),
            "guarded_jobs_per_second": round(guarded_rate),
            "rate_ratio": round(guarded_rate / rate, 3),
            "stock_cpu_ms_per_job": round(cpu * 1000, 3),
            "guarded_cpu_ms_per_job": round(guarded_cpu * 1000, 3),
        }
    return found


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


def one_round(broker: Engine, store: Engine, kind: str, task: str, count: int) -> tuple[float, float]:
    from tests.real_celery import RealWorker

    environment = {"REAL_STOCK": "1" if kind == "stock" else "", "REAL_MARKS": ""}
    worker = RealWorker(broker.url, store.url, environment=environment)
    with redis.Redis.from_url(broker.url) as client, redis.Redis.from_url(store.url) as reports:
        client.flushall()
        reports.flushall()
        worker.send(task, queue="held")
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
        if kind == "guarded" and task == "fail":
            worker.wait(lambda: reports.xlen("redrive:failures") == count, 10, f"{count} reports")
    worker.stop()
    return count / seconds, cpu / count


def reporting(store: Engine, folder: Path) -> dict[str, dict[str, float]]:
    """The time that one failing job holds up the worker's main process, by where its report goes."""
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
