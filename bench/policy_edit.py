"""From a click on *Publish* to the first attempt under the new version, in each of four workers on two brokers.

    python -m bench.policy_edit [--edits 60] [--jobs 12]

Two brokers (Valkey and, where it is installed, RabbitMQ; else Valkey twice), a store of its own, a desk's database (SQLite), two prefork
workers of two children on each broker. Jobs that always fail go round under the policy, some ten attempts a second in each worker. Each
edit is published as the page does it (`jobs_admin.policies.publish`: checks, transaction, audit, push); then the reports show which worker
made its first attempt under that version, and when it began. Each version has a delay and a number of attempts of its own, so that an
attempt under a mix of two would show. Workers and bench share one clock. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from tests.kit import rabbitmq
from tests.kit.celery import RealWorker
from tests.rigs.empty_desk import desk
from tests.rigs.figures import spread

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 20.0  # for all workers to have made an attempt under a version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=12, help="that go round on each broker")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        json.dump(measure(wanted, Path(folder)), sys.stdout, indent=2)
    print()


def measure(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:

        def started(server: Any) -> Any:
            stack.callback(server.stop)
            return server.start()

        store, one = started(Engine(folder / "store")), started(Engine(folder / "broker-a"))
        kinds = ["redis", "rabbitmq" if rabbitmq.server() else "redis"]
        brokers = [one, started((rabbitmq.Node if kinds[1] == "rabbitmq" else Engine)(folder / "broker-b"))]
        desk(folder, REDRIVE_REDIS_URL=store.url)
        publish(0)
        workers = []
        for n, broker in enumerate(brokers):
            for _ in range(2):
                worker = RealWorker(broker.url, store.url, environment={"REAL_SOURCE": "ab"[n], "REAL_MARKS": ""})
                workers.append(worker)
                stack.callback(worker.stop)
                worker.start()
        for worker in workers[::2]:
            for _ in range(wanted.jobs):
                worker.send("try", queue="emails")
        client = stack.enter_context(redis.Redis.from_url(store.url))
        seen = Reports(client)
        seen.wait_for(0, len(workers))
        edits = [one_edit(n, seen, len(workers)) for n in range(1, wanted.edits + 1)]
    latencies = [seconds for edit in edits for seconds in edit["workers"]]
    return {
        "machine": machine(),
        "versions": versions(),
        "edits": len(edits),
        "workers": len(workers),
        "brokers": kinds,
        "seconds_from_click_to_first_attempt": {
            **spread(latencies),
            "of_the_last_worker_p50": round(statistics.median(max(edit["workers"]) for edit in edits), 3),
        },
        "publish_s_p50": round(statistics.median(edit["publish_s"] for edit in edits), 3),
        "attempts_seen": seen.attempts,
        "attempts_under_a_mix_of_versions": seen.mixed,
        "attempts_that_went_back_a_version": seen.back,
    }


def document(n: int) -> dict[str, Any]:
    """Version n + 1 of the policy; no two are the same."""
    return {
        "match": {"task": "try"},
        "mode": "enforce",
        "max_attempts": 1000 - n % 500,
        "backoff": {"kind": "fixed", "first_delay_s": round(0.1 + n / 10_000, 4)},
    }


def publish(n: int) -> None:
    from jobs_admin import policies
    from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

    made = policies.publish(Viewer("bench", {EVERY_SOURCE: ADMIN}), "bench", document(n), expected_version=n)
    assert made.version == n + 1


def one_edit(n: int, seen: Reports, workers: int) -> dict[str, Any]:
    time.sleep(random.uniform(1.0, 2.5))  # so that clicks come at any moment of the workers' second
    clicked = time.time()
    publish(n)
    published = time.time() - clicked
    first = seen.wait_for(n, workers)
    return {"publish_s": published, "workers": [round(began - clicked, 4) for began in first.values()]}


class Reports:
    """The reports of workers, each read once."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._last = b"0"
        self._first: dict[int, dict[str, float]] = {}  # version -> worker -> when its first attempt under it began
        self.attempts = self.mixed = self.back = 0

    def wait_for(self, n: int, workers: int) -> dict[str, float]:
        """Worker -> when its first attempt under version n + 1 began."""
        ends = time.monotonic() + PATIENCE_S
        while len(self._first.get(n, {})) < workers:
            if time.monotonic() > ends:
                raise SystemExit(
                    f"only {len(self._first.get(n, {}))} of {workers} workers made an attempt under {n + 1}"
                )
            self._read()
            time.sleep(0.02)
        return self._first[n]

    def _read(self) -> None:
        from jobs_admin.core import keys
        from jobs_admin.core.envelope import decode

        entries: Any = self._client.xrange(
            keys.failures("shop"), f"({self._last.decode()}" if self._last != b"0" else "-", "+"
        )
        for entry, fields in entries:
            self._last = entry
            self._count(decode(fields))

    def _count(self, report: Any) -> None:
        self.attempts += 1
        n = int(report.policy.rpartition("@")[2]) - 1
        began = report.at - (report.duration_s or 0.0)
        ours = document(n)
        waited = None if report.due_at is None else report.due_at - report.at
        is_delay = waited is None or abs(waited - ours["backoff"]["first_delay_s"]) < 0.00002
        self.mixed += report.max_attempts != ours["max_attempts"] or not is_delay
        firsts = self._first.setdefault(n, {})
        firsts[report.worker] = min(began, firsts.get(report.worker, began))
        # Two children read the board by themselves: what must not be is an attempt under an older one a second later.
        latest = max((v for v, w in self._first.items() if report.worker in w), default=n)
        self.back += latest > n and began > self._first[latest][report.worker] + 1.0


if __name__ == "__main__":
    main()
