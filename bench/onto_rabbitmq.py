"""Jobs onto RabbitMQ: how many a second are brought back by 1, 2 and 4 promoters, and how many are replayed; each arrives once.

    python -m bench.onto_rabbitmq [--jobs 2000]

The same call that a worker makes (`worker/later.py: promote`), in processes of its own as in as many workers: from a store (Valkey) to a
durable queue, 1.5 KB a message, kept on disk, each confirmed before the next. Replays go through the source as the step `send` uses it, 1,
10 and 500 letters a call, with the ledger in the store. Prints JSON.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
import tempfile
import time
import uuid
from multiprocessing import Process
from pathlib import Path
from typing import Any

import redis
from kombu import Connection

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.worker.broker import Publisher
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.later import promote
from tests.kit.rabbitmq import HOW_TO_GET_IT, Node, server

QUEUE = "emails"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    jobs = parser.parse_args().jobs
    if server() is None:
        raise SystemExit(HOW_TO_GET_IT)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        store, node = Engine(Path(folder, "store")), Node(Path(folder, "node"))
        for one in (store, node):
            one.start()
            stack.callback(one.stop)
        figures = [brought_back(store.url, node.url, jobs, promoters) for promoters in (1, 2, 4)]
        replayed = [replay_rate(store.url, node.url, at_once, jobs) for at_once in (1, 10, 500)]
        found = {"machine": machine(), "load": os.getloadavg()[0], "versions": versions()}
        json.dump(found | {"promoters": figures, "replays": replayed}, sys.stdout, indent=2)
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


def replay_rate(store: str, broker: str, at_once: int, jobs: int) -> dict[str, Any]:
    jobs = jobs if at_once > 1 else jobs // 4
    with Connection(broker) as connection, redis.Redis.from_url(store) as client:
        channel = connection.default_channel
        channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        source = connect("shop", "celery", broker, queues=[QUEUE], store=lambda: client)
        replay, sent = uuid.uuid4().hex, 0
        messages = [outgoing(n, replay) for n in range(jobs)]
        began = time.monotonic()
        for start in range(0, jobs, at_once):
            answers = source.send(replay, messages[start : start + at_once])
            sent += sum(answer == "sent" for answer in answers.values())
        seconds = time.monotonic() - began
        in_doubt = source.in_doubt(replay, range(jobs))
        source.close()
        found = []
        while message := channel.basic_get(QUEUE, no_ack=True):
            found.append(message.headers["id"])
    return {
        "letters_a_call": at_once,
        "jobs_per_second": round(jobs / seconds),
        "sent": sent,
        "in_doubt": len(in_doubt),
        "lost": jobs - len(set(found)),
        "twice": len(found) - len(set(found)),
    }


def outgoing(n: int, replay: str) -> OutgoingMessage:
    headers = {"task": "send", "id": str(n), "lang": "py", "argsrepr": "x" * 300, "root_id": str(n), "retries": 3}
    message = {
        "body": base64.b64encode(b"x" * 1_100).decode(), "content-type": "application/json", "content-encoding": "utf-8",
        "headers": headers, "properties": {"delivery_mode": 2, "body_encoding": "base64", "correlation_id": str(n)},
    }  # fmt: skip
    lineage = {"queue": QUEUE, "job_id": str(n), "run": 2, "item": n, "replay": replay}
    return OutgoingMessage(n, json.dumps(message).encode(), QUEUE, f"again-{n}", lineage)


def bring_back(store: str, broker: str) -> None:
    publisher = Publisher(lambda: Connection(broker))
    with redis.Redis.from_url(store) as client:
        delays = Delays(client, "shop")
        while delays.count():
            if not promote(delays, publisher).jobs:
                time.sleep(0.02)  # the last are another's


if __name__ == "__main__":
    main()
