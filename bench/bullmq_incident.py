"""45,000 failed BullMQ jobs, for real: `python -m bench.bullmq_incident [--jobs 45000] [--keep figures.json]`.

A real Node worker fails them, each three times. Then (a) a desk that knows nothing is started: how long until all are in its index.
For some minutes other jobs of the same queue succeed, 300 a second: by BullMQ's events the desk sees what the queue manages.
(b) The dead are replayed *Careful* to a real Node worker, whose jobs call a customer's service that has just come back: it carries
20 requests/s, a minute later 300, refuses what is more, and falls over for 20 s where more than 1.3 times as much comes within 2 s.
(c) What the worker wrote down, job by job, is held against BullMQ's counts and the desk's. (d) The same jobs, in a copy of the queue,
are brought back as dashboards do: `queue.retryJobs()`, and Bull Board's `job.retry()` of all at once. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

from tests.rigs.bullmq_incident import Incident  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--jobs", type=int, default=45_000)
    options.add_argument("--minutes", type=int, default=4, help="that the queue runs well before the replay")
    options.add_argument("--keep", type=Path, help="a file for the figures")
    options.add_argument("--skip", action="append", default=[], choices=["desk", "replay", "retryJobs", "retryEach"])
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-bullmq-") as folder:
        tempfile.tempdir = folder
        os.environ["REDRIVE_DATA"] = folder
        import django

        django.setup()
        from bench.machine import machine

        figures: dict[str, Any] = {"machine": machine(), "jobs": chosen.jobs}
        with Incident(Path(folder), chosen.jobs) as incident:
            figures["made"] = incident.make()
            for number, do in ((2, "retryJobs"), (3, "retryEach")):
                if do not in chosen.skip:
                    figures[do] = incident.retried(do, number)
            if "desk" not in chosen.skip:
                figures["index"] = {**incident.indexed(), "load": round(os.getloadavg()[0], 1)}
                if "replay" not in chosen.skip:
                    figures["before"] = incident.flowed(chosen.minutes * 60)
                    figures["careful"] = incident.replayed({"style": "careful"})
        figures["took_s"] = round(time.monotonic() - began)
    if chosen.keep:
        chosen.keep.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
