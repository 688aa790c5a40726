"""The times at which the jobs of a replay really start: `python -m bench.replay_starts [--seconds N]`.

A real, guarded Celery worker on a desk of its own. What is counted are lines that the tasks write to a file when they start and end, not
what we sent. Paced at 50 and 500 jobs/s; and five at once per customer with one large customer among many. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from bisect import bisect_left
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

from tests.rigs.replay_starts import Starts, most_at_once  # noqa: E402

# Others' jobs are spread among those of the large customer, who has more than all of them.
_TENANT = "lambda n: 'cobalt' if n % 5 < 3 else f'c{n % 40}'"


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
