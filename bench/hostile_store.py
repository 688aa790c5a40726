"""Shapes that nobody should write, under every key of the store that the desk reads and in every field of a report.

    python -m bench.hostile_store --shapes 100000 [--seed 1] [--only workers options]

Each shape is read by every function that reads its key, and by the overview, Queues, quarantine and lint every 500 shapes. Ends with 1, and
prints the seed's shape, where a reader raises or a page is a 500.
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
PAGES = ("/", "/queues/", "/queues/shop/emails/", "/quarantine/", "/policies/lint/")
PAGES_EVERY, REPORTS_AT_ONCE = 500, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", type=int, default=100_000, help="for each key, and of reports")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    from cryptography.fernet import Fernet

    from dashboard.engine import Engine

    with tempfile.TemporaryDirectory(prefix="redrive-shapes-") as folder:
        engine = Engine(Path(folder) / "engine").start()
        (Path(folder) / "sources.toml").write_text(
            f'[sources.shop]\nbackend = "celery"\nurl = "{engine.url.removesuffix("/0")}/1"\n'
        )
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "REDRIVE_DATA": folder,
            "SECRET_KEY": "x" * 60,
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": engine.url,
            "REDRIVE_SOURCES": f"{folder}/sources.toml",
        }
        try:
            found = run(chosen.shapes, chosen.seed, chosen.only)
        finally:
            engine.stop()
    print(json.dumps(found, indent=1))
    sys.exit(1 if any(one["failed"] for one in found.values()) else 0)


def run(count: int, seed: int, only: list[str]) -> dict[str, dict[str, object]]:
    import django

    django.setup()
    logging.disable(logging.CRITICAL)
    from django.conf import settings
    from django.core.management import call_command
    from django.test import Client

    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.ALLOWED_HOSTS.append("testserver")
    call_command("migrate", verbosity=0)
    from django.contrib.auth import get_user_model

    from jobs_admin import config, ingest, liveness, overview
    from jobs_admin.models import Unfiled
    from tests.shapes import KEYS, prepare, reports, shapes

    browser = Client(raise_request_exception=False)
    browser.force_login(get_user_model().objects.create_superuser("ann"))
    store = config.store()
    found: dict[str, dict[str, object]] = {}
    for name in only or KEYS:
        began, failed = time.monotonic(), []
        for n, shape in enumerate(shapes(random.Random(f"{seed} {name}"), KEYS[name].sound, count)):
            if n % PAGES_EVERY == 0:
                prepare(store)
            KEYS[name].put(store, shape)
            for read in KEYS[name].read:
                try:
                    read()
                except Exception as error:
                    failed.append(f"{type(error).__name__}: {error} of {shape[:300]!r}")
            if n % PAGES_EVERY == 0:
                overview.forget()
                liveness.forget()
                failed += [f"{page}: {shape[:300]!r}" for page in PAGES if browser.get(page).status_code >= 500]
        found[name] = {"shapes": count, "seconds": round(time.monotonic() - began, 1), "failed": failed[:10]}
        print(name, found[name], file=sys.stderr)
        store.flushdb()
    if not only:
        began = time.monotonic()
        entries = enumerate(reports(random.Random(seed), count))
        while batch := [(f"{n + 1}-1".encode(), entry) for n, entry in (next(entries, (0, {})) for _ in range(REPORTS_AT_ONCE)) if entry]:
            ingest.file(batch)
        unread = Unfiled.objects.filter(why__startswith="reading it failed").values_list("why", flat=True)
        took = round(time.monotonic() - began, 1)
        found["reports"] = {"shapes": count, "seconds": took, "set aside": Unfiled.objects.count(), "failed": list(unread[:10])}
    return found


if __name__ == "__main__":
    main()
