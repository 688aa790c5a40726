"""Prune a filled desk while something else writes to it: how long it takes, and how long the others wait.

    python bench/fill.py --failures 100000 --url sqlite:////tmp/desk.sqlite3
    python bench/retention.py --url sqlite:////tmp/desk.sqlite3 --older-than 15d

Half of the dead failures are made recovered first, as on a desk that is used. Prints figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")


def neighbour(url: str, ends, waits) -> None:
    """Another writer: one small transaction after the other, and how long each took."""
    os.environ["DATABASE_URL"] = url
    import django

    django.setup()
    from django.db import transaction

    from jobs_admin.models import Release

    took = []
    while not ends.is_set():
        began = time.monotonic()
        with transaction.atomic():
            Release.objects.update_or_create(source="bench", version="1", defaults={"at": "2026-11-21T00:00:00Z"})
        took.append(time.monotonic() - began)
        time.sleep(0.005)
    waits.put(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--older-than", default="15d")
    wanted = parser.parse_args()
    os.environ["DATABASE_URL"] = wanted.url
    os.environ.setdefault("SECRET_KEY", "bench")
    context = get_context("spawn")
    ends, waits = context.Event(), context.Queue()

    import django

    django.setup()
    from django.db import connection
    from django.db.models import F, Sum
    from django.utils import timezone

    from jobs_admin import config
    from jobs_admin.desk import retention
    from jobs_admin.models import Failure, FailureCount

    Failure.objects.annotate(odd=F("id") % 2).filter(odd=1, state="dead").update(state="recovered")
    age: timedelta = config.length(wanted.older_than, "--older-than")
    before, (weight, in_use) = Failure.objects.count(), retention.weigh()
    writer = context.Process(target=neighbour, args=(wanted.url, ends, waits))
    writer.start()
    time.sleep(2)
    now, began = timezone.now(), time.monotonic()
    would = retention.prune(now, older_than=age, dry_run=True)
    looked_s, began = time.monotonic() - began, time.monotonic()
    pruned = retention.prune(now, older_than=age)
    took = time.monotonic() - began
    ends.set()
    took_others = sorted(waits.get())
    writer.join()
    left = Failure.objects.count()
    assert would.failures == pruned.failures, (would, pruned)
    assert FailureCount.objects.aggregate(n=Sum("count"))["n"] == left == before - pruned.count
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "database": connection.vendor,
        "failures_before": before,
        "failures_pruned": pruned.count,
        "rows": dict(pruned.rows),
        "seconds": round(took, 1),
        "failures_per_second": round(pruned.count / took),
        "dry_run_seconds": round(looked_s, 2),
        "longest_transaction_ms": round(pruned.longest_s * 1000),
        "neighbour_p50_ms": round(took_others[len(took_others) // 2] * 1000, 1),
        "neighbour_p99_ms": round(took_others[len(took_others) * 99 // 100] * 1000, 1),
        "neighbour_longest_ms": round(took_others[-1] * 1000),
        "bytes_a_failure": round(weight),
        "bytes_in_use_before": in_use,
        "bytes_in_use_after": retention.weigh()[1],
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
