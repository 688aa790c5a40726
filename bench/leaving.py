"""The guard is taken out of all workers while 20,000 delayed retries wait: what becomes of them.

    python -m bench.leaving [--retries 20000] [--per-second 500] [--how drain,now,to_dead,undrained] [--broker redis|rabbitmq]

A private broker and store (Valkey with append-only files, or a private RabbitMQ), a desk on SQLite with a real `watch` (ingest,
reconcile, promote, sample). The jobs fail once in guarded prefork workers under a policy whose retry is due in an hour, and wait. For
*drain* and *undrained* the due times are then set so that `--per-second` are due a second, beginning in a moment. Then the guard goes:

*drain*: `manage.py drain` while the guarded workers live (the documented way); when it says so, they are stopped, and workers that never
heard of us are started. *now*: all workers are stopped, then `drain --now`. *to_dead*: the same with `--to-dead`. *undrained*: no one asks
anything: guarded workers are stopped, others started, and `watch` promotes what is due; it is stopped for a while, and killed by SIGKILL
in the middle of it, with all its steps.

Each second attempt writes a line. *lost*: jobs without one, none; *ran_twice*; *early*: begun before their time (but for `now`);
*wrong_attempt*: the worker without a guard read another number of retries in Celery's own header; *displaced*: by how many places a job ran
before or after those that were due before it (workers fetch some at a time). Prints JSON; exits 1 where something was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench.machine import machine, versions
from tests.rigs.leaving import HOWS, measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retries", type=int, default=20_000)
    parser.add_argument("--per-second", type=int, default=500)
    parser.add_argument("--how", default=",".join(HOWS))
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in [name for name in os.environ if name.startswith(("REDRIVE_", "CELERY_"))]:
        os.environ.pop(name)
    with tempfile.TemporaryDirectory(prefix="redrive-leaving-") as folder:
        tempfile.tempdir = folder  # the workers' own folders too
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings", "REDRIVE_DATA": folder, "SECRET_KEY": "bench-only-" + "x" * 40,
        }  # fmt: skip
        import django

        django.setup()
        runs = []
        for how in wanted.how.split(","):
            own = Path(folder, how)
            own.mkdir()
            runs.append(measure(own, how, wanted.retries, wanted.per_second, wanted.broker))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    json.dump(
        {"machine": machine(), "versions": versions(), "broker": wanted.broker, "ways": runs}, sys.stdout, indent=2
    )
    print()
    sys.exit(any(run["lost"] or run["strangers"] or run["wrong_attempt"] for run in runs))


if __name__ == "__main__":
    main()
