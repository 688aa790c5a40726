"""The rate at which captured failures become rows, and a check that each becomes exactly one.

    python bench/ingest.py --failures 100000 [--sources 20] [--processes 1] [--kill] [--database postgresql://…]

Writes all reports to the streams of their sources in a private Valkey in one burst (some 10 kB each: arguments, raw message, stack), then
starts the real `manage.py watch --only ingest` and waits until the streams are empty. `--kill` ends one of the processes by
SIGKILL half-way. Beside it: the same rows by bare executemany into an empty database with the same indexes, and how
long small writes of another user waited meanwhile. `--prune` then deletes all by retention. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

_BATCH = 500
_IN_ONE_TRANSACTION = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=1, help="among which the reports are divided evenly")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="end an ingest process by SIGKILL half-way")
    parser.add_argument("--database", default="", help="an empty PostgreSQL database; otherwise a SQLite file")
    parser.add_argument("--prune", action="store_true", help="afterwards delete all failures by retention")
    parser.add_argument("--profile", action="store_true", help="file in this process, under cProfile")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        print(json.dumps(measure(wanted, Path(folder)), indent=1))


def measure(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

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
        written = burst(wanted.failures, wanted.sources)
        figures = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "database": database(),
            "failures": wanted.failures,
            "sources": wanted.sources,
            "stream_mb": round(stream_bytes(wanted.sources) / 1e6),
            "watches": wanted.processes,
        }
        figures |= profiled(wanted.sources) if wanted.profile else drained(wanted)
        figures["failures_per_s"] = round(wanted.failures / figures["seconds"])
        figures |= checked(written)
        figures |= bare()
        figures["ratio"] = round(figures["failures_per_s"] / figures["bare_failures_per_s"], 2)
        if wanted.prune:
            figures["prune"] = pruned()
        return figures
    finally:
        engine.stop()


def database() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SHOW server_version")
        return f"{connection.vendor} {cursor.fetchone()[0]}"


def streams(sources: int) -> dict[str, str]:
    """Source -> its stream."""
    from jobs_admin.core import keys

    return {(name := f"bench{n}"): keys.failures(name) for n in range(sources)}


def count_unread(store: Any, sources: int) -> int:
    """Reports on all streams."""
    return sum(map(store.xlen, streams(sources).values()))


def burst(count: int, sources: int) -> set[str]:
    """Write `count` failures; answers their job ids."""
    import shop

    from jobs_admin import config
    from jobs_admin.core.envelope import encode
    from jobs_admin.models import Failure

    if Failure.objects.exists():
        raise SystemExit("The database holds failures already. Nothing was changed; give an empty one.")
    ids: set[str] = set()
    turns = itertools.cycle(streams(sources).items())

    now, store = time.time(), config.store()
    envelopes = shop.reports(count, source="bench", since=now - 6 * 3600, until=now, now=now, dead_only=True)
    while part := list(itertools.islice(envelopes, _BATCH)):
        with store.pipeline(transaction=False) as pipe:
            for envelope, (source, stream) in zip(part, turns, strict=False):
                pipe.xadd(stream, encode(replace(envelope, source=source)))
                ids.add(envelope.job_id)
            pipe.execute()
    return ids


def stream_bytes(sources: int) -> int:
    from jobs_admin import config

    return sum(config.store().memory_usage(stream) or 0 for stream in streams(sources).values())


def drained(wanted: argparse.Namespace) -> dict[str, Any]:
    """Start the real thing and wait until the streams are empty. Time runs from the first entry that is taken off."""
    from jobs_admin import config
    from jobs_admin.core import keys
    from jobs_admin.core.child_process import die_with_parent

    store = config.store()
    command = [sys.executable, str(ROOT / "manage.py"), "watch", "--only", "ingest"]
    watches = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(wanted.processes)]
    killed, began = 0, 0.0
    clicks = Clicks()
    try:
        while (waiting := count_unread(store, wanted.sources)) > 0:
            if not began and waiting < wanted.failures:
                began = time.monotonic()
                clicks.start()
            if wanted.kill and not killed and waiting < wanted.failures / 2:
                killed = json.loads(store.hget(keys.steps(), "ingest"))["pid"]
                os.kill(killed, signal.SIGKILL)
            if any(watch.poll() is not None for watch in watches):
                raise SystemExit("a watch ended; see its words above")
            time.sleep(0.02)
        took = time.monotonic() - began
        clicks.is_over.set()
        clicks.join()
    finally:
        for watch in watches:
            watch.terminate()
        used = [os.wait4(watch.pid, 0)[2] for watch in watches]
    return {
        "seconds": round(took, 2),
        "cpu_us_per_failure": round(sum(u.ru_utime + u.ru_stime for u in used) / wanted.failures * 1e6),
        "killed_half_way": bool(killed),
        "another_writer_waited_ms": clicks.figures(),
    }


def pruned() -> dict[str, Any]:
    """Delete all failures as retention does, in this process."""
    from datetime import timedelta

    from django.utils import timezone

    from jobs_admin.desk import retention

    clicks = Clicks()
    clicks.start()
    began, used = time.monotonic(), time.process_time()
    done = retention.prune(timezone.now() + timedelta(days=1), older_than=timedelta(hours=1))
    took, used = time.monotonic() - began, time.process_time() - used
    clicks.is_over.set()
    clicks.join()
    return {
        "failures": done.count,
        "failures_per_s": round(done.count / took),
        "cpu_us_per_failure": round(used / done.count * 1e6),
        "longest_transaction_ms": round(done.longest_s * 1000),
        "another_writer_waited_ms": clicks.figures(),
    }


def profiled(sources: int) -> dict[str, Any]:
    import cProfile
    import pstats

    from jobs_admin import config, ingest

    profile = cProfile.Profile()
    began = time.monotonic()
    profile.enable()
    while count_unread(config.store(), sources):
        ingest.step("bench", wait_s=0.01)
    profile.disable()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    return {"seconds": round(time.monotonic() - began, 2), "profiled": True}


def checked(written: set[str]) -> dict[str, int]:
    """Compare the tables with what was written."""
    from django.db.models import Sum

    from jobs_admin.models import Attempt, Failure, Group, Payload, QueueCounter, Traceback, Unfiled

    stored = list(Failure.objects.values_list("first_job_id", flat=True))
    return {
        "lost": len(written - set(stored)),
        "doubled": len(stored) - len(set(stored)),
        "attempts_beyond": Attempt.objects.count() - len(written),
        "counted_beyond": (QueueCounter.objects.filter(step=60).aggregate(n=Sum("failed"))["n"] or 0) - len(written),
        "payloads_missing": len(written) - Payload.objects.count(),
        "unfiled": Unfiled.objects.count(),
        "groups": Group.objects.count(),
        "stacks": Traceback.objects.count(),
    }


class Clicks(threading.Thread):
    """Small writes of another user, five a second: how long each waits for the database."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waits_ms: list[float] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        from django.db import connection, transaction

        from jobs_admin.models import Unfiled

        while not self.is_over.wait(0.2):
            began = time.monotonic()
            with transaction.atomic():
                Unfiled.objects.filter(pk=0).update(size=0)
            self.waits_ms.append((time.monotonic() - began) * 1000)
        connection.close()

    def figures(self) -> dict[str, int]:
        return {
            "median": round(statistics.median(self.waits_ms)),
            "p95": round(sorted(self.waits_ms)[int(len(self.waits_ms) * 0.95)]),
            "longest": round(max(self.waits_ms)),
        }


def bare() -> dict[str, int]:
    """Failures a second when the same rows of all tables are merely inserted: a database as empty, the same indexes and
    settings, executemany, transactions of 1,000 failures; counters as the rows that they are in the end, no trigger."""
    from django.db import connection, connections, transaction

    from jobs_admin.models import Attempt, Failure, FailureCount, Group, GroupCounter, Payload, QueueCounter, Traceback
    from jobs_admin.models import terms as index

    few = [m._meta.db_table for m in (Group, Traceback, FailureCount, GroupCounter, QueueCounter)]
    of_failures = {Failure._meta.db_table: "id", index.FAILURES: "rowid"}
    of_failures |= {model._meta.db_table: "failure_id" for model in (Attempt, Payload)}
    if connection.vendor == "postgresql":
        of_failures[index.FAILURES] = "id"
    took = used = 0.0
    with another_database() as name, connection.cursor() as read:
        into = connections[name]

        def insert(parts: dict[str, list[Any]]) -> None:
            nonlocal took, used
            began, used_before = time.monotonic(), time.process_time()
            with transaction.atomic(using=name), into.cursor() as write:
                for table, rows in parts.items():
                    if rows:
                        columns = "(rowid, terms) " if "terms" in table and connection.vendor == "sqlite" else ""
                        write.executemany(
                            f"INSERT INTO {table} {columns}VALUES ({', '.join(['%s'] * len(rows[0]))})", rows
                        )
            took += time.monotonic() - began
            used += time.process_time() - used_before

        def rows(table: str, where: str = "") -> list[Any]:
            columns = "rowid, terms" if "terms" in table and connection.vendor == "sqlite" else "*"
            read.execute(f"SELECT {columns} FROM {table} {where}")
            return read.fetchall()

        insert({table: rows(table) for table in (*few, index.STACKS)})
        ids = list(Failure.objects.order_by("id").values_list("id", flat=True))
        for start in range(0, len(ids), _IN_ONE_TRANSACTION):
            part = ids[start : start + _IN_ONE_TRANSACTION]
            among = {
                t: f"WHERE {key} BETWEEN {part[0]} AND {part[-1]} ORDER BY {key}" for t, key in of_failures.items()
            }
            insert({table: rows(table, where) for table, where in among.items()})
    return {
        "bare_failures_per_s": round(len(ids) / took),
        "bare_cpu_us_per_failure": round(used / len(ids) * 1e6),
    }


@contextlib.contextmanager
def another_database() -> Iterator[str]:
    """An alias for an empty database beside the one that is measured, with its tables, without its triggers."""
    from django.core.management import call_command
    from django.db import connection, connections

    is_sqlite = connection.vendor == "sqlite"
    settings = {**connection.settings_dict, "NAME": f"{connection.settings_dict['NAME']}_bare"}
    with connection.cursor() as cursor:
        if not is_sqlite:
            cursor.execute(f'CREATE DATABASE "{settings["NAME"]}"')
        connections.settings["bare"] = settings
        call_command("migrate", database="bare", verbosity=0)
        with connections["bare"].cursor() as there:
            for event in ("insert", "update", "delete"):
                there.execute(f"DROP TRIGGER failure_count_{event}" + ("" if is_sqlite else " ON jobs_admin_failure"))
        try:
            yield "bare"
        finally:
            connections["bare"].close()
            if not is_sqlite:
                cursor.execute(f'DROP DATABASE "{settings["NAME"]}"')


if __name__ == "__main__":
    main()
