"""A dead-letter queue of RabbitMQ that is deep: how long it is read, how long others do not see its messages, how fast it is drained.

    python -m bench.rabbitmq_dead_letters [--jobs 50000]

Messages of about 1 kB with an error and a stack trace in their headers, each kept on disk. Nothing is filed: what SQL takes is measured by
`bench/ingest.py`. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import redis
from kombu import Connection

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.sources.rabbitmq import reading as rabbitmq_reading
from tests.kit.rabbitmq import HOW_TO_GET_IT, Node, server

DLQ, QUEUE = "webhooks.dlq", "webhooks"
HEADERS = {
    "x-exception-message": "partner refused",
    "x-exception-stacktrace": "Error: refused\n    at send (a.js:1:1)\n" * 10,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    jobs = parser.parse_args().jobs
    if server() is None:
        raise SystemExit(HOW_TO_GET_IT)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, contextlib.ExitStack() as stack:
        store, node = Engine(Path(folder, "store")), Node(Path(folder, "node"))
        for one in (store, node):
            one.start()
            stack.callback(one.stop)
        client = stack.enter_context(redis.Redis.from_url(store.url))
        fill(node.url, jobs)
        figures = {"jobs": jobs, "mirror": mirrored(node.url, client), "drain": drained(node.url, client)}
        json.dump(
            {"machine": machine(), "load": os.getloadavg()[0], "versions": versions()} | figures, sys.stdout, indent=2
        )
    print()


def fill(url: str, jobs: int) -> None:
    with Connection(url) as connection:
        channel = connection.default_channel
        for queue in (DLQ, QUEUE):
            channel.queue_declare(queue, durable=True, auto_delete=False)
        for n in range(jobs):
            body = json.dumps({"n": n, "text": "x" * 400})
            message = amqp.Message(
                body, content_type="application/json", delivery_mode=2, message_id=f"m-{n}", application_headers=HEADERS
            )
            channel.basic_publish(message, exchange="", routing_key=DLQ)
        while channel.queue_declare(DLQ, passive=True).message_count < jobs:
            time.sleep(0.1)


def source(url: str, client: redis.Redis, mode: str) -> Any:
    dlq = {"name": DLQ, "of": QUEUE, "mode": mode}
    return connect("bus", "rabbitmq", url, (), {"dead_letter_queues": [dlq]}, store=lambda: client)


def pages(adapter: Any, after: str = "") -> Iterator[Any]:
    while True:
        pulled = adapter.dead_letters(after)
        yield from pulled.reports
        adapter.confirm_filed(pulled)
        after = pulled.after
        if not pulled.is_more and not any(known.went_off for known in adapter._mirrors.values()):
            return


def mirrored(url: str, client: redis.Redis) -> dict[str, Any]:
    holds: list[float] = []
    real = rabbitmq_reading.mirror

    def timed(*args: Any) -> Any:
        done = real(*args)
        holds.append(round(done.took_s, 2))
        return done

    rabbitmq_reading.mirror = timed
    adapter = source(url, client, "mirror")
    begun = time.monotonic()
    reports = list(pages(adapter))  # with the pauses between passes
    read_s = time.monotonic() - begun
    first_holds = list(holds)
    begun = time.monotonic()
    after = adapter.dead_letters("{}").after
    for _ in range(20):
        adapter.confirm_filed(pulled := adapter.dead_letters(after))
        after = pulled.after
    idle_ms = (time.monotonic() - begun) / 20 * 1000
    messages = [
        OutgoingMessage(n, one.raw, QUEUE, f"new-{n}", {"queue": QUEUE, "job_id": one.job_id, "run": 2})
        for n, one in enumerate(reports[:5000])
    ]
    begun = time.monotonic()
    for start in range(0, len(messages), 500):
        adapter.send("r", messages[start : start + 500])
    send_s = time.monotonic() - begun
    with Connection(url) as connection:
        before = connection.default_channel.queue_declare(DLQ, passive=True).message_count
        time.sleep(15)  # RabbitMQ puts back what was held
        adapter._mirrors[DLQ].not_before = 0.0  # it would wait for nine times as long as it held
        adapter.confirm_filed(adapter.dead_letters(after))
        left = connection.default_channel.queue_declare(DLQ, passive=True).message_count
    adapter.close()
    rabbitmq_reading.mirror = real
    return {
        "told": len({one.job_id for one in reports}),
        "read_s": round(read_s, 1),
        "held_s_by_pass": first_holds,
        "a_round_without_change_ms": round(idle_ms, 1),
        "sent_per_s": round(len(messages) / send_s),
        "copies_taken_out_in_one_pass": before - left,
        "that_pass_s": holds[-1],
    }


def drained(url: str, client: redis.Redis) -> dict[str, Any]:
    adapter = source(url, client, "drain")
    begun = time.monotonic()
    count = sum(1 for _ in pages(adapter))
    took = time.monotonic() - begun
    adapter.close()
    return {"told": count, "took_s": round(took, 1), "per_s": round(count / took)}


if __name__ == "__main__":
    main()
