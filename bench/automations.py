"""Automations: `python -m bench.automations [--histories N] [--kills K]`.

Histories: jobs die in outages, and an automation replays them; the dry run of each history is compared with what the live run
did in it. Kills: a desk with a real Celery worker whose `watch` is killed by SIGKILL around the moments at which the automation
acts, while the partner of its jobs flaps; every job that ran is counted by the lines that the tasks write. Prints JSON.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=360, help="of ten seconds, in each history")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    for name in ("CELERY_BROKER_URL", "REDRIVE_REDIS_URL", "REDRIVE_SOURCES"):
        os.environ.pop(name, None)
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    with tempfile.TemporaryDirectory(prefix="redrive-automations-") as name:
        folder = Path(name)
        found = {"histories": run_histories(folder, arguments.histories, arguments.rounds, arguments.seed)}
        if arguments.kills:
            from tests.rigs.automation_kills import AutomationHavoc

            (folder / "kills").mkdir()
            with AutomationHavoc(folder / "kills", 0, None, 30, arguments.seed) as havoc:
                found["kills"] = havoc.run_automation(arguments.kills)
    from bench.machine import machine

    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0], **found}, indent=1))


def run_histories(folder: Path, count: int, rounds: int, seed: int) -> dict:
    """Return how many of the histories differ, and how much was done in all."""
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

    engine = Engine(folder / "engine").start()
    sources = folder / "sources.toml"
    sources.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    os.environ |= {
        "REDRIVE_DATA": str(folder), "DATABASE_URL": f"sqlite:///{folder}/histories.sqlite3", "REDRIVE_REDIS_URL": engine.url,
        "REDRIVE_SOURCES": str(sources), "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
    }  # fmt: skip
    import django

    django.setup()
    from django.conf import settings

    from tests.histories.automations import play_both
    from tests.kit import migrated

    migrated.into(folder, "histories.sqlite3")
    settings.REDRIVE = settings.REDRIVE | {"TEST_BACKENDS": ("memory",)}
    began, differing, acts, jobs = time.monotonic(), [], 0, 0
    try:
        for n in range(seed, seed + count):
            would, did = play_both(n, rounds)
            acts, jobs = acts + len(did), jobs + sum(len(names) for _, names in did)
            if would != did:
                differing.append(n)
                print(f"seed {n}: {would} != {did}", file=sys.stderr)
    finally:
        engine.stop()
    took_s = round(time.monotonic() - began)
    return {"count": count, "rounds": rounds, "differing": differing, "acts": acts, "jobs": jobs, "took_s": took_s}


if __name__ == "__main__":
    main()
