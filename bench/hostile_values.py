"""The time that the guard adds to a job whose error, arguments or headers are made to do harm: milliseconds, in child and main process.

    python -m bench.hostile_values [--rounds 5]

Each value of `tests/kit/hostile.py` and of its test stands in a real Celery request. Timed is the guard alone: in the child what a
policy asks an error, in the main process the whole report, to a real store and, where that is too slow, to the spool; what Celery
itself does with such an error comes before, with and without a guard. The median of the rounds, and the longest. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import machine, versions
from dashboard.setup.engine import Engine

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        store = Engine(Path(folder, "store")).start()
        try:
            values = measured(store, Path(folder), rounds)
        finally:
            store.stop()
    over = {name: found for name, found in values.items() if max(found["child_ms"], found["main_ms"]) > LIMIT_MS}
    figures = {
        "machine": machine(),
        "versions": versions(),
        "values": len(values),
        "longest_median_child_ms": max(found["child_ms"] for found in values.values()),
        "longest_median_main_ms": max(found["main_ms"] for found in values.values()),
        "longest_median_main_cpu_ms": max(found["main_cpu_ms"] for found in values.values()),
        "over_50_ms": over,
        "each": values,
    }
    json.dump(figures, sys.stdout, indent=2)
    print()


def measured(store: Engine, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    from billiard.einfo import ExceptionInfo
    from celery.worker.request import Request
    from kombu import Connection
    from kombu.transport.virtual import Message

    from jobs_admin.worker.guard import Guard
    from jobs_admin.worker.raw_message import Popped
    from jobs_admin.worker.report import Origin
    from jobs_admin.worker.request import guarded
    from jobs_admin.worker.retrying import retry_after_s
    from jobs_admin.worker.spool import Spool
    from jobs_admin.worker.store import Store
    from tests.kit import hostile
    from tests.kit.celery import make_app

    hostile.StrSleeps.seconds = 0.01  # before the guard is asked, by Celery
    app = make_app("memory://")
    hostile.define(app)
    channel = Connection("memory://").channel()
    guard = Guard(Origin("shop", "", ("kwargs.tenant",)), Store(store.url, "shop", Spool(folder / "spool")))
    guard.store.dial()
    request_class = guarded(Request, guard)

    def request_of(task: str, options: dict[str, Any]) -> Any:
        options = {name: value for name, value in options.items() if name != "is_refused"}
        app.send_task(task, args=options.pop("args", ()), **options)
        element = json.dumps(channel._get("celery")).encode()
        payload = Popped(json.loads(element))
        payload.element, payload.queue = element, "emails"
        return request_class(Message(payload, channel=channel), app=app, hostname="w@bench", task=app.tasks[task])

    cases = {name: (f"h.{name}", {}) for name in hostile.ACTS}
    cases |= {
        name: ("h.plain", options)
        for name, options in hostile.build_messages().items()
        if not options.get("is_refused")
    }
    found = {}
    for name, (task, options) in cases.items():
        child, taken, worked = [], [], []
        for _ in range(rounds):
            request = request_of(task, options)
            error, info = report_of(app.tasks[task].run, ExceptionInfo)
            if info is None:
                break
            started = time.perf_counter()
            retry_after_s(error)
            child.append((time.perf_counter() - started) * 1000)
            guard.store.dial()
            started, cpu = time.perf_counter(), time.thread_time()
            guard.job_failed(request, info)
            taken.append((time.perf_counter() - started) * 1000)
            worked.append((time.thread_time() - cpu) * 1000)
            guard.store._closed_until = 0.0  # each goes to the store first
        if taken:
            found[name] = {
                "child_ms": round(statistics.median(child), 3),
                "main_ms": round(statistics.median(taken), 3),
                "main_most_ms": round(max(taken), 3),
                "main_cpu_ms": round(statistics.median(worked), 3),
            }
    assert guard.store.dropped == 0
    return found


def report_of(run: Any, to_report: Any) -> tuple[BaseException, Any]:
    """The error that a job ends with, and what Celery makes of it; None where that itself breaks: the guard is not asked then."""
    try:
        run()
    except BaseException as error:
        try:
            return error, to_report()
        except BaseException:
            return error, None
    raise AssertionError("it did not fail")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
