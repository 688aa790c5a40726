"""The time for which one job holds up a worker's main process, in microseconds, by the place of its report.

    python -m bench.blocking [--jobs 3000] [--profile]

One failing job of `bench.shop_jobs` after the other is passed to a guard as Celery does, in one process and without a worker
around it. `wall` is what the worker's loop waits, `own` the processor time of it. Prints JSON; with `--profile` where the time
goes, by function.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import pickle
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from billiard.einfo import ExceptionInfo
from celery.worker.request import Request
from kombu import Connection
from kombu.transport.virtual import Message

from bench.machine import machine, versions
from bench.shop_jobs import KWARGS, make_app
from dashboard.setup.engine import Engine
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.raw_message import Popped
from jobs_admin.worker.report import Origin
from jobs_admin.worker.request import guarded
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.rigs.figures import spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--profile", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        engine = Engine(Path(folder, "store")).start()
        try:
            if wanted.profile:
                with cProfile.Profile() as profile:
                    _measured(guard_on(engine.url, Path(folder)), wanted.jobs)
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
                return
            figures = {"machine": machine(), "versions": versions()}
            json.dump(
                figures | {"microseconds": measured_all(engine.url, Path(folder), wanted.jobs)}, sys.stdout, indent=2
            )
        finally:
            engine.stop()
    print()


def measured_all(store_url: str, folder: Path, jobs: int = 2000) -> dict[str, Any]:
    with redis.Redis.from_url(store_url) as client:
        client.flushall()
    off = guard_on(store_url, folder)
    off.is_silenced = True
    return {
        "the stream, acknowledged late": _measured(guard_on(store_url, folder), jobs),
        "the stream, acknowledged early": _measured(guard_on(store_url, folder), jobs, is_early=True),
        "the spool, fsynced": _measured(guard_on("redis://127.0.0.1:1/0", folder), jobs // 4),
        "nowhere: switched off": _measured(off, jobs),
        "nowhere: the job succeeded": _measured(guard_on(store_url, folder), jobs, fails=False),
    }


def guard_on(url: str, folder: Path) -> Guard:
    made = Store(url, "shop", Spool(folder / "held-up-spool"))
    with contextlib.suppress(redis.RedisError):  # one of them leads nowhere, as it should
        made.dial()  # the heartbeat's work in a worker
    return Guard(Origin("shop", "2026.11", ("kwargs.tenant",)), made)


def _measured(guard: Guard, count: int, *, fails: bool = True, is_early: bool = False) -> dict[str, Any]:
    requests, error = failing(guard, count)
    walls, own = [], time.process_time()
    for request in requests:
        request.acknowledged = is_early
        started = time.perf_counter()
        guard.job_started(request)
        if fails:
            guard.job_failed(request, error)
        else:
            guard.job_succeeded(request, 0.01)
        walls.append((time.perf_counter() - started) * 1e6)
    own = time.process_time() - own
    guard.store.close()
    assert guard.broken == guard.store.dropped == 0
    return {"wall": spread(walls, 1), "own": round(own / count * 1e6, 1)}


def failing(guard: Guard, count: int, headers: dict[str, Any] | None = None) -> tuple[list[Any], Any]:
    """Requests of `count` failing jobs, as a worker's main process has them, and what Celery hands over for each."""
    app = make_app("memory://", "shop")
    app.send_task("shop.deliver", kwargs=KWARGS)
    channel = Connection("memory://").channel()
    payload = channel._get("shop")
    payload["headers"].update(headers or {})
    request_class = guarded(Request, guard)
    task = app.tasks["shop.deliver"]
    try:
        task.run(**KWARGS)
    except Exception:
        error = pickle.loads(pickle.dumps(ExceptionInfo()))  # noqa: S301  (as a child of the pool hands it over)
    requests = []
    for number in range(count):
        payload["headers"] = payload["headers"] | {"id": f"6d9ff1a1-0c0a-4dd3-8bd1-{number:012d}"}
        popped = Popped(payload)
        popped.element, popped.queue = json.dumps(payload).encode(), "webhooks"
        requests.append(request_class(Message(popped, channel=channel), app=app, hostname="w@bench", task=task))
    return requests, error


if __name__ == "__main__":
    main()
