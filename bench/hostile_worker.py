"""Forged writes of a worker that has the store user and the key of its own source, and what they change of another source's.

    python -m bench.hostile_worker [--writes 1000] [--reports 1000] [--seeds 3]

For each seed: a desk with the source `shop` (failures, a replay on its way, a policy, everything that workers write), the
source `evil`, its key, and its store user with the rules of `manage.py worker-acl`. Writes are drawn from the shapes of
`tests/rigs/hostile_worker.py`, then reports on evil's own stream until as many were taken by the store; then every step of `watch`
that reads what workers write runs until nothing is left. Prints JSON; ends with 1 where a row or key of another source is not
as it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--writes", type=int, default=1_000)
    parser.add_argument("--reports", type=int, default=1_000, help="on its own stream, beside the writes")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

    found = []
    for seed in range(1, chosen.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="redrive-hostile-") as folder:
            engine = Engine(Path(folder) / "engine").start()
            base = engine.url.removesuffix("/0")
            (Path(folder) / "sources.toml").write_text(
                f'[sources.shop]\nbackend = "celery"\nurl = "{base}/1"\n[sources.evil]\nbackend = "celery"\nurl = "{base}/2"\n'
            )
            environment = {
                "DJANGO_SETTINGS_MODULE": "dashboard.settings",
                "REDRIVE_DATA": folder,
                "SECRET_KEY": "x" * 60,
                "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
                "REDRIVE_REDIS_URL": engine.url,
                "REDRIVE_SOURCES": f"{folder}/sources.toml",
            }
            pid = os.fork()  # a desk is one process's
            if pid == 0:
                os.environ |= environment
                (Path(folder) / "found.json").write_text(
                    json.dumps(run(engine.url, chosen.writes, chosen.reports, seed))
                )
                os._exit(0)
            try:
                _, status = os.waitpid(pid, 0)
            finally:
                engine.stop()
            if status:
                sys.exit(f"seed {seed}: the desk ended ({status})")
            found.append(json.loads((Path(folder) / "found.json").read_text()))
    print(json.dumps(found, indent=1))
    sys.exit(1 if any(one["changed of another source"] for one in found) else 0)


def run(url: str, writes: int, reports: int, seed: int) -> dict[str, object]:
    import django
    import redis

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    logging.disable(logging.CRITICAL)
    from jobs_admin.models import Failure, Unfiled
    from tests.rigs.hostile_worker import EVIL, Victim, connect, differences, forgeries, make_user

    began = time.monotonic()
    store = redis.Redis.from_url(url)
    make_user(store)
    victim = Victim(store, redis.Redis.from_url(f"{url.removesuffix('/0')}/1"))
    before, rng = victim.snapshot(), random.Random(seed)
    drawn, refused, stored = Counter(), Counter(), 0
    with connect(url) as evil:
        for name, forge in itertools.islice(forgeries(rng, victim), writes):
            drawn[name] += 1
            try:
                forge(evil)
            except redis.RedisError:
                refused[name] += 1
        for n, (_, forge) in enumerate(forgeries(rng, victim, "report")):
            if stored == reports:
                break
            with suppress(redis.RedisError):
                forge(evil)
                stored += 1
            if n % 500 == 0:
                victim.desk_reads_all()
    victim.desk_reads_all()
    victim.desk_reads_all()
    return {
        "seed": seed,
        "writes": dict(drawn),
        "refused by the store": sum(refused.values()),
        "reports beside": stored,
        "kept raw": Unfiled.objects.count(),
        "failures of its own source": Failure.objects.filter(source=EVIL).count(),
        "rows and keys compared": sum(len(one) if isinstance(one, list) else 1 for one in before.values()),
        "changed of another source": differences(before, victim.snapshot()),
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()
