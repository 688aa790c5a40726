"""Costs of a scrape of /metrics after errors without end, and what counting them costs ingest.

    python -m bench.metrics [--failures 100000] [--database postgresql://…]

Files reports of as many distinct error types and messages (of 20 tasks, on 5 queues) through the real stream and ingest,
then scrapes with a token. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import machine
from dashboard.setup.engine import Engine
from tests.rigs.empty_desk import desk

_SCRAPES = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--database", default="", help="an empty PostgreSQL database; otherwise a SQLite file")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        print(json.dumps(measured(wanted, Path(folder)), indent=1))


def measured(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    engine = Engine(folder / "engine").start()
    try:
        given = {"DATABASE_URL": wanted.database} if wanted.database else {}
        desk(folder, REDRIVE_REDIS_URL=engine.url, **given)
        from django.db import connection

        figures = {"machine": machine(), "database": connection.vendor, "distinct_errors": wanted.failures}
        return figures | filed(wanted.failures) | scraped()
    finally:
        engine.stop()


def filed(count: int) -> dict[str, Any]:
    """File as many reports, each with an error of its own; of the time, what counting for Prometheus took."""
    from jobs_admin import config, ingest
    from jobs_admin.core import keys
    from jobs_admin.core.envelope import Envelope, encode
    from jobs_admin.db import counters

    spent, add = [], counters.add_totals

    def timed(counts: Any) -> None:
        began = time.perf_counter()
        add(counts)
        spent.append(time.perf_counter() - began)

    store, now = config.store(), time.time()
    for start in range(0, count, 500):
        with store.pipeline(transaction=False) as pipe:
            for n in range(start, min(start + 500, count)):
                values = {"task": f"shop.t{n % 20}", "error_type": f"Error{n}", "message": f"order {n} {n:x} refused"}
                one = Envelope(
                    source="bench",
                    queue=f"q{n % 5}",
                    job_id=f"j{n}",
                    kind="exception",
                    attempt=1,
                    at=now - 60,
                    **values,
                )
                pipe.xadd(keys.failures("bench"), encode(one))
            pipe.execute()
    counters.add_totals = timed
    began = time.monotonic()
    while store.xlen(keys.failures("bench")):
        ingest.step("bench", wait_s=0.01)
    took = time.monotonic() - began
    counters.add_totals = add
    return {
        "filed_in_s": round(took, 1),
        "counting_us_per_failure": round(sum(spent) / count * 1e6, 1),
        "counting_longest_ms": round(max(spent) * 1000, 1),
        "counting_share": round(sum(spent) / took, 4),
    }


def scraped() -> dict[str, Any]:
    from django.test import Client

    from jobs_admin.db import counters
    from jobs_admin.management.commands.token import create
    from jobs_admin.models import Failure
    from jobs_admin.models.access import ENGINE

    client, took = Client(SERVER_NAME="127.0.0.1"), []
    headers = {"Authorization": f"Bearer {create('bench', 'viewer')}"}
    client.get("/healthz")  # the first request of a process reads its code
    for _ in range(_SCRAPES):
        began = time.perf_counter()
        answer = client.get("/metrics", headers=headers)
        took.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.content
    failed = [(counted, n) for counted, n in counters.read_totals(ENGINE) if counted.metric == counters.FAILURES]
    return {
        "failures": Failure.objects.count(),
        "label_sets_of_job_failures_total": len(failed),
        "counted": int(sum(n for _, n in failed)),
        "counted_as_other": int(sum(n for counted, n in failed if counted.error == counters.OTHER)),
        "lines": answer.text.count("\n"),
        "bytes": len(answer.content),
        "scrape_ms": {
            "first": round(took[0] * 1000),
            "median": round(statistics.median(took) * 1000),
            "longest": round(max(took) * 1000),
        },
    }


if __name__ == "__main__":
    main()
