"""Costs of the Node agent for a BullMQ worker, and the time until an edit reaches its next retry.

    python -m bench.node_worker [--edits 40] [--jobs 4000] [--rounds 3]

One Valkey for BullMQ, one for the store, one worker at concurrency 10. Costs: jobs that do nothing, and jobs that fail for good,
through a worker without the agent and through one with it (no policy; one that matches; one that counts starts), in turn. µs a job: the
whole time of the median round by its jobs. Edits: a job that always fails goes round every 50 ms under a policy; each edit is written as
`policies.push` writes it, and its latency ends when the first attempt under it has been decided. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from bench.machine import machine
from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from tests.kit import node
from tests.rigs.figures import spread

COUNTED = {"poison": {"crashes": 3, "window_s": 300}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        broker, store = Engine(Path(folder) / "broker").start(), Engine(Path(folder) / "store").start()
        try:
            document = {
                "machine": machine(),
                "jobs": wanted.jobs,
                "us_a_job": costs(broker.url, store.url, wanted),
                "ms_from_publish_to_the_first_decision": edits(broker.url, store.url, wanted.edits),
            }
        finally:
            broker.stop()
            store.stop()
    json.dump(document, sys.stdout, indent=2)
    print()


def publish(client: redis.Redis, version: int, **fields: Any) -> None:
    policy = {"match": {"source": "shop"}, "mode": "enforce", "max_attempts": 1000, **fields}
    with client.pipeline() as pipe:
        pipe.hset(keys.policies(), "bench", json.dumps({"name": "bench", "version": version, "policy": policy}))
        pipe.incr(keys.policies_version())
        pipe.execute()


def costs(broker: str, store: str, wanted: argparse.Namespace) -> dict[str, Any]:
    client = redis.Redis.from_url(store)
    cases: dict[str, dict[str, Any] | None] = {
        "without": None,
        "no policy": {},
        "a policy": {"max_attempts": 1},
        "counted": {"max_attempts": 1, **COUNTED},
    }
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(wanted.rounds):
        for name, fields in cases.items():
            client.flushall()
            if fields:
                publish(client, 1, **fields)
            for kind, data in (("well", {}), ("fails", {"fails": 9})):
                found.setdefault(kind, {}).setdefault(name, []).append(one(broker, store, fields, data, wanted.jobs))
    return {kind: {name: round(statistics.median(took)) for name, took in by.items()} for kind, by in found.items()}


def one(broker: str, store: str, fields: dict[str, Any] | None, data: dict[str, Any], jobs: int) -> float:
    """µs a job."""
    client = redis.Redis.from_url(broker)
    client.flushall()
    guard = None if fields is None else {"source": "shop", "store": store}
    with node.Bullmq(6, broker, guard=guard, options={"concurrency": 10}) as bull:
        for start in range(0, jobs, 500):
            batch = [{"name": "job", "data": data} for _ in range(min(500, jobs - start))]
            bull.queue("bench", "addBulk", batch)
        began = time.monotonic()
        bull.work("bench")
        while client.zcard("bull:bench:completed") + client.zcard("bull:bench:failed") < jobs:
            time.sleep(0.005)
        return (time.monotonic() - began) / jobs * 1e6


def edits(broker: str, store: str, count: int) -> dict[str, float]:
    redis.Redis.from_url(broker).flushall()
    client, jobs = redis.Redis.from_url(store), redis.Redis.from_url(broker)
    client.flushall()
    publish(client, 1, backoff={"kind": "fixed", "first_delay_s": 0.05})
    took = []
    with node.Bullmq(6, broker, work=["bench"], guard={"source": "shop", "store": store}) as bull:
        for version in range(2, count + 2):
            if version % 10 == 2:  # before its thousand attempts are over
                job = bull.add("bench", data={"fails": 10**6})
            time.sleep(random.uniform(0.3, 1.5))  # so that edits come at any moment of the worker's second
            clicked = time.monotonic()
            publish(client, version, backoff={"kind": "fixed", "first_delay_s": 0.05 + version / 1e6})
            while json.loads(jobs.hget(f"bull:bench:{job}", "redriveNote") or "{}").get("policy") != f"bench@{version}":
                assert time.monotonic() - clicked < 20
                time.sleep(0.001)
            took.append((time.monotonic() - clicked) * 1000)
    return spread(took, digits=0)


if __name__ == "__main__":
    main()
