"""BullMQ's dead letters as the adapter reads and sends them: jobs a second, and for how long each call holds Redis.

    python -m bench.bullmq_pace [--jobs 45000] [--major 6]

One job really dies on a worker of Node; the others are copies of what it left, each under its own id and with its own time. Reading goes up
to the encoded report; filing them is another thing (`bench.ingest`). Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from bench.machine import machine
from dashboard.setup.engine import Engine
from jobs_admin.core.envelope import encode
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from tests.kit import node

_QUEUE = "webhooks"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=45_000)
    parser.add_argument("--major", type=int, default=6)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder)).start()
        try:
            print(json.dumps({"machine": machine(), **_measure(engine.url, chosen.jobs, chosen.major)}, indent=2))
        finally:
            engine.stop()


def _measure(url: str, jobs: int, major: int) -> dict[str, object]:
    client = redis.Redis.from_url(url)
    _fill(client, url, jobs, major)
    source = connect("shop", "bullmq", url)
    client.config_resetstat()
    began, after, reports, slowest = time.perf_counter(), "", {}, 0.0
    while True:
        page = time.perf_counter()
        pulled = source.dead_letters(after)
        slowest = max(slowest, time.perf_counter() - page)
        for one in pulled.reports:
            encode(one)
            reports[one.job_id] = one
        source.confirm_filed(pulled)
        after = pulled.after
        if not pulled.is_more:
            break
    read_s = time.perf_counter() - began
    idle = time.perf_counter()
    for _ in range(20):
        pulled = source.dead_letters(after)
        source.confirm_filed(pulled)
        after = pulled.after
    idle_s = (time.perf_counter() - idle) / 20
    messages = [_message(n, one) for n, one in enumerate(reports.values())]
    client.config_set("slowlog-log-slower-than", 500)
    client.config_set("slowlog-max-len", 10_000)
    client.slowlog_reset()
    began = time.perf_counter()
    for start in range(0, len(messages), 500):
        source.send("r", messages[start : start + 500])
    sent_s = time.perf_counter() - began
    durations = sorted(one["duration"] for one in client.slowlog_get(10_000) if one["command"].startswith(b"EVALSHA"))
    again = time.perf_counter()
    assert set(source.send("r", messages[:5_000]).values()) == {"already"}
    again_s = time.perf_counter() - again
    waiting = source.depths()[0].waiting
    latency = _latency(source, url, major, after)
    source.close()
    return {
        "bullmq": major,
        "jobs": jobs,
        "read": len(reports),
        "read_s": round(read_s, 2),
        "read_per_s": round(len(reports) / read_s),
        "slowest_page_ms": round(slowest * 1000),
        "idle_look_ms": round(idle_s * 1000, 2),
        "sent_s": round(sent_s, 2),
        "sent_per_s": round(len(messages) / sent_s),
        "a_call_holds_redis_ms": {
            "calls": len(durations),
            "median": durations[len(durations) // 2] / 1000,
            "longest": durations[-1] / 1000,
        },
        "already_per_s": round(5_000 / again_s),
        "waiting_afterwards": waiting,
        "told_after_s": latency,
    }


def _latency(source: Any, url: str, major: int, after: str) -> dict[str, float]:
    """From the end of a job, by its worker's clock on this machine, to its report, asked for as often as the watch does."""
    waited: list[float] = []
    with node.Bullmq(major, url, broken=["partner"], work=["other"]) as bull:
        bull.add("other", "deliver", {"needs": "partner"})
        bull.wait_for_event("failed")
        while not any(queue == "other" for queue in (one.queue for one in source.dead_letters(after).reports)):
            source._wire.rediscover()  # a new queue is found within a minute
        for _ in range(20):
            job = bull.add("other", "deliver", {"needs": "partner"})
            while True:
                time.sleep(source.every_s)
                pulled = source.dead_letters(after)
                source.confirm_filed(pulled)
                after = pulled.after
                if mine := [one for one in pulled.reports if one.job_id == job]:
                    waited.append(time.time() - mine[0].at)
                    break
    return {"median": round(sorted(waited)[10], 2), "longest": round(max(waited), 2)}


def _fill(client: redis.Redis, url: str, jobs: int, major: int) -> None:
    with node.Bullmq(major, url, broken=["partner"], work=[_QUEUE]) as bull:
        bull.add(_QUEUE, "deliver", {"needs": "partner", "customer": 42, "body": "x" * 600}, attempts=1)
        bull.wait_for_event("failed")
    fields = client.hgetall(f"bull:{_QUEUE}:1")
    ended = int(fields[b"finishedOn"])
    for start in range(2, jobs + 1, 1_000):
        pipe = client.pipeline(transaction=False)
        for n in range(start, min(start + 1_000, jobs + 1)):
            pipe.hset(f"bull:{_QUEUE}:{n}", mapping={**fields, b"finishedOn": ended - n})
            pipe.zadd(f"bull:{_QUEUE}:failed", {n: ended - n})
        pipe.execute()
    client.set(f"bull:{_QUEUE}:id", jobs)


def _message(token: int, report) -> OutgoingMessage:  # type: ignore[no-untyped-def]
    lineage = {
        "queue": report.queue, "job_id": report.job_id, "run": 2, "item": token, "replay": "r", "sent_as": report.job_id,
    }  # fmt: skip
    return OutgoingMessage(token, report.raw, report.queue, report.job_id, lineage)


if __name__ == "__main__":
    main()
