"""Guest mode against a stock Celery worker: what is filed, compared with the worker's own lines, and what events cost the worker.

    python -m bench.guest [--jobs 60000] [--pairs 3] [--rabbitmq]

A stock worker runs a queue of jobs while a desk reads its events: of 20 jobs, one fails with each of three errors, one fails after
two retries, and one succeeds at its second attempt. Then pairs of runs of a tenth of the jobs with events on and off, in turns,
without a desk: processor time of the worker and its children. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--pairs", type=int, default=3, help="of runs of a tenth of the jobs")
    parser.add_argument("--rabbitmq", action="store_true", help="as the broker, in place of Redis")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        json.dump(measure(wanted.jobs, wanted.pairs, Path(folder), wanted.rabbitmq), sys.stdout, indent=1)
    print()


def measure(jobs: int, pairs: int, folder: Path, is_rabbitmq: bool) -> dict[str, Any]:
    from cryptography.fernet import Fernet

    from bench.machine import machine, versions
    from dashboard.setup.engine import Engine
    from tests.kit import rabbitmq

    engine = Engine(folder / "engine").start()
    node = rabbitmq.Node(folder / "rabbitmq").start() if is_rabbitmq else None
    broker = node.url if node else engine.url.rpartition("/")[0] + "/3"
    sources = folder / "sources.toml"
    sources.write_text(
        f'[sources.shop]\nbackend = "celery"\nurl = {json.dumps(broker)}\nguard = false\nqueues = ["celery"]\n'
    )
    try:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SECRET_KEY": secrets.token_urlsafe(40),
            "REDRIVE_DATA": str(folder),
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": engine.url,
            "REDRIVE_SOURCES": str(sources),
            "DATABASE_URL": f"sqlite:///{folder}/bench.sqlite3",
        }
        os.environ.pop("CELERY_BROKER_URL", None)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "jobs": jobs}
        figures["broker"] = "RabbitMQ" if node else "Redis"
        figures["coverage"] = _measure_coverage(broker, folder, jobs)
        figures["cost"] = _costs(broker, folder, jobs // 10, pairs)
        return figures
    finally:
        if node:
            node.stop()
        engine.stop()


def _measure_coverage(broker: str, folder: Path, jobs: int) -> dict[str, Any]:
    """Read one run and compare."""
    from django.db.models import Count, Q
    from django.utils import timezone

    from jobs_admin.models import Failure, Group, QueueCounter
    from jobs_admin.models.counter import MINUTE
    from jobs_admin.queues import coverage
    from jobs_admin.retries import pulling
    from jobs_admin.sources.base import SourceError
    from tests.kit.stock import StockWorker

    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                is_more = pulling.pull("shop", "bench")
            except SourceError:  # on RabbitMQ, until the first worker has declared the exchange
                is_more = False
            if not is_more:
                time.sleep(0.5)

    reader = threading.Thread(target=read)
    reader.start()
    worker = StockWorker(broker, folder).start()
    try:
        time.sleep(_SETTLE_S)  # a heartbeat
        began = time.monotonic()
        _send(worker, jobs)
        _wait_for_lines(worker, jobs)
        ran_s = time.monotonic() - began
        lines = worker.lines()
        failed = {job for job, *_, end in lines if end == "failed"}
        recovered = {job for job, _, attempt, end in lines if end == "succeeded" and attempt > 1}
        ends_by = time.monotonic() + 120
        while _attempts() != _attempts_by_lines(lines) and time.monotonic() < ends_by:
            time.sleep(0.5)
        filed_s = time.monotonic() - began
        time.sleep(_SETTLE_S)
        found = coverage.read(["shop"], timezone.now())["shop"]
        counted = QueueCounter.objects.filter(step=MINUTE, queue="celery")
        return {
            "by_lines": dict(Counter(end for *_, end in lines)),
            "counted": {name: sum(counted.values_list(name, flat=True)) for name in ("succeeded", "failed")},
            "failures": {
                state: [Failure.objects.filter(state=state).count(), len(jobs)]
                for state, jobs in (("dead", failed), ("recovered", recovered))
            },
            "same_jobs": {
                state: set(Failure.objects.filter(state=state).values_list("job_id", flat=True)) == jobs
                for state, jobs in (("dead", failed), ("recovered", recovered))
            },
            "same_attempts": _attempts() == _attempts_by_lines(lines),
            "attempts": len(_attempts()),
            "groups": {
                error: [count, dead]
                for error, count, dead in Group.objects.annotate(
                    dead=Count("failures", filter=Q(failures__state="dead"))
                ).values_list("error_type", "count", "dead")
            },
            "share": found.share,
            "gaps": len(found.gaps),
            "dropped": found.dropped,
            "ran_s": round(ran_s, 1),
            "filed_s": round(filed_s, 1),
            "reader_processor_s": round(_thread_s(reader), 1),
        }
    finally:
        is_over.set()
        reader.join()
        worker.stop()


def _costs(broker: str, folder: Path, jobs: int, pairs: int) -> list[dict[str, Any]]:
    """Processor time of a worker for the same jobs, with events on and off in turns."""
    from tests.kit.stock import StockWorker

    found = []
    for n in range(pairs):
        pair: dict[str, Any] = {}
        for events in (True, False) if n % 2 == 0 else (False, True):
            place = folder / f"{n}-{events}"
            place.mkdir()
            worker = StockWorker(broker, place, events=events).start()
            try:
                before = _processor_s(worker.process.pid)  # type: ignore[union-attr]
                _send(worker, jobs)
                _wait_for_lines(worker, jobs)
                time.sleep(1)
                pair["on" if events else "off"] = round(_processor_s(worker.process.pid) - before, 2)  # type: ignore[union-attr]
            finally:
                worker.stop()
        pair["microseconds_per_job"] = round(1e6 * (pair["on"] - pair["off"]) / jobs)
        found.append(pair)
    return found


def _attempts() -> set[tuple[str, int, str]]:
    """(job, number, end) of each failed attempt on the desk."""
    from jobs_admin.models import Attempt

    return set(Attempt.objects.exclude(kind="success").values_list("job_id", "attempt", "kind"))


def _attempts_by_lines(lines: list[tuple[str, str, int, str]]) -> set[tuple[str, int, str]]:
    kinds = {"failed": "exception", "retried": "retry"}
    return {(job, attempt, kinds[end]) for job, _, attempt, end in lines if end in kinds}


def _send(worker: Any, jobs: int) -> None:
    with worker.app.producer_pool.acquire() as producer:
        for n in range(jobs):
            name, args, options = _job(n)
            worker.app.send_task(name, args, options, producer=producer)


def _job(n: int) -> tuple[str, tuple[int], dict[str, int]]:
    if n % 20 in (1, 2):
        return "shop.ship", (n,), {}
    if n % 20 in (3, 4):
        return "shop.mail", (n,), {"well_at": 9 if n % 20 == 3 else 2}
    return ("shop.pay" if n % 20 == 0 else "shop.ok"), (n,), {}


def _wait_for_lines(worker: Any, jobs: int) -> None:
    """Until all have ended: of 20 jobs one has two further attempts, and one has one."""
    lines = sum({3: 3, 4: 2}.get(n % 20, 1) for n in range(jobs))
    while worker.lines_at.stat().st_size < lines * 40 or len(worker.lines()) < lines:
        time.sleep(0.5)


def _thread_s(thread: threading.Thread) -> float:
    """Processor time of a thread of this process, in seconds."""
    parts = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / _TICKS


def _processor_s(pid: int) -> float:
    """Processor time of a process and its children, in seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = 0.0
    for one in (str(pid), *children):
        parts = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(parts[11]) + int(parts[12])) / _TICKS
    return total


if __name__ == "__main__":
    main()
