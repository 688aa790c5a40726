"""Rates of replays, and a check that paced ones never send faster: `python -m bench.replay [--jobs N] [--burn] [--memory 1000 100000]`.

A desk of its own (Valkey and SQLite, or DATABASE_URL's PostgreSQL, in a temporary folder), real messages, one sender process. The
jobs are counted where they arrive: a second process reads the length of the queue some hundred times a second. With `--burn` a
process on each core does nothing but compute meanwhile. Prints JSON. When jobs start is in `bench.replay_starts`, and what kills do in
`bench.replay_kills`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
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
    """(time, jobs in the queue) of each look, until all have come. The time is the server's own, of that very moment."""
    samples: list[tuple[float, int]] = []
    probe = redis.Redis.from_url(url).pipeline()
    offset = time.time() - time.monotonic()
    ends = time.monotonic() + deadline_s
    while (not samples or samples[-1][1] < expected) and time.monotonic() < ends:
        (seconds, micros), length = probe.time().llen("emails").execute()
        if length:
            samples.append((seconds + micros / 1e6 - offset, length))
        time.sleep(0.002)
    return samples


def most_in_a_second(samples: list[tuple[float, int]]) -> int:
    """The most that came between two looks at most a second apart: what is counted did come within one."""
    times = [at for at, _ in samples]
    return max(samples[bisect_right(times, at + 1) - 1][1] - before for at, before in [(samples[0][0], 0), *samples])


def sendings(samples: list[tuple[float, int]]) -> list[float]:
    """The times at which something had come, by the looks that found more than the one before."""
    return [samples[0][0], *(at for (_, before), (at, now) in itertools.pairwise(samples) if now > before)]


BEGIN = """
def begin(jobs, pace):
    ReplayItem.objects.all().delete(); Replay.objects.all().delete()
    Failure.objects.exclude(state="dead", run=1).update(state="dead", run=1)
    last = Failure.objects.order_by("pk").values_list("pk", flat=True)[jobs - 1]
    begun = time.monotonic()
    draft = replays.draft(ANN, query="queue:emails", pace=pace, reason="bench")
    drafted = time.monotonic()
    Replay.objects.filter(pk=draft.pk).update(scope_max_id=last); draft.refresh_from_db()
    started = time.monotonic()
    replay = replays.start(ANN, draft)
    took = time.monotonic() - started
    while replays.create_items(): pass
    return replay, drafted - begun, took
"""

# As `watch` runs it, and what it needs of the machine.
SENDER = """
import resource
def resident(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // 1024
least, most = resident(), 0
stop = clocked("send")
cpu = time.process_time()
while replays.send("sender", timezone.now()):
    most = max(most, resident())
stop()
say({"cpu_s": time.process_time() - cpu, "began_kb": least, "most_kb": most, "longest_write_ms": round(longest.get("send", 0) * 1000)})
"""


def measure(desk, url: str, jobs: int, pace: dict) -> dict:
    redis.Redis.from_url(url).flushall()
    draft_s, start_s = desk.run(f"{BEGIN}say(begin({jobs}, {pace!r})[1:])", 900)
    sender = desk.start(CLOCKED + SENDER)
    try:
        seen = watch_queue(url, jobs, 60 + 2 * jobs / pace.get("rate", 1_000))
        spent = json.loads(sender.communicate(timeout=120)[0].splitlines()[-1])
    finally:
        sender.kill()
    took = seen[-1][0] - seen[0][0]
    counts = desk.run("r = Replay.objects.get(); say([r.sent, r.planned, r.uncertain])")
    result = {
        "pace": pace,
        "jobs": jobs,
        "in_the_queue": seen[-1][1],
        "sent_planned_uncertain": counts,
        "duration_s": round(took, 2),
        "jobs_per_s": round((jobs - 1) / took, 1),
        # What the sender itself used: on a busy machine the better measure of what one can do.
        "jobs_per_cpu_s": round(jobs / spent.pop("cpu_s")),
        **spent,
        "load": os.getloadavg()[0],
        "draft_ms": round(draft_s * 1000),
        "start_ms": round(start_s * 1000),
    }
    if rate := pace.get("rate"):
        most, bound = most_in_a_second(seen), 1.05 * rate + 3
        result |= {"most_in_a_second": most, "bound": bound, "within_bound": most <= bound}
        result["longest_between_looks_ms"] = round(1000 * max(b - a for (a, _), (b, _) in itertools.pairwise(seen)))
        result["duration_off_percent"] = round(100 * (took / ((jobs - 1) / rate) - 1), 2)
    return result


def measure_pause(desk, url: str, rate: int) -> dict:
    """Paused after two seconds, for two: how soon the last job went, and the most in any second, the resumed ones too."""
    redis.Redis.from_url(url).flushall()
    jobs = 6 * rate
    desk.run(f"{BEGIN}begin({jobs}, {{'rate': {rate}}}); say(1)")
    sender = desk.start(  # until all has gone
        "while Replay.objects.filter(planned__gt=0).exists():\n    replays.send('sender', timezone.now()) or time.sleep(0.02)"
    )
    act = (
        "time.sleep(2); replay = Replay.objects.get(); replays.pause(ANN, replay); paused = time.monotonic()\n"
        "time.sleep(2); replay.refresh_from_db(); resumed = time.monotonic(); replays.resume(ANN, replay); say([paused, resumed])"
    )
    person = desk.start(act)
    try:
        seen = watch_queue(url, jobs, 120)
        paused, resumed = json.loads(person.communicate(timeout=60)[0].splitlines()[-1])
    finally:
        sender.kill()
        person.kill()
    went = sendings(seen)
    while_paused = [at - paused for at in went if paused <= at < resumed]
    most = most_in_a_second(seen)
    return {
        "rate": rate,
        "last_job_after_pause_s": round(max(while_paused, default=0.0), 3),
        "first_job_after_resume_s": round(min(at for at in went if at >= resumed) - resumed, 3),
        "most_in_a_second": most,
        "within_bound": most <= 1.05 * rate + 3,
        "load": os.getloadavg()[0],
    }


FIRSTS = """
import redis
queue = redis.Redis.from_url(URL)
def first():
    ReplayItem.objects.all().delete(); Replay.objects.all().delete()
    Failure.objects.exclude(state="dead", run=1).update(state="dead", run=1)
    queue.delete("emails")
    time.sleep(3)  # nothing has been going on for a while
    begun = time.monotonic()
    draft = replays.draft(ANN, query="queue:emails", pace={"rate": 50}, reason="bench")
    replay = replays.start(ANN, draft)
    started = time.monotonic()
    while not queue.llen("emails"): time.sleep(0.002)
    came = time.monotonic()
    replays.cancel(ANN, replay)
    while ReplayItem.objects.filter(state="planned").exists(): time.sleep(0.05)
    return round((started - begun) * 1000), round((came - started) * 1000)
say([first() for _ in range(10)])
"""


def measure_firsts(desk, url: str) -> dict:
    """Measure how long all of the desk takes to draft and start, and then until its first job is in the queue."""
    watch = subprocess.Popen(
        [sys.executable, "manage.py", "watch", "--only", "lay,send,settle"], cwd=ROOT, env=desk.environment
    )
    try:
        found = desk.run(f"URL = {url!r}\n{FIRSTS}", 300)
    finally:
        watch.terminate()
        watch.wait()
    return {
        "draft_and_start_ms": [ms for ms, _ in found],
        "first_job_after_ms": [ms for _, ms in found],
        "load": os.getloadavg()[0],
    }


PAGES = """
from django.conf import settings
settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"  # none is collected
from django.contrib.auth import get_user_model
from django.test import Client
user, _ = get_user_model().objects.get_or_create(username="bench", defaults={"is_superuser": True, "is_staff": True})
client = Client()
client.force_login(user)
def page():
    begun = time.perf_counter()
    assert client.get("/failures/", HTTP_HOST="localhost").status_code == 200
    return time.perf_counter() - begun
[page() for _ in range(5)]
took, ends = [], time.monotonic() + SECONDS
while time.monotonic() < ends:
    took.append(page())
    time.sleep(0.02)
took.sort()
say({"pages": len(took), "p50_ms": round(1000 * took[len(took) // 2], 1), "p95_ms": round(1000 * took[int(len(took) * .95)], 1)})
"""


def measure_pages(desk, url: str, jobs: int, rate: int) -> dict:
    """The list of failures alone, and beside a sender."""
    seconds = min(8, jobs // rate - 1)
    redis.Redis.from_url(url).flushall()
    desk.run(f"{BEGIN}begin({jobs}, {{'rate': {rate}}}); say(1)", 900)
    code = PAGES.replace("SECONDS", str(seconds))
    alone = desk.run(code)
    sender = desk.start("while replays.send('sender', timezone.now()): pass")
    try:
        beside = desk.run(code)
    finally:
        sender.kill()
        sender.wait()
    times = round(beside["p50_ms"] / alone["p50_ms"], 2)
    return {"rate": rate, "alone": alone, "beside_a_sender": beside, "times_p50": times, "load": os.getloadavg()[0]}


def measure_memory(desk, url: str, sizes: list[int]) -> list[dict]:
    """The memory of the sender's process, sending as fast as can be."""
    found = []
    for size in sorted(sizes):
        desk.run(f"bury({size} - Failure.objects.count()); say(1)", 3_600)
        run = measure(desk, url, size, {"style": "at_once"})
        found.append(
            {name: run[name] for name in ("jobs", "began_kb", "most_kb", "jobs_per_s", "longest_write_ms", "load")}
        )
    return found


@contextlib.contextmanager
def burners(count: int):
    """Run `count` processes that only compute."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burning:
            one.kill()
            one.wait()


CLOCKED = """
from django.db import connection, transaction
longest = {}
def clocked(step):
    # A write transaction of SQLite lasts from BEGIN to COMMIT, and others wait from when it has the lock.
    begun = [0.0]
    enter, leave = transaction.Atomic.__enter__, transaction.Atomic.__exit__
    def entered(self):
        outer = not connection.in_atomic_block
        found = enter(self)
        begun[0] = time.perf_counter() if outer else begun[0]
        return found
    def left(self, *why):
        try:
            return leave(self, *why)
        finally:
            if not connection.in_atomic_block:
                longest[step] = max(longest.get(step, 0), time.perf_counter() - begun[0])
    transaction.Atomic.__enter__, transaction.Atomic.__exit__ = entered, left
    return lambda: (setattr(transaction.Atomic, "__enter__", enter), setattr(transaction.Atomic, "__exit__", leave))
"""

WRITES = """
def again():
    ReplayItem.objects.all().delete(); Replay.objects.all().delete(); Failure.objects.update(state="dead", run=1)
    draft = replays.draft(ANN, query="queue:emails", pace={"style": "at_once"}, reason="bench")
    stop = clocked("start"); replays.start(ANN, draft); stop()
    stop = clocked("lay"); [None for _ in iter(replays.create_items, False)]; stop()
    draft.refresh_from_db()
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
    parser.add_argument("--jobs", type=int, default=100_000, help="Most jobs of a run: each lasts ten seconds or less.")
    parser.add_argument("--burn", action="store_true", help="A process on each core that only computes.")
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="Sizes at which the sender's memory is read.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in ("CELERY_BROKER_URL", "REDRIVE_REDIS_URL", "REDRIVE_SOURCES"):
        os.environ.pop(name, None)  # the worker would take its broker from there
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        os.environ["REDRIVE_DATA"] = folder
        import celery
        import django
        from django.db import connection

        django.setup()
        from bench.machine import machine
        from dashboard.setup.engine import Engine
        from tests.kit.desks import Desk

        engine = Engine(Path(folder) / "engine").start()
        try:
            desk = Desk(Path(folder), engine.url)
            desk.run(f"bury({arguments.jobs})", 3_600)
            with burners((os.cpu_count() or 1) * arguments.burn):
                runs = [
                    measure(desk, engine.url, min(10 * rate, arguments.jobs), {"rate": rate})
                    for rate in (50, 500, 5_000, 20_000)
                ]
                runs.append(measure(desk, engine.url, arguments.jobs, {"style": "at_once"}))
                pauses = [measure_pause(desk, engine.url, rate) for rate in (50, 500)]
            firsts = measure_firsts(desk, engine.url)
            pages = measure_pages(desk, engine.url, arguments.jobs, 1_000)
            writes = desk.run(CLOCKED + WRITES, 900)
            memory = measure_memory(desk, engine.url, arguments.memory)
            database = connection.vendor
        finally:
            engine.stop()
    about = {"machine": machine(), "celery": celery.__version__, "database": database, "burners": arguments.burn}
    print(
        json.dumps(
            {
                **about,
                "runs": runs,
                "pauses": pauses,
                "firsts": firsts,
                "pages": pages,
                "writes": writes,
                "memory": memory,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
