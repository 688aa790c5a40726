"""Cost of a job's Sentry event and trace: in a worker's child with the real SDK and without it, and where it is filed.

    python -m bench.links [--times 200000]

The child's part runs in an environment of tests/workers (celery-5.7), with Celery's own signals. Prints microseconds
for each job: the fastest of five rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from jobs_admin.core.trace_context import find_trace
from tests.workers.environments import Environments

CHILD = """
import sys, time
from types import SimpleNamespace
from celery import signals
with_sdk, times = sys.argv[1] == "sdk", int(sys.argv[2])
if with_sdk:
    import sentry_sdk
    sentry_sdk.init()
from jobs_admin.worker.sentry import begin_job, keep_event
class Task: request = SimpleNamespace()
task = Task()
def cost(send):
    rounds = []
    for _ in range(5):
        begins = time.perf_counter()
        for _ in range(times):
            send()
        rounds.append((time.perf_counter() - begins) / times * 1e6)
    return min(rounds)
info, error = SimpleNamespace(), ValueError()
sends = [lambda: signals.task_prerun.send(sender=task, task_id="j", task=task, args=(), kwargs={}),
         lambda: signals.task_failure.send(sender=task, task_id="j", exception=error, einfo=info)]
before = [cost(send) for send in sends]
signals.task_prerun.connect(begin_job, weak=False)
signals.task_failure.connect(keep_event, weak=False)
print(*(round(cost(send) - was, 2) for send, was in zip(sends, before)))
"""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=200_000)
    times = parser.parse_args().times
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Environments(Path(folder), ["celery-5.7"])["celery-5.7"]
        for what in ("no", "sdk"):
            command = [home.python, "-c", CHILD, what, str(times)]
            done = subprocess.run(command, cwd=home.folder, capture_output=True, text=True, check=True)
            begins, fails = map(float, done.stdout.split())
            found |= {f"child, a job begins, {what} sentry-sdk": begins, f"child, it fails, {what} sentry-sdk": fails}
    headers = {f"header{n}": "a" * 40 for n in range(20)} | {"traceparent": PARENT}
    for name, text in (
        ("with a trace", json.dumps(headers)),
        ("without one", json.dumps(headers).replace("trace", "")),
    ):
        rounds = []
        for _ in range(5):
            begins = time.perf_counter()
            for _ in range(times // 10):
                find_trace(text)
            rounds.append((time.perf_counter() - begins) / (times // 10) * 1e6)
        found[f"ingest, 1 kB of headers {name}"] = round(min(rounds), 2)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
