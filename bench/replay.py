"""How fast replays send, and that paced ones never send faster: `python -m bench.replay [--jobs N]`.

A desk of its own (Valkey and SQLite, or DATABASE_URL's PostgreSQL, in a temporary folder), real messages, one sender process. The
jobs are counted where they arrive: a second process reads the length of the queue some thousand times a second. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)


def watch_queue(url: str, expected: int, deadline_s: float) -> list[tuple[float, int]]:
    """(time, jobs in the queue) whenever the number grew, until all have come."""
    client, seen, last = redis.Redis.from_url(url), [], 0
    ends = time.monotonic() + deadline_s
    while last < expected and time.monotonic() < ends:
        length, now = client.llen("emails"), time.monotonic()
        if length > last:
            seen.append((now, length))
            last = length
        time.sleep(0.0003)
    return seen


def most_in_a_second(seen: list[tuple[float, int]]) -> int:
    times = [at for at, _ in seen]
    most = 0
    for i, (start, _) in enumerate(seen):
        before = seen[i - 1][1] if i else 0
        most = max(most, seen[bisect_right(times, start + 1) - 1][1] - before)
    return most


def measure(desk, url: str, jobs: int, pace: dict) -> dict:
    from tests.jobs_admin.replays.desk import SENDER

    redis.Redis.from_url(url).flushall()
    begin = (
        "ReplayItem.objects.all().delete(); Replay.objects.all().delete(); Failure.objects.update(state='dead', run=1)\n"
        f"ids = list(Failure.objects.order_by('pk').values_list('pk', flat=True)[:{jobs}])\n"
        "begun = time.monotonic()\n"
        f"draft = replays.draft(ANN, query='queue:emails', pace={pace!r}, reason='bench')\n"
        "drafted = time.monotonic()\n"
        f"Replay.objects.filter(pk=draft.pk).update(scope_max_id=ids[-1]); draft.refresh_from_db()\n"
        "started = time.monotonic()\n"
        "replays.start(ANN, draft)\n"
        "say([drafted - begun, time.monotonic() - started])\n"
    )
    draft_s, start_s = desk.run(begin)
    sender = desk.start(f"cpu = time.process_time()\n{SENDER}\nsay(time.process_time() - cpu)")
    try:
        seen = watch_queue(url, jobs, 120)
        cpu_s = float(sender.communicate(timeout=60)[0].split()[-1])
    finally:
        sender.kill()
    took = seen[-1][0] - seen[0][0]
    told = desk.run("r = Replay.objects.get(); say([r.sent, r.planned, r.uncertain])")
    result = {
        "pace": pace,
        "jobs": jobs,
        "in_the_queue": seen[-1][1],
        "sent_planned_uncertain": told,
        "duration_s": round(took, 2),
        "jobs_per_s": round((jobs - 1) / took, 1),
        # What the sender itself used: on a busy machine the better measure of what one can do.
        "jobs_per_cpu_s": round(jobs / cpu_s),
        "load": os.getloadavg()[0],
        "draft_ms": round(draft_s * 1000),
        "start_ms": round(start_s * 1000),
    }
    if rate := pace.get("rate"):
        most, bound = most_in_a_second(seen), 1.05 * rate + 3
        result |= {"most_in_a_second": most, "bound": bound, "within_bound": most <= bound}
        result["duration_off_percent"] = round(100 * (took / ((jobs - 1) / rate) - 1), 2)
    return result


WRITES = """
from django.db import connection, transaction
longest = {}
def clocked(step):
    # A write transaction of SQLite lasts from BEGIN to COMMIT.
    begun = [0.0]
    enter, leave = transaction.Atomic.__enter__, transaction.Atomic.__exit__
    def entered(self):
        begun[0] = time.perf_counter() if not connection.in_atomic_block else begun[0]
        return enter(self)
    def left(self, *why):
        try:
            return leave(self, *why)
        finally:
            if not connection.in_atomic_block:
                longest[step] = max(longest.get(step, 0), time.perf_counter() - begun[0])
    transaction.Atomic.__enter__, transaction.Atomic.__exit__ = entered, left
    return lambda: (setattr(transaction.Atomic, "__enter__", enter), setattr(transaction.Atomic, "__exit__", leave))
def again():
    ReplayItem.objects.all().delete(); Replay.objects.all().delete(); Failure.objects.update(state="dead", run=1)
    draft = replays.draft(ANN, query="queue:emails", pace={"style": "at_once"}, reason="bench")
    stop = clocked("start"); replays.start(ANN, draft); stop()
    stop = clocked("lay"); [None for _ in iter(replays.lay, False)]; stop()
    return draft
replay = again()
stop = clocked("cancel"); begun = time.perf_counter(); replays.cancel(ANN, replay); cancel_s = time.perf_counter() - begun; stop()
replay = again()
now = timezone.now()
ReplayItem.objects.update(state="sent", sent_at=now)
Replay.objects.filter(pk=replay.pk).update(planned=0, sent=replay.items.count())
Attempt.objects.bulk_create([Attempt(failure_id=pk, run=2, attempt=1, kind="success", ended_at=now, received_at=now)
    for pk in replay.items.values_list("failure", flat=True)], batch_size=1000)
stop = clocked("settle"); begun = time.perf_counter()
while replays.settle(): pass
settle_s = time.perf_counter() - begun; stop()
replay.refresh_from_db()
assert replay.succeeded == replay.total, replay.succeeded
say({"items": replay.total, "cancel_s": round(cancel_s, 2), "settle_s": round(settle_s, 2),
     "longest_write_ms": {step: round(s * 1000) for step, s in longest.items()}, "load": os.getloadavg()[0]})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="Jobs of the unpaced run and at the highest rate.")
    arguments = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        os.environ["REDRIVE_DATA"] = folder
        import celery
        import django
        from django.db import connection

        django.setup()
        from dashboard.engine import Engine
        from tests.jobs_admin.replays.desk import Desk

        engine = Engine(Path(folder) / "engine").start()
        try:
            desk = Desk(Path(folder), engine.url)
            desk.run(f"bury({arguments.jobs})")
            runs = [
                measure(desk, engine.url, min(n, arguments.jobs), pace)
                for n, pace in (
                    (500, {"rate": 50}),
                    (5_000, {"rate": 500}),
                    (arguments.jobs, {"rate": 5_000}),
                    (arguments.jobs, {"style": "at_once"}),
                )
            ]
            writes = desk.run(WRITES)
            database = connection.vendor
        finally:
            engine.stop()
    print(
        json.dumps(
            {"machine": machine(), "celery": celery.__version__, "database": database, "runs": runs, "writes": writes},
            indent=1,
        )
    )


def machine() -> dict:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {"cores": os.cpu_count(), "python": platform.python_version(), "commit": commit.stdout.strip()}


if __name__ == "__main__":
    main()
