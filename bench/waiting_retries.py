"""Retries that wait: what they cost the workers' memory, what a kill of every worker does to them, how late they come.

    python -m bench.waiting_retries [--retries 20000] [--per-second 1000] [--workers 2] [--wait 2] [--stock]

No dashboard: a broker (Valkey with an append-only file), a store, guarded prefork workers of two children.

*Waiting*: the jobs fail once under a policy whose retry is due in an hour, and wait. Memory of the workers before and after.
*Killed*: every worker is ended by SIGKILL half way, and others are started. Due times are set so that after `--wait` s `--per-second` jobs
are due a second: 2 stands for the hour, 3600 waits it out. Each job's second attempt writes a line; none may be missing, none twice.
*Late*: as many jobs that wait for a list which no worker reads, so that only bringing them back is measured: one guarded worker does
it, and this process reads the list and notes how long after its due time each arrived.
*Stock*: as many jobs with Celery's own countdown of an hour instead, for the memory beside it.

Workers and bench share one clock. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.worker.delays import Delays, Head
from tests.kit.celery import RealWorker
from tests.kit.policies import policy, published
from tests.rigs.figures import spread
from tests.rigs.waiting_retries import AHEAD_S, HOUR_S, lines, pass_the_hour, send, until

SINK = "sink"  # a list that no worker reads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--retries", type=int, default=20_000)
    parser.add_argument("--per-second", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wait", type=float, default=AHEAD_S, help="seconds until the first is due")
    parser.add_argument("--stock", action="store_true", help="also the memory of Celery's own countdown")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        broker, store = (Engine(Path(folder, name)).start() for name in ("broker", "store"))
        stack.callback(broker.stop)
        stack.callback(store.stop)
        figures: dict[str, Any] = {
            "machine": machine(),
            "versions": versions(),
            "asked": vars(wanted),
            **waiting(broker, store, wanted),
            "late": late(broker, store, wanted),
        }
        if wanted.stock:
            figures["stock_countdown"] = stock(broker, store, wanted)
    json.dump(figures, sys.stdout, indent=2)
    print()


def waiting(broker: Engine, store: Engine, wanted: argparse.Namespace) -> dict[str, Any]:
    published(store.url, policy("hour", max_attempts=3, backoff={"kind": "fixed", "first_delay_s": HOUR_S}))
    with fleet(broker, store, wanted.workers) as workers, redis.Redis.from_url(broker.url) as client:
        warm_up(workers, client)
        before = memory_mb(workers)
        jobs = send(workers[0], wanted.retries, "try")
        until(lambda: client.zcard(keys.due("shop")) == wanted.retries, 1800, "all to wait")
        time.sleep(3)
        after = memory_mb(workers)
        redis_mb = (client.memory_usage(keys.due_jobs("shop"), samples=100) or 0) / 1024**2
        due = pass_the_hour(client, wanted.per_second, wanted.wait)
        time.sleep(max(0, wanted.wait / 2 - AHEAD_S))
        before_mb = memory_mb(workers)
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.start()
        until(
            lambda: attempts(workers)[2] >= wanted.retries,
            wanted.wait + 60 + 20 * wanted.retries / wanted.per_second,
            "all to run",
        )
        time.sleep(2)
        began = lines(workers)
    seconds = Counter(job for job, attempt, _ in began if attempt == 2)
    late_by = sorted(at - due[job] for job, attempt, at in began if attempt == 2)
    return {
        "waiting": {
            "retries": wanted.retries,
            "workers_mb_before": before,
            "workers_mb_while_all_wait": after,
            "workers_mb_before_the_kill": before_mb,
            "broker_mb_of_waiting_jobs": round(redis_mb, 1),
        },
        "killed": {
            "workers_killed": len(workers),
            "lost": len(set(jobs) - set(seconds)),
            "ran_twice": sum(n > 1 for n in seconds.values()),
            "strangers": len(set(seconds) - set(jobs)),
            "first_due_after_s": wanted.wait,
            "early": sum(seconds < -0.01 for seconds in late_by),
            "start_of_attempt_late_s": spread(late_by),
        },
    }


def late(broker: Engine, store: Engine, wanted: argparse.Namespace) -> dict[str, float]:
    with fleet(broker, store, 1), redis.Redis.from_url(broker.url) as client:
        delays = Delays(client, "shop")
        for n in range(wanted.retries):
            name = f"j{n}"
            delays.schedule(Head(name, 2, "try", SINK, "hour@1", list=SINK), name.encode() + b" " * 1500, HOUR_S)
        due = pass_the_hour(client, wanted.per_second)
        found: dict[str, float] = {}
        ends = time.monotonic() + 120 + wanted.retries / wanted.per_second
        while len(found) < wanted.retries and time.monotonic() < ends:
            for message in client.lmpop(1, SINK, direction="RIGHT", count=500) or (None, []):
                for one in message if isinstance(message, list) else []:
                    name = one.decode().strip()
                    assert name not in found, "a job arrived twice"
                    found[name] = time.time()
            time.sleep(0.002)
        if len(found) < wanted.retries:
            raise SystemExit(f"only {len(found)} of {wanted.retries} arrived")
    return spread(at - due[name] for name, at in found.items())


def stock(broker: Engine, store: Engine, wanted: argparse.Namespace) -> dict[str, Any]:
    with (
        fleet(broker, store, wanted.workers, {"REAL_STOCK": "1"}) as workers,
        redis.Redis.from_url(broker.url) as client,
    ):
        warm_up(workers, client)
        before = memory_mb(workers)
        send(workers[0], wanted.retries, "try", countdown=HOUR_S)
        until(lambda: client.hlen("unacked") >= wanted.retries, 1800, "all to be fetched")
        time.sleep(3)
        return {"workers_mb_before": before, "workers_mb_while_all_wait": memory_mb(workers)}


@contextlib.contextmanager
def fleet(broker: Engine, store: Engine, count: int, more: dict[str, str] | None = None):
    with redis.Redis.from_url(broker.url) as client:
        client.flushall()
    made = [
        RealWorker(broker.url, store.url, late_ack=True, environment={"REAL_VISIBILITY": "7200", **(more or {})})
        for _ in range(count)
    ]
    try:
        for worker in made:
            worker.start()
        yield made
    finally:
        for worker in made:
            worker.stop()


def warm_up(workers: list[RealWorker], client: redis.Redis) -> None:
    """A child grows by some 100 MB over its first thousand failures, with stock Celery too, and then stays."""
    for _ in range(2 * 1_000 * len(workers)):
        workers[0].send("fail")
    until(lambda: not client.llen("celery") and not client.hlen("unacked"), 300, "the first jobs")


def attempts(workers: list[RealWorker]) -> Counter[int]:
    return Counter(attempt for _, attempt, _ in lines(workers))


def memory_mb(workers: list[RealWorker]) -> dict[str, float]:
    """The memory that the main processes, and that their children, hold alone (RSS; children share pages with the main
    one).
    """
    main_mb = children_mb = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            columns = file.read_text().rpartition(")")[2].split()
            rss_mb = int(columns[21]) * os.sysconf("SC_PAGE_SIZE") / 1024**2
        except OSError:
            continue
        for worker in workers:
            if worker.process is not None and int(columns[2]) == worker.process.pid:
                if int(file.parent.name) == worker.process.pid:
                    main_mb += rss_mb
                else:
                    children_mb += rss_mb
    return {"main": round(main_mb, 1), "children": round(children_mb, 1)}


if __name__ == "__main__":
    main()
