"""The rate at which dead-letter queues of BullMQ are read into the index; each job is one failure however many copies it has.

    python bench/bullmq_dead_letters.py --jobs 45000 --copies 2

Writes copies into a private Valkey as a listener does (tests/node/forwarders), then reads and files them
as a watch does (SQLite), then sends all of them, in batches of a hundred, from their copies alone. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=45_000)
    parser.add_argument("--copies", type=int, default=2)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        print(json.dumps(measure(wanted.jobs, wanted.copies, Path(folder)), indent=1))


def measure(jobs: int, copies: int, folder: Path) -> dict[str, Any]:
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

    engine = Engine(folder / "engine").start()
    sources = folder / "sources.toml"
    sources.write_text(f'[sources.shop]\nbackend = "bullmq"\nurl = "{engine.url}"\n')
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "SECRET_KEY": secrets.token_urlsafe(40),
        "REDRIVE_DATA": str(folder),
        "REDRIVE_REDIS_URL": engine.url,
        "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        "REDRIVE_SOURCES": str(sources),
    }
    try:
        return _measured(jobs, copies, engine.url)
    finally:
        engine.stop()


def _measured(jobs: int, copies: int, url: str) -> dict[str, Any]:
    import django

    django.setup()
    import redis
    from django.core.management import call_command

    from bench.machine import machine
    from jobs_admin import config
    from jobs_admin.models import Failure
    from jobs_admin.retries import pulling
    from jobs_admin.sources.base import OutgoingMessage

    call_command("migrate", verbosity=0)
    client = redis.Redis.from_url(url)
    _fill(client, jobs, copies)
    begun, rounds = time.monotonic(), []
    while True:
        round_begun = time.monotonic()
        is_more = pulling.pull("shop", "bench")
        rounds.append(time.monotonic() - round_begun)
        if not is_more:
            break
    read_s = time.monotonic() - begun
    found = Failure.objects.count()
    memory = client.memory_usage("redrive:{shop}:copies", samples=0)

    adapter: Any = config.adapter("shop")
    after, messages = "", []
    while True:  # as the messages stand in the tables, without what opening them costs
        pulled = adapter.dead_letters(after)
        messages += [
            OutgoingMessage(n, one.raw, one.queue, one.job_id, _lineage(one, n))
            for n, one in enumerate(pulled.reports, len(messages) + 1)
        ]
        adapter.confirm_filed(pulled)
        after = pulled.after
        if not pulled.is_more or len(messages) >= jobs:
            break
    begun, slowest = time.monotonic(), 0.0
    for start in range(0, len(messages), 100):
        call = time.monotonic()
        adapter.send("bench", messages[start : start + 100])
        slowest = max(slowest, time.monotonic() - call)
    sent_s = time.monotonic() - begun
    left = client.llen("bull:dead-letter:wait")
    return {
        "machine": machine(),
        "jobs": jobs,
        "copies": jobs * copies,
        "failures": found,
        "read_and_filed_s": round(read_s, 1),
        "copies_a_second": round(jobs * copies / read_s),
        "bytes_of_places_a_job": round(memory / max(1, jobs)),
        "sent": len(messages),
        "sent_s": round(sent_s, 1),
        "slowest_call_of_100_ms": round(slowest * 1000),
        "copies_left": left,
    }


def _lineage(report: Any, token: int) -> dict[str, Any]:
    where = {"queue": report.queue, "job_id": report.job_id}
    return where | {"run": 2, "item": token, "replay": "bench", "sent_as": report.job_id}


def _fill(client: Any, jobs: int, copies: int) -> None:
    for queue in ("webhooks", "dead-letter"):
        client.hset(f"bull:{queue}:meta", mapping={"version": "bullmq:6.7.0", "opts.maxLenEvents": 10_000})
    client.set("bull:webhooks:id", jobs)
    stack = "PartnerDown: the partner is down\n" + "\n".join(
        f"    at step{n} (/srv/shop/src/hooks.js:{n}:9)" for n in range(9)
    )
    now = int(time.time())
    pipe = client.pipeline(transaction=False)
    for n in range(jobs * copies):
        content = {
            "originalQueue": "webhooks",
            "originalJobId": str(n // copies + 1),
            "originalJobName": "deliver",
            "originalData": {"order": n // copies, "to": "https://hooks.example/acme", "items": ["a", "b", "c"]},
            "originalOptions": {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}},
            "failureReason": "the partner is down",
            "failureStack": "\n".join([stack] * 3),
            "attemptsMade": 3,
            "failedAt": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now)),
        }
        fields = {"name": "failed-job", "data": json.dumps(content), "opts": '{"attempts":1}', "timestamp": now * 1000}
        pipe.hset(f"bull:dead-letter:{n + 1}", mapping=fields)
        pipe.lpush("bull:dead-letter:wait", n + 1)
        if n % 1_000 == 999:
            pipe.execute()
    pipe.set("bull:dead-letter:id", jobs * copies)
    pipe.execute()


if __name__ == "__main__":
    main()
