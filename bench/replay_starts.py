"""When the jobs of a replay really start: `python -m bench.replay_starts [--seconds N]`.

A real, guarded Celery worker on a desk of its own. What is counted are lines that the tasks write to a file when they start and end, not
what we sent. Paced at 50 and 500 jobs/s; and five at once per customer with one large customer among many. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

_ENDED = """
r = Replay.objects.get()
say(r.planned + r.sent + r.running)
"""
_BEGIN = """
replay = replays.start(ANN, replays.draft(ANN, query="queue:emails", pace={pace!r}, reason="bench"))
say(replay.total)
"""
# Others' jobs are spread among those of the large customer, who has more than all of them.
_TENANT = "lambda n: 'cobalt' if n % 5 < 3 else f'c{n % 40}'"


class Starts:
    """A desk, its `watch` and a worker, for one replay."""

    def __init__(self, folder: Path, broker_url: str, *, concurrency: int, pool: str) -> None:
        from tests.kit.celery import RealWorker
        from tests.kit.desks import Desk

        folder.mkdir()
        self.folder = folder
        self.desk = Desk(folder, broker_url)
        self.desk.environment["REDRIVE_DATA"] = str(folder)
        self.worker = RealWorker(broker_url, broker_url, pool=pool, concurrency=concurrency, queues="emails")
        self.watch: subprocess.Popen[bytes] | None = None

    def run(
        self, jobs: int, pace: dict, *, seconds: float = 0.0, tenant: str = "lambda n: ''", deadline_s: float = 120
    ) -> list[list[str]]:
        """The tasks' own lines, once all jobs have ended."""
        key = tenant.partition(":")[2]
        self.desk.run(f"bury({jobs}, 'noted', lambda n: [n, {seconds},{key}], {tenant})", 300)
        self.worker.start()
        self.desk.run(_BEGIN.format(pace=pace))
        with (self.folder / "watch.log").open("ab") as log:
            self.watch = subprocess.Popen(
                [sys.executable, "manage.py", "watch", "--only", "ingest,settle,lay,send"],
                cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        ends = time.monotonic() + deadline_s
        while self.desk.run(_ENDED):
            assert time.monotonic() < ends, f"{self.desk.run(_ENDED)} jobs have not ended\n{self.worker.text()[-2000:]}"
            time.sleep(0.3)
        return [line.split() for line in self.worker.marks("noted")]

    def stop(self) -> None:
        self.worker.stop()
        if self.watch:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.watch.pid, signal.SIGKILL)
            self.watch.wait()


def most_at_once(lines: list[list[str]]) -> dict[str, int]:
    """Customer -> the most of its jobs that ran at the same moment."""
    # At the same moment an end counts before a start.
    moments = sorted((float(at), what == "start", key) for what, at, _, key, _ in lines)
    now, most = Counter(), Counter()
    for _, starts, key in moments:
        now[key] += 1 if starts else -1
        most[key] = max(most[key], now[key])
    return dict(most)


def most_in_a_second(times: list[float]) -> int:
    return max(bisect_left(times, at + 1) - i for i, at in enumerate(times))


def paced(folder: Path, url: str, rate: int, seconds: int) -> dict:
    starts = Starts(folder, url, concurrency=4, pool="prefork")
    try:
        lines = starts.run(rate * seconds, {"style": "steady", "rate": rate})
    finally:
        starts.stop()
    times = sorted(float(at) for what, at, *_ in lines if what == "start")
    took = times[-1] - times[0]
    return {
        "rate": rate,
        "started": len(times),
        "most_in_a_second": most_in_a_second(times),
        "bound": 1.05 * rate + 3,
        "duration_s": round(took, 2),
        "duration_off_percent": round(100 * (took / ((len(times) - 1) / rate) - 1), 2),
        "load": os.getloadavg()[0],
    }


def by_customer(folder: Path, url: str, jobs: int, limit: int) -> dict:
    starts = Starts(folder, url, concurrency=20, pool="threads")
    pace = {"style": "at_once", "per_key": {"key": "tenant", "concurrency": limit}}
    try:
        lines = starts.run(jobs, pace, seconds=0.05, tenant=_TENANT)
    finally:
        starts.stop()
    most = most_at_once(lines)
    ends = {key: max(float(at) for what, at, _, k, _ in lines if k == key) for key in most}
    begun = min(float(at) for _, at, *_ in lines)
    return {
        "jobs": len(lines) // 2,
        "limit": limit,
        "customers": len(most),
        "most_at_once_of_one_customer": max(most.values()),
        "most_at_once_of_all": most_at_once([[w, at, n, "all", a] for w, at, n, _, a in lines])["all"],
        "large_customer_s": round(ends["cobalt"] - begun, 2),
        "last_of_the_others_s": round(max(at for key, at in ends.items() if key != "cobalt") - begun, 2),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    from bench.machine import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="How long each pace is held.")
    parser.add_argument("--jobs", type=int, default=2_000, help="Jobs of the run by customer.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in ("CELERY_BROKER_URL", "REDRIVE_REDIS_URL", "REDRIVE_SOURCES"):
        os.environ.pop(name, None)  # the worker would take its broker from there
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    with tempfile.TemporaryDirectory(prefix="redrive-starts-") as folder:
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        from dashboard.setup.engine import Engine

        engine = Engine(Path(folder) / "engine").start()
        broker = engine.url.removesuffix("/0")
        try:
            runs = [
                paced(Path(folder) / str(rate), f"{broker}/{n}", rate, arguments.seconds)
                for n, rate in ((1, 50), (2, 500))
            ]
            customers = by_customer(Path(folder) / "customers", f"{broker}/3", arguments.jobs, 5)
        finally:
            engine.stop()
    print(json.dumps({"machine": machine(), "paced": runs, "by_customer": customers}, indent=1))


if __name__ == "__main__":
    main()
