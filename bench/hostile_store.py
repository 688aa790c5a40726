"""Shapes that no one should write, under every key of the store that is read and in every field of a report.

    python -m bench.hostile_store --shapes 100000 [--seed 1] [--only workers options]

A shape that was drawn before gives what it gave then, so each is read once: `different` says how many were. It is read by every
function that reads the key; where a parser takes the text (`store_shapes.PARSERS`), every shape goes to the parser and each 20th
the whole way. Overview, Queues, a queue, quarantine and lint are opened every 2,000 different shapes (`page_rounds`). Of reports each
shape of each field is read as `ingest` reads it, with the check of its signature, and each 50th filed (`complete`); the pages are opened
after every 100 that are filed, and at the end. Ends with 1, and prints the shape, where a reader raises
or a page is a 500.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis
    from django.test import Client

    from tests.rigs.shapes import Key
    from tests.rigs.store_shapes import Many

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGES = ("/", "/queues/", "/queues/shop/emails/", "/quarantine/", "/policies/lint/")
PAGES_EVERY, COMPLETE_EVERY, FILED_EVERY, REPORTS_AT_ONCE = 2_000, 20, 50, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", type=int, default=100_000, help="for each key, and each field of a report")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

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
    from django.db import connection
    from django.test import Client

    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.ALLOWED_HOSTS.append("testserver")
    call_command("migrate", verbosity=0)
    connection.cursor().execute("PRAGMA synchronous = OFF")  # the disk is not what is measured
    from django.contrib.auth import get_user_model

    from jobs_admin import config
    from tests.rigs.shapes import KEYS as FIRST
    from tests.rigs.shapes import prepare, shapes
    from tests.rigs.store_shapes import FIELDS, KEYS, MANY, PARSERS

    assert FIRST.keys() <= KEYS.keys()
    browser = Client(raise_request_exception=False)
    browser.force_login(get_user_model().objects.create_superuser("ann"))
    store = config.store()
    found: dict[str, dict[str, object]] = {}

    def report(name: str, began: float, failed: list[str], **more: object) -> None:
        took = round(time.monotonic() - began, 1)
        found[name] = {"shapes": count, "seconds": took, **more, "failed": failed[:10]}
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)

    for name in [name for name in KEYS if not only or name in only]:
        key, many, began, failed = KEYS[name], MANY.get(name), time.monotonic(), []
        source = _different(shapes(random.Random(f"{seed} {name}"), key.sound, count))
        at, complete, rounds = 0, 0, 0
        while batch := list(itertools.islice(source, len(many.fields) if many else 1)):
            if at // PAGES_EVERY != (at - len(batch)) // PAGES_EVERY:
                prepare(store)
            is_complete = name not in PARSERS or at % COMPLETE_EVERY == 0
            if name in PARSERS:
                failed += _failures(lambda name=name, batch=batch: PARSERS[name](batch[0]), batch)
            if is_complete:
                complete += len(batch)
                _write_shapes(store, key, many, batch)
                for read in key.read:
                    failed += _failures(read, batch)
            if at // PAGES_EVERY != (at - len(batch)) // PAGES_EVERY:
                failed += [f"{page}: {batch[0][:300]!r}" for page in _pages_that_fail(browser)]
                rounds += 1
            at += len(batch)
        report(name, began, failed, different=at, complete=complete, page_rounds=rounds)
        store.flushdb()
    for field in [field for field in FIELDS if not only or field in only or "reports" in only]:
        began = time.monotonic()
        failed, different, rounds = _read_reports(field, count, seed, browser)
        complete = -(-different // FILED_EVERY)
        report(f"field {field}", began, failed, different=different, complete=complete, page_rounds=rounds)
    return found


def _different(shapes: Iterator[bytes]) -> Iterator[bytes]:
    seen: set[int] = set()
    for shape in shapes:
        if hash(shape) not in seen:
            seen.add(hash(shape))
            yield shape


def _write_shapes(store: redis.Redis, key: Key, many: Many | None, batch: list[bytes]) -> None:
    if many is not None:
        many.write(store, batch)
    else:
        key.put(store, batch[0])


def _failures(read: Callable[[], object], batch: list[bytes]) -> list[str]:
    try:
        read()
    except Exception as error:
        return [f"{type(error).__name__}: {error} of {[shape[:300] for shape in batch[:3]]!r}"]
    return []


def _pages_that_fail(browser: Client) -> list[str]:
    from jobs_admin.desk import overview
    from jobs_admin.queues import liveness

    overview.forget()
    liveness.forget()
    return [page for page in PAGES if browser.get(page).status_code >= 500]


def _read_reports(field: str, count: int, seed: int, browser: Client) -> tuple[list[str], int, int]:
    """Read every report as `ingest` does, and file some; return what failed, how many were read, and how often pages were opened."""
    from datetime import UTC, datetime

    from jobs_admin import config, ingest, trust
    from jobs_admin.core.envelope import Unreadable
    from jobs_admin.ingest.report import NotOurs, parse_report
    from jobs_admin.models import Unfiled
    from jobs_admin.models.access import ENGINE
    from jobs_admin.trust import source_keys
    from tests.rigs.store_shapes import reports_of

    now, seal = datetime.now(UTC), config.payload_keys().encrypt
    failed: list[str] = []
    filed: list[tuple[bytes, dict[bytes, bytes]]] = []
    n, rounds = -1, 0
    key = source_keys.create(ENGINE, "shop")
    trusted = trust.current()
    for n, entry in enumerate(reports_of(field, random.Random(f"{seed} {field}"), count, key)):
        try:
            parse_report(b"1-1", entry, now, seal, stream="shop" if n % 2 else "", trust=trusted)
        except (NotOurs, Unreadable, trust.ReportRefused):
            pass
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error} of {entry!r:.600}")
        if n % FILED_EVERY == 0:
            filed.append((f"{n + 1}-1".encode(), entry))
        if len(filed) == REPORTS_AT_ONCE:
            ingest.file(filed)
            failed += [f"{page}: after reports with shapes of {field}" for page in _pages_that_fail(browser)]
            filed, rounds = [], rounds + 1
    ingest.file(filed)
    failed += [f"{page}: after reports with shapes of {field}" for page in _pages_that_fail(browser)]
    for words in ("reading it failed", "writing it failed"):
        failed += Unfiled.objects.filter(why__startswith=words).values_list("why", flat=True)
    Unfiled.objects.all().delete()
    return failed, n + 1, rounds + 1


if __name__ == "__main__":
    main()
