"""Bringing delayed jobs back onto RabbitMQ: how many a second by 1, 2 and 4 promoters, and that each arrives once.

    python -m bench.onto_rabbitmq [--jobs 2000]

The same call that a worker makes (`worker/later.py: promote`), in processes of its own as in as many workers: from a store (Valkey) to
a durable queue, 1.5 KB a message, kept on disk, each confirmed before the next. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

import redis
from kombu import Connection

from bench.machine import machine, versions
from dashboard.engine import Engine
from jobs_admin.worker.broker import Publisher
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.later import promote
from tests.rabbitmq import HOW_TO_GET_IT, Node, server

QUEUE = "emails"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--jobs", type=int, default=2_000)
    jobs = asked.parse_args().jobs
    if server() is None:
        raise SystemExit(HOW_TO_GET_IT)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        store, node = Engine(Path(folder, "store")), Node(Path(folder, "node"))
        for one in (store, node):
            one.start()
            stack.callback(one.stop)
        figures = [brought_back(store.url, node.url, jobs, promoters) for promoters in (1, 2, 4)]
        json.dump({"machine": machine(), "versions": versions(), "promoters": figures}, sys.stdout, indent=2)
    print()


def brought_back(store: str, broker: str, jobs: int, promoters: int) -> dict[str, Any]:
    with Connection(broker) as connection, redis.Redis.from_url(store) as client:
        channel = connection.default_channel
        channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        delays = Delays(client, "shop")
        for n in range(jobs):
            message = {
                "body": "x" * 1500,
                "headers": {"task": "send", "id": str(n)},
                "properties": {"delivery_mode": 2},
            }
            delays.schedule(Head(str(n), 2, "send", QUEUE), json.dumps(message).encode(), 0)
        began = time.monotonic()
        running = [Process(target=bring_back, args=(store, broker)) for _ in range(promoters)]
        for process in running:
            process.start()
        for process in running:
            process.join()
        seconds = time.monotonic() - began
        found = []
        while message := channel.basic_get(QUEUE, no_ack=True):
            found.append(message.headers["id"])
    return {
        "promoters": promoters,
        "jobs_per_second": round(jobs / seconds),
        "lost": jobs - len(set(found)),
        "twice": len(found) - len(set(found)),
    }


def bring_back(store: str, broker: str) -> None:
    publisher = Publisher(lambda: Connection(broker))
    with redis.Redis.from_url(store) as client:
        delays = Delays(client, "shop")
        while delays.count():
            if not promote(delays, publisher).jobs:
                time.sleep(0.02)  # the last are another's


if __name__ == "__main__":
    main()
