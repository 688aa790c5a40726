"""The data of other sources that people of some sources are shown: none, at every address of the URLconf, on random desks.

    python -m bench.sight --pairs 10000 [--seed 1] [--compared 0.3]

Each desk (`tests/rigs/sights.py`) has three or four sources with a word of their own in every text, merged and split groups, and
replays, views and alerts of several. 1,000 pairs of a person and an object are drawn on each: answers are searched for words
out of sight, and a part of the pages, with every answer that repeats such a word from its request, is asked again on the same
desk without the rows out of sight. Prints JSON; ends with 1, and prints the question, where an answer reveals another source.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
OF_A_DESK = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compared", type=float, default=0.3, help="share of the pages that are asked for again")
    chosen = parser.parse_args()
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

    with tempfile.TemporaryDirectory(prefix="redrive-sight-") as folder:
        engine = Engine(Path(folder) / "engine").start()
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "REDRIVE_DATA": folder,
            "SECRET_KEY": "x" * 60,
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": engine.url,
        }
        try:
            found = run(chosen.pairs, chosen.seed, chosen.compared, Path(folder))
        finally:
            engine.stop()
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["leaks"] else 0)


def run(pairs: int, seed: int, compared: float, folder: Path) -> dict[str, object]:
    import django

    django.setup()
    logging.disable(logging.CRITICAL)
    from django.conf import settings
    from django.core.management import call_command
    from django.db import transaction

    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.ALLOWED_HOSTS.append("testserver")
    settings.REDRIVE = settings.REDRIVE | {"TEST_BACKENDS": ("memory",)}
    call_command("migrate", verbosity=0)
    from tests.rigs import sights

    began, total, words = time.monotonic(), sights.Found(), set()
    for desk in range(-(-pairs // OF_A_DESK)):
        rng = random.Random(f"{seed} {desk}")
        with transaction.atomic():
            world = sights.draw(rng, settings, folder)
            found = sights.run_questions(rng, world, min(OF_A_DESK, pairs - total.requested), compared=compared)
            transaction.set_rollback(True)
        words |= set(world.words.values())
        total.requested += found.requested
        total.compared += found.compared
        total.repeating += found.repeating
        total.addresses |= found.addresses
        for status, n in found.answers.items():
            total.answers[status] = total.answers.get(status, 0) + n
        total.leaks += [f"desk {desk}: {one}" for one in found.leaks]
        print(
            f"desk {desk}: {found.requested} pairs, {len(found.leaks)} leaks", *found.leaks, sep="\n  ", file=sys.stderr
        )
    return {
        "seed": seed,
        "pairs": total.requested,
        "addresses and methods": len(total.addresses),
        "sources": len(words),
        "answers": dict(sorted(total.answers.items())),
        "compared with a desk without the others": total.compared,
        "of these repeating a word of the request": total.repeating,
        "leaks": len(total.leaks),
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    main()
