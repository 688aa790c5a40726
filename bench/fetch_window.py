"""The time for which a message of a Redis broker has no owner: popped by kombu's BRPOP, and not yet noted in `unacked`.

    python -m bench.fetch_window [--jobs 1500] [--rounds 3]

One prefork worker of four children with a backlog, stock and guarded (a policy that counts crashes) in turn, under late ack.
Times are those of the broker's MONITOR: from each BRPOP to the `HSET unacked` that follows it. Who kills a busy worker at a
random moment loses a message with the probability `share`. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from bench import pills
from bench.machine import machine, versions
from bench.poison import Fleet, emptied, in_force, load
from dashboard.setup.engine import Engine


class One(Fleet):
    workers = 1


def measured(jobs: int, engines: tuple[Engine, Engine], *, is_stock: bool) -> dict[str, Any]:
    broker, store = engines
    with (
        tempfile.TemporaryDirectory() as name,
        redis.Redis.from_url(store.url) as records,
        redis.Redis.from_url(broker.url, socket_timeout=None) as watched,
        One(broker.url, store.url, Path(name), is_stock=is_stock) as fleet,
    ):
        if not is_stock:
            in_force(fleet, records, store.url, 3)
        app = pills.make_app(broker.url)
        for n in range(jobs):
            app.send_task("good", args=[n, 0.02], queue="jobs", task_id=f"good-{n}")
        gaps, took = _gaps(watched, jobs * 4 // 5)  # while others still wait
    gaps.sort()
    return {
        "how": "stock" if is_stock else "guarded",
        "jobs_per_s": round(len(gaps) / took),
        "p50_ms": round(gaps[len(gaps) // 2] * 1000, 2),
        "p99_ms": round(gaps[len(gaps) * 99 // 100] * 1000, 2),
        "share": round(sum(gaps) / took, 3),
        "load": load(),
    }


def _gaps(client: redis.Redis, most: int) -> tuple[list[float], float]:
    """Seconds from pop to note, and seconds in all."""
    gaps: list[float] = []
    popped = first = last = 0.0
    ends = time.monotonic() + 120
    with client.monitor() as monitor:
        while len(gaps) < most and time.monotonic() < ends:
            monitored = monitor.next_command()
            if monitored["command"].startswith("BRPOP "):
                popped = monitored["time"]
            elif popped and monitored["command"].startswith("HSET unacked "):
                gaps.append(monitored["time"] - popped)
                popped, first, last = 0.0, first or popped, monitored["time"]
    return gaps, last - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engines = Engine(Path(folder, "broker")).start(), Engine(Path(folder, "store")).start()
        try:
            rounds = [
                measured(wanted.jobs, emptied(engines), is_stock=is_stock)
                for _ in range(wanted.rounds)
                for is_stock in (True, False)
            ]
        finally:
            for engine in engines:
                engine.stop()
    json.dump({"machine": machine(), "versions": versions(), "rounds": rounds}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
