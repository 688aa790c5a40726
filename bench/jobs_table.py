"""A jobs table that is read and sent to while its own worker works: how long that takes, and how long the worker waits.

    python bench/jobs_table.py [--rows 1000000] [--dead 45000] [--journal wal|delete]

Prints JSON. SQLite on this machine's disk; the worker writes a row every 5 ms and measures until its write is through.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, Ref, Rescheduled

TABLE = """CREATE TABLE jobs (id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT, attempts INTEGER, max_attempts INTEGER,
last_error TEXT, locked_by TEXT, locked_at TEXT, scheduled_at TEXT, created_at TEXT DEFAULT (datetime('now')),
updated_at TEXT DEFAULT (datetime('now')))"""


def work(path: str, is_measured, is_over, results) -> None:
    """Their worker, in a process of its own: how long each of its writes waited, in seconds."""
    mine, waits = sqlite3.connect(path, timeout=0, isolation_level=None), []
    while not is_over.wait(0.005):
        began = time.monotonic()
        while True:
            try:
                mine.execute("UPDATE jobs SET locked_by = 'w' WHERE id = 1")
                break
            except sqlite3.OperationalError:
                time.sleep(0.0005)
        if is_measured.is_set():
            waits.append(time.monotonic() - began)
    mine.close()
    results.send(waits)


def watched(path: Path, act) -> dict[str, float]:
    is_measured, is_over = multiprocessing.Event(), multiprocessing.Event()
    mine, theirs = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=work, args=(str(path), is_measured, is_over, theirs), daemon=True)
    worker.start()
    time.sleep(1)
    is_measured.set()
    began = time.monotonic()
    act()
    took = time.monotonic() - began
    is_over.set()
    waits = sorted(mine.recv()) or [0.0]
    worker.join()
    return {
        "took_s": round(took, 2),
        "worker_writes": len(waits),
        "worker_waited_ms_p50": round(statistics.median(waits) * 1000, 1),
        "worker_waited_ms_p99": round(waits[int(len(waits) * 0.99)] * 1000, 1),
        "worker_waited_ms_most": round(waits[-1] * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=45_000)
    parser.add_argument("--journal", default="wal")
    parser.add_argument("--indexed", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(f"PRAGMA journal_mode = {args.journal}")
        db.execute(TABLE)
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) "
            "INSERT INTO jobs (type, payload, status, attempts, max_attempts, updated_at, last_error) "
            'SELECT \'send_email\', printf(\'{"to": "customer-%d@example.com", "n": %d}\', i, i), '
            "CASE WHEN i % :every = 0 THEN 'failed' ELSE 'completed' END, 3, 5, "
            "datetime('now', '-' || (:rows - i) || ' seconds'), 'TimeoutError: no answer within 30 s' FROM n",
            {"rows": args.rows, "every": max(1, args.rows // args.dead)},
        )
        if args.indexed:
            db.execute("CREATE INDEX by_time ON jobs (updated_at)")
            db.execute("CREATE INDEX by_status ON jobs (status, scheduled_at)")
        source = connect("shop", "jobs_table", f"sqlite:///{path}")
        reports, after = [], ""

        def read() -> None:
            nonlocal after
            while True:
                pulled = source.dead_letters(after)
                reports.extend(pulled.reports)
                source.confirm_filed(pulled)
                after = pulled.after
                if not pulled.is_more:
                    return

        found = {"read": watched(path, read), "dead": len(reports), "every_s": round(source.every_s, 1)}
        found["look_again"] = watched(path, read)
        messages = [
            OutgoingMessage(
                n, one.raw, one.queue, one.job_id, {"queue": one.queue, "job_id": one.job_id, "run": 2, "item": n}
            )
            for n, one in enumerate(reports)
        ]

        def send() -> None:
            for start in range(0, len(messages), 500):
                source.send("bench", messages[start : start + 500])

        found["send"] = watched(path, send)
        db.execute("UPDATE jobs SET attempts = 2 WHERE status = 'pending'")
        changes = [Rescheduled(Ref(one.queue, one.job_id), time.time() + 600) for one in reports[:10_000]]
        found["reschedule_10000"] = watched(path, lambda: source.reschedule(changes))
        found["depths"] = watched(path, source.depths)
        source.close()
        db.close()
    print(json.dumps({"load": os.getloadavg()[0], "cores": os.cpu_count(), **vars(args), **found}, indent=1))


if __name__ == "__main__":
    main()
