"""Fill a desk with failures: a million in minutes.

    python bench/fill.py --failures 1000000 [--url sqlite:////tmp/desk.sqlite3 | postgresql://…] [--seed 1]

The reports of `shop.py`, spread over the last 30 days, read and filed by the functions that ingest calls, only without
the stream between them: what stands in the tables is what ingest would have written. Uses the desk that the environment
(or `up`) names, and makes its tables where there are none. At the end counts what it wrote again, and fails where a
counter does not equal the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class _Part:
    """Some failures that follow each other in time."""

    count: int
    since: float
    until: float
    now: float
    seed: str
    source: str
    with_arguments: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=10_000)
    parser.add_argument("--url", default="", help="the database, instead of the one that the environment names")
    parser.add_argument("--hours", type=float, default=30 * 24, help="spread over so many hours before now")
    parser.add_argument("--source", default="shop")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed writes the same jobs")
    parser.add_argument(
        "--with-arguments", action="store_true", help="raw messages with their arguments, as large as real ones"
    )
    wanted = parser.parse_args()
    if wanted.url:
        os.environ["DATABASE_URL"] = wanted.url

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    began = time.monotonic()
    written = fill(wanted)
    took = time.monotonic() - began
    wrong = miscounted()
    figures = {
        "failures": written,
        "seconds": round(took, 1),
        "per_second": round(written / took),
        "database_mb": megabytes(),
        "miscounted": wrong,
    }
    print(json.dumps(figures))
    if wrong:
        raise SystemExit(1)


def fill(wanted: argparse.Namespace) -> int:
    """Answers how many failures were written."""
    from django.db import connection, connections, transaction

    from jobs_admin.db import grouping_rules
    from jobs_admin.ingest import filing

    rules = grouping_rules.current()
    connections.close_all()  # before the fork
    written = 0
    # The second process makes and reads the next reports while this one writes.
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as maker:
        ready = deque[tuple[_Part, object]]()
        parts = _parts(wanted)
        ready.extend((part, maker.submit(build_reports, part, rules)) for part in itertools.islice(parts, 4))
        with _quick(connection):
            while ready:
                part, coming = ready.popleft()
                reports = coming.result()
                ready.extend((later, maker.submit(build_reports, later, rules)) for later in itertools.islice(parts, 1))
                with transaction.atomic():
                    written += filing.write(reports, datetime.fromtimestamp(part.until, UTC)).failures
    return written


def _parts(wanted: argparse.Namespace) -> Iterator[_Part]:
    now = time.time()
    began, each = now - wanted.hours * 3600, wanted.hours * 3600 / wanted.failures
    for start in range(0, wanted.failures, _AT_ONCE):
        count = min(_AT_ONCE, wanted.failures - start)
        since = began + start * each
        seed = f"{wanted.seed} {start}"
        yield _Part(count, since, since + count * each, now, seed, wanted.source, wanted.with_arguments)


def build_reports(part: _Part, rules: object) -> list[object]:
    """The reports of a part, read as ingest reads them from the stream."""
    import shop

    from jobs_admin import config
    from jobs_admin.core.envelope import encode
    from jobs_admin.ingest.report import parse_report

    seal = config.payload_keys().encrypt
    until = datetime.fromtimestamp(part.until, UTC)
    envelopes = shop.reports(
        part.count,
        source=part.source,
        since=part.since,
        until=part.until,
        now=part.now,
        seed=part.seed,
        with_arguments=part.with_arguments,
    )
    reports = []
    for n, envelope in enumerate(envelopes):
        reports.append(parse_report(b"%d-0" % n, encode(envelope), until, seal, rules, _stacks))
        _stacks.add(reports[-1].stack_sha256)
    return reports


_stacks: set[str] = set()  # that were made


@contextlib.contextmanager
def _quick(connection) -> Iterator[None]:
    """Nothing waits for the disk meanwhile; at the end all is in the database file, as planners and pages find it."""
    is_sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF" if is_sqlite else "SET synchronous_commit = off")
        yield
        if is_sqlite:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.execute("PRAGMA synchronous=NORMAL")
        else:
            cursor.execute("VACUUM ANALYZE")  # autovacuum would have come by


def miscounted() -> list[str]:
    """The counters that do not equal what they count, and indexes that hold more or less than there is."""
    from django.db import connection
    from django.db.models import Count, Q, Sum
    from django.db.models.functions import Coalesce

    from jobs_admin.models import Attempt, Failure, FailureCount, Group, GroupCounter, QueueCounter, Traceback, terms
    from jobs_admin.models.counter import STEPS_OF_GROUPS, STEPS_OF_QUEUES

    wrong = []
    key = ("source", "queue", "task", "of_group", "state")
    rows = Failure.objects.annotate(of_group=Coalesce("group_id", 0)).values_list(*key).annotate(n=Count("id"))
    counts = FailureCount.objects.exclude(count=0).values_list("source", "queue", "task", "group_id", "state", "count")
    if set(rows) != set(counts):
        wrong.append("failures by state")
    retried = Q(kind="retry")
    ended = Attempt.objects.exclude(kind="success").values_list("group_id")
    of_groups = set(ended.annotate(failed=Count("id", filter=~retried), retried=Count("id", filter=retried)))
    for step in STEPS_OF_GROUPS:
        stored = GroupCounter.objects.filter(step=step).values_list("group_id")
        if set(stored.annotate(n=Sum("failed"), m=Sum("retried"))) != of_groups:
            wrong.append(f"groups by {step} s")
    if set(Group.objects.values_list("id", "count")) != {(group, n + m) for group, n, m in of_groups}:
        wrong.append("groups")
    by_queue = Attempt.objects.values_list("failure__source", "failure__queue")
    well = Q(kind="success")
    kinds = {
        "failed": Count("id", filter=~retried & ~well),
        "retried": Count("id", filter=retried),
        "recovered": Count("id", filter=well),
    }
    of_queues = set(by_queue.annotate(**kinds))
    for step in STEPS_OF_QUEUES:
        stored = QueueCounter.objects.filter(step=step).values_list("source", "queue")
        if set(stored.annotate(Sum("failed"), Sum("retried"), Sum("recovered"))) != of_queues:
            wrong.append(f"queues by {step} s")
    for table, model in ((terms.FAILURES, Failure), (terms.STACKS, Traceback)):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {table}")
            if cursor.fetchone()[0] != model.objects.count():
                wrong.append(table)
    return wrong


def megabytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        else:
            cursor.execute("SELECT pg_database_size(current_database())")
        return round(cursor.fetchone()[0] / 1e6)


if __name__ == "__main__":
    main()
