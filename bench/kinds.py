"""Every way in which a job can fail, on both brokers, under early and late acknowledgement, in three pools, as a table.

    python -m bench.kinds [--broker redis|rabbitmq] [--json]
    python -m bench.kinds --garbage

The whole table, of which an ordinary run of `tests/jobs_admin/worker/test_kinds.py` holds both brokers, early and late, and each pool
somewhere: run it where capture is changed. One row for each kind: how often it was reported, whether the message that was
kept is the one that lay in the queue, where it stands on the desk, and who brought it back once its cause was fixed. `--garbage`:
what an element that no producer of Celery writes does to a worker without the guard and with it. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from dashboard.setup.engine import Engine
from tests.kit import garbage, rabbitmq
from tests.kit.celery import RealWorker
from tests.rigs.empty_desk import desk

ACKS = {False: "early", True: "late"}
_SETTLED_S = 15.0
_BROKE, _RECONNECTED = "Unrecoverable error", "Connection to broker lost"  # as Celery says it in its log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], action="append")
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder, ExitStack() as stack:
        engine = Engine(Path(folder, "engine")).start()
        stack.callback(engine.stop)
        if options.garbage:
            rows = [_thrown(engine, is_guarded) for is_guarded in (False, True)]
            _print(["element", "stock", "guarded"], [[name, rows[0][name], rows[1][name]] for name in rows[0]])
            return
        urls = {"redis": engine.url.removesuffix("/0") + "/1"}
        brokers = options.broker or ["redis", "rabbitmq"]
        if "rabbitmq" in brokers:
            if rabbitmq.server() is None:
                raise SystemExit(rabbitmq.HOW_TO_GET_IT)
            node = rabbitmq.Node(Path(folder, "node")).start()
            stack.callback(node.stop)
            urls["rabbitmq"] = node.url
        found = _tried(Path(folder), engine, {name: urls[name] for name in brokers})
    if options.json:
        json.dump(found, sys.stdout, indent=1)
    else:
        _table(found)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"\nLoad average of the machine meanwhile: {load}.", file=sys.stderr)


def _tried(folder: Path, engine: Engine, urls: dict[str, str]) -> list[dict[str, Any]]:
    # The table is of the columns that were asked for; the desk is one, and knows one source at a time.
    file = folder / "sources.toml"
    desk(folder, REDRIVE_SOURCES=str(file), REDRIVE_REDIS_URL=engine.url)
    from jobs_admin import config
    from jobs_admin.models import Failure, Payload, Replay, ReplayItem
    from tests.kit.sources import forget_configuration
    from tests.rigs import kinds

    made = {"redis": kinds.OnRedis, "rabbitmq": kinds.OnRabbitMQ}
    found = []
    for name, url in urls.items():
        file.write_text(f'[sources.shop]\nbackend = "celery"\nurl = "{url}"\nqueues = ["emails"]\n')
        for pool in kinds.POOLS:
            for late in ACKS:
                forget_configuration(config)
                with redis.Redis.from_url(engine.url) as store:
                    store.flushdb()
                    trials = kinds.tried(made[name](url), pool, late, engine.url, store)
                for one in trials:
                    found.append(
                        {
                            "kind": one.row.name,
                            "where": f"{made[name].name}, {pool}, {ACKS[late]}",
                            "told": list(one.kinds),
                            "expected": list(one.row.kinds),
                            "rows": one.rows,
                            "equal": one.is_equal,
                            "state": one.state,
                            "by": one.brought_back_by,
                            "ended": one.ended,
                        }
                    )
                print(f"{name} {pool} {ACKS[late]}: {len(trials)} kinds", file=sys.stderr, flush=True)
                ReplayItem.objects.all().delete()
                Replay.objects.all().delete()
                Payload.objects.all().delete()
                Failure.objects.all().delete()
    return found


def _table(found: list[dict[str, Any]]) -> None:
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        by_kind[one["kind"]].append(one)
    rows = []
    for kind, tried in by_kind.items():
        correct = [one for one in tried if one["told"] == one["expected"] and one["rows"] == bool(one["expected"])]
        if not tried[0]["expected"]:
            rows.append([kind, "no failure", f"{len(correct)} of {len(tried)} not told", "–", "–", "–"])
            continue
        equal, ended = sum(one["equal"] for one in tried), sum(one["ended"] == "recovered" for one in tried)
        by = sorted({one["by"] for one in tried})
        rows.append(
            [
                kind,
                ", then ".join(f"`{one}`" for one in tried[0]["told"]),
                f"{len(correct)} of {len(tried)}",
                f"{equal} of {len(tried)}",
                f"`{tried[0]['state']}`",
                f"{ended} of {len(tried)}, by {' or '.join(by)}",
            ]
        )
    head = ["kind", "told as", "told and filed once", "equal bytes", "on the desk", "ran well when mended"]
    _print(head, rows)


def _thrown(engine: Engine, is_guarded: bool) -> dict[str, str]:
    """One element at a time, each followed by a good job; a worker that it ended is started again."""
    broker, store = engine.url.removesuffix("/0") + "/2", engine.url.removesuffix("/0") + "/3"
    environment = {} if is_guarded else {"REAL_STOCK": "1"}
    found = {}
    with redis.Redis.from_url(broker) as client, redis.Redis.from_url(store) as stream:
        client.flushdb()
        worker = RealWorker(broker, store, environment=environment).start(90)
        try:
            for n, name in enumerate(garbage.CORPUS):
                before = stream.xlen("redrive:{shop}:failures")
                worker.app.send_task("ok", args=[f"before {n}"], queue="celery")
                client.lpush("celery", garbage.element(name, n))
                worker.app.send_task("ok", args=[f"after {n}"], queue="celery")
                ends = time.monotonic() + _SETTLED_S
                while time.monotonic() < ends and _BROKE not in worker.text():
                    if any(f"'after {n}'" in line for line in worker.marks("ok")):
                        break
                    time.sleep(0.05)
                time.sleep(0.2)
                found[name] = fate = _fate(worker, n, stream.xlen("redrive:{shop}:failures") - before)
                if fate not in ("lost", "runs") and not fate.startswith("filed"):
                    worker.kill()  # of one that ends, what it puts back would end the next
                    client.flushdb()
                    worker = RealWorker(broker, store, environment=environment).start(90)
        finally:
            worker.stop()
    return found


def _fate(worker: RealWorker, n: int, filed: int) -> str:
    if _BROKE in worker.text():
        return "ends the worker"
    if not any(f"'after {n}'" in line for line in worker.marks("ok")):
        return "reconnects without end" if _RECONNECTED in worker.text() else "holds up the queue"
    if any(f"'garbage {n}'" in line for line in worker.marks("ok")):
        return "runs"
    return f"filed, {filed}" if filed else "lost"


def _print(head: list[str], rows: list[list[str]]) -> None:
    for cells in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
