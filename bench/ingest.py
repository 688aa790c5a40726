"""How fast captured failures become rows, and whether each becomes exactly one.

    python bench/ingest.py --failures 100000 [--processes 1] [--kill] [--database postgresql://…]

Writes all reports to the stream of a private Valkey in one burst (some 10 kB each: arguments, raw message, stack), then
starts the real `manage.py watch --only ingest` and waits until the stream is empty. `--kill` ends one of the processes by
SIGKILL half-way. Beside it: the same rows by bare executemany, with the same indexes and triggers. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

_BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="end an ingest process by SIGKILL half-way")
    parser.add_argument("--database", default="", help="an empty PostgreSQL database; otherwise a SQLite file")
    parser.add_argument("--profile", action="store_true", help="file in this process, under cProfile")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        print(json.dumps(measure(wanted, Path(folder)), indent=1))


def measure(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from cryptography.fernet import Fernet

    from dashboard.engine import Engine

    engine = Engine(folder / "engine").start()
    try:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SECRET_KEY": secrets.token_urlsafe(40),
            "REDRIVE_DATA": str(folder),
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": engine.url,
            "DATABASE_URL": wanted.database or f"sqlite:///{folder}/bench.sqlite3",
        }
        os.environ.pop("CELERY_BROKER_URL", None)
        os.environ.pop("REDRIVE_SOURCES", None)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        written = burst(wanted.failures)
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "database": database(),
            "failures": wanted.failures,
            "stream_mb": round(stream_bytes() / 1e6),
            "processes": wanted.processes,
        }
        figures |= profiled() if wanted.profile else drained(wanted)
        figures["failures_per_s"] = round(wanted.failures / figures["seconds"])
        figures |= checked(written)
        figures["bare_executemany_rows_per_s"] = bare()
        return figures
    finally:
        engine.stop()


def database() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SHOW server_version")
        return f"{connection.vendor} {cursor.fetchone()[0]}"


def burst(count: int) -> set[str]:
    """Write `count` failures; answers their job ids."""
    import fill

    from jobs_admin import config
    from jobs_admin.models import Failure

    if Failure.objects.exists():
        raise SystemExit("The database holds failures already. Nothing was changed; give an empty one.")
    ids: set[str] = set()

    def noted():
        for envelope in fill.reports(count, source="bench", hours=6, now=time.time(), dead_only=True):
            ids.add(envelope.job_id)
            yield envelope

    fill.write(config.store(), noted())
    return ids


def stream_bytes() -> int:
    from jobs_admin import config
    from jobs_admin.core import keys

    return config.store().memory_usage(keys.failures()) or 0


def drained(wanted: argparse.Namespace) -> dict[str, Any]:
    """Start the real thing and wait until the stream is empty. Time runs from the first entry that is taken off."""
    from jobs_admin import config
    from jobs_admin.core import keys
    from jobs_admin.core.lifeline import die_with_parent

    store = config.store()
    command = [sys.executable, str(ROOT / "manage.py"), "watch", "--only", "ingest"]
    watches = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(wanted.processes)]
    killed, began = 0, 0.0
    try:
        while (left := store.xlen(keys.failures())) > 0:
            if not began and left < wanted.failures:
                began = time.monotonic()
            if wanted.kill and not killed and left < wanted.failures / 2:
                killed = json.loads(store.hget(keys.steps(), "ingest"))["pid"]
                os.kill(killed, signal.SIGKILL)
            if any(watch.poll() is not None for watch in watches):
                raise SystemExit("a watch ended; see its words above")
            time.sleep(0.02)
        took = time.monotonic() - began
    finally:
        for watch in watches:
            watch.terminate()
        used = [os.wait4(watch.pid, 0)[2] for watch in watches]
    return {
        "seconds": round(took, 2),
        "cpu_us_per_failure": round(sum(u.ru_utime + u.ru_stime for u in used) / wanted.failures * 1e6),
        "killed_half_way": bool(killed),
    }


def profiled() -> dict[str, Any]:
    import cProfile
    import pstats

    from jobs_admin import config, ingest
    from jobs_admin.core import keys

    profile = cProfile.Profile()
    began = time.monotonic()
    profile.enable()
    while config.store().xlen(keys.failures()):
        ingest.step("bench", wait_s=0.01)
    profile.disable()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    return {"seconds": round(time.monotonic() - began, 2), "profiled": True}


def checked(written: set[str]) -> dict[str, int]:
    """What is in the tables against what was written."""
    from django.db.models import Sum

    from jobs_admin.models import Attempt, Failure, Group, Payload, QueueCounter, Traceback, Unfiled

    held = list(Failure.objects.values_list("first_job_id", flat=True))
    return {
        "lost": len(written - set(held)),
        "doubled": len(held) - len(set(held)),
        "attempts_beyond": Attempt.objects.count() - len(written),
        "counted_beyond": (QueueCounter.objects.filter(step=60).aggregate(n=Sum("failed"))["n"] or 0) - len(written),
        "payloads_missing": len(written) - Payload.objects.count(),
        "unfiled": Unfiled.objects.count(),
        "groups": Group.objects.count(),
        "stacks": Traceback.objects.count(),
    }


def bare() -> int:
    """Rows of failures a second when the same failures, attempts and payloads are merely inserted."""
    from django.db import connection, transaction

    from jobs_admin.models import Attempt, Failure, Payload

    tables = [model._meta.db_table for model in (Failure, Attempt, Payload)]
    rows: dict[str, list[Any]] = {}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            rows[table] = cursor.fetchall()
        for table in reversed(tables):
            cursor.execute(f"DELETE FROM {table}")
    began = time.monotonic()
    for start in range(0, len(rows[tables[0]]), _BATCH):
        with transaction.atomic(), connection.cursor() as cursor:
            for table in tables:
                part = rows[table][start : start + _BATCH]
                cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(part[0]))})", part)
    return round(len(rows[tables[0]]) / (time.monotonic() - began))


if __name__ == "__main__":
    main()
