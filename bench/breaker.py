"""A breaker on a simulated clock: false holds, time to open, and the release of what it held.

    python -m bench.breaker [--seeds 1] [--trials 200] [--jobs 45000] [--only holds|open|release|partners|size]

Traffic in which nothing is down (200 days a seed) must not open it. Outages must, with few failed attempts. Jobs of an
outage are released into a partner that warms up from 20 to 300 requests/s over 60 s and falls over under 1.3 times as much.
Breaker, controller and detector are those that workers run; only traffic, partner and clock are made up. `size`: what 100,000 jobs
of 1 kB on hold take in a real Valkey, and how fast they are held and released. Prints JSON.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.machine import machine  # noqa: E402
from dashboard.setup.engine import Engine  # noqa: E402
from jobs_admin.worker.delays import Delays, Head, Hold  # noqa: E402
from jobs_admin.worker.next_message import next_message  # noqa: E402
from tests.rigs import breakers as rig  # noqa: E402

RATES = {"1 a minute": 1 / 60, "1/s": 1.0, "10/s": 10.0, "100/s": 100.0, "1,000/s": 1_000.0}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--jobs", type=int, default=45_000)
    options.add_argument("--only", action="append", choices=PARTS)
    chosen = options.parse_args()
    found = {"machine": machine()} | {name: PARTS[name](chosen) for name in chosen.only or PARTS}
    print(json.dumps(found, indent=1))


def holds(chosen: argparse.Namespace) -> dict[str, Any]:
    return {
        f"{mix.name}, {mix.days:g} days": [rig.false_holds(mix, seed) for seed in range(chosen.seeds)]
        for mix in rig.MIXES
    }


def open_(chosen: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, per_s in RATES.items():
        for out in (1.0, 0.9):
            trials = [rig.time_to_open(per_s, seed, out=out) for seed in range(chosen.trials)]
            seconds, failures = (sorted(one[part] for one in trials) for part in (0, 1))
            found[f"{name}, {out:.0%} fail"] = {
                "seconds_p50_p99": [round(at(seconds, share), 2) for share in (0.5, 0.99)],
                "failed_attempts_p50_p99": [at(failures, share) for share in (0.5, 0.99)],
            }
    return found


def at(values: list[Any], share: float) -> Any:
    return values[min(len(values) - 1, int(share * len(values)))]


def release(chosen: argparse.Namespace) -> dict[str, Any]:
    jobs = chosen.jobs
    return {
        f"{jobs:,} jobs in an hour": [rig.story(jobs, 3_600, seed) for seed in range(chosen.seeds)],
        f"{jobs:,} jobs in an hour, no sign of overload": rig.story(jobs, 3_600, sheds=False),
        f"{jobs // 7:,} jobs in ten minutes": rig.story(jobs // 7, 600),
        f"{jobs // 30:,} jobs in a minute": rig.story(jobs // 30, 60),
        f"{jobs // 30:,} jobs in a minute, no breaker": rig.story(jobs // 30, 60, enabled=False),
    }


def partners(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return each partner with the breaker and without."""
    cases = {
        "flapping, away 40 of 60 s for half an hour": (lambda: rig.By(rig.flapping), rig.flat(10.0), 2_000),
        "half of requests fail for ten minutes": (lambda: rig.By(rig.half_broken), rig.flat(10.0), 700),
        "slow for ten minutes, a fifth times out": (lambda: rig.By(rig.slow), rig.flat(10.0), 760),
        "429 above 10/s, 30/s arrive for two minutes, then 4/s": (
            lambda: rig.Limited(10.0), lambda at: 30.0 if at < 120 else 4.0, 400
        ),
        "one job a minute, away for an hour": (lambda: rig.By(rig.down_for(3_600, 600)), rig.flat(1 / 60), 5_400),
    }  # fmt: skip
    return {
        name: {
            way: rig.World(partner(), per_s, until_s, enabled=way == "breaker").run()
            for way in ("breaker", "no breaker")
        }
        for name, (partner, per_s, until_s) in cases.items()
    }


def size(chosen: argparse.Namespace) -> dict[str, Any]:
    jobs, queues, tenants = 100_000, 20, 500
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder)).start()
        try:
            with redis.Redis.from_url(engine.url) as client:
                return _measure_size(client, jobs, queues, tenants)
        finally:
            engine.stop()


def _measure_size(client: redis.Redis, jobs: int, queues: int, tenants: int) -> dict[str, Any]:
    raw = [
        {"headers": {"task": "send", "id": f"{n:032x}"}, "properties": {"delivery_tag": f"{n:032x}"}, "body": "x" * 900}
        for n in range(jobs)
    ]
    messages = [next_message(json.dumps(one).encode(), 1, hold=("partner", n, 0)) for n, one in enumerate(raw)]
    empty = client.info("memory")["used_memory"]
    delays = Delays(client, "shop")
    began = time.perf_counter()
    for n, message in enumerate(messages):
        head = Head(f"{n:032x}", 1, "send", f"queue{n % queues}", list=f"queue{n % queues}")
        delays.schedule(head, message, 900, hold=Hold("partner", n, f"tenant{n % tenants}", 0))
    hold_s, began = time.perf_counter() - began, time.perf_counter()
    size = client.info("memory")["used_memory"] - empty
    while delays.release("partner", 1_000, "1:1790000000000") or delays.promote().next_s is not None:
        delays.promote()
    released_s = time.perf_counter() - began
    in_queues = sum(client.llen(f"queue{n}") for n in range(queues))
    return {
        "jobs": jobs,
        "in_queues_after": in_queues,
        "bytes_of_a_message": len(messages[0]),
        "bytes_a_job_on_hold": round(size / jobs),
        "MB": round(size / 1e6, 1),
        "holds_per_s": round(jobs / hold_s),
        "released_per_s": round(jobs / released_s),
    }


PARTS = {"holds": holds, "open": open_, "release": release, "partners": partners, "size": size}


if __name__ == "__main__":
    main()
