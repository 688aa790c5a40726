"""Workers killed at random while jobs fail: which failures are missing on the desk, and what stock Celery loses in the same rig.

    python -m bench.capture_kills [--jobs 40000] [--kills 60] [--seed 1] [--how late,…] [--broker redis|rabbitmq]

A private broker and store (Valkey with append-only files; or a private RabbitMQ), two prefork workers of four children under a
supervisor, a desk on SQLite with a real `watch` (ingest, reconcile, promote, sample). One job in ten fails: half of these for
good, half twice under a policy with three attempts. Each writes start and about-to-raise lines synchronously to a file of its
process (`tests/rigs/journal_jobs.py`). Kills are planned by the seed (`kill_rig.py`): the whole worker, its main process alone, or a
or a child; at every fifth the store hangs for a moment, so that reports are on their way to or from the spool. The visibility timeout is
five seconds, so that jobs of dead workers come back within the run. What is compared with what: `tests/rigs/kill_history.py`.

What must hold of `late`: *missing*, *vanished*, *invented*, *begun_again_unflagged*, *wrong_states* and *wrong_counters* are empty, but
for jobs that kombu lost between BRPOP and its own note (`lost_by_kombu`: seen in the broker's MONITOR; with and without a guard), of
which a job that came back may be one. `early` is counted: a job that was acknowledged before it ran dies with its worker's main
process, and only the start ledger can report it (`early_ledger`: under policies with `file_lost`). `stock_late`, `stock_early`: the
same kills without a guard; what *vanished* there began, and its end will never be known. Exits 1 where `late` has something
that must not be; the same seed makes the same kills. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench.machine import machine, versions
from tests.rigs.capture_kills import rigs, trouble

HOWS = ("late", "early", "early_ledger", "stock_late", "stock_early")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--how", default=",".join(HOWS))
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--keep", type=Path, help="a folder for what was written, to look into")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in [name for name in os.environ if name.startswith(("REDRIVE_", "CELERY_"))]:
        os.environ.pop(name)
    with contextlib.ExitStack() as stack:
        folder = wanted.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-kills-")))
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings", "REDRIVE_DATA": str(folder), "SECRET_KEY": "bench-only-" + "x" * 40,
        }  # fmt: skip
        import django

        django.setup()
        make = stack.enter_context(rigs(folder, wanted.broker))
        runs = []
        for how in wanted.how.split(","):
            runs.append(make(name=how, jobs=wanted.jobs, kills=wanted.kills, seed=wanted.seed).run(how))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    wrong = {run["how"]: trouble(run) for run in runs if run["how"] == "late" and trouble(run)}
    json.dump(
        {"machine": machine(), "versions": versions(), "broker": wanted.broker, "runs": runs, "wrong": wrong},
        sys.stdout,
        indent=2,
    )
    print()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
