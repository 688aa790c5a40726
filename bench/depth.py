"""Costs of pictures of depth: 400 days of 50 queues in every step, as ratios to a bare Django page of 50 rows.

    python -m bench.depth --keep /tmp/depths [--queues 50] [--days 400] [--postgresql postgresql://user@host:port/bench]

Fills a real desk (SQLite, or PostgreSQL where a server is named) with what these days leave behind: a third of the queues busy all
day and in trouble now and then, the others quiet. Then folds a day of looks as a watch does that was away for a day, and a
round of one that was not; and asks the API and the page of a queue at each span, each round every page once, and the floor. Prints JSON,
and a table on stderr. With `--keep` the filled desk stays, and the next run finds it there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from bench.machine import machine
from bench.pages import floor, measure, warm
from tests.rigs.pages import ROOT, Page, granian

SPANS = {"1 h": 1, "6 h": 6, "24 h": 24, "7 d": 168, "14 d": 336, "90 d": 2160, "400 d": 9600}
NAMES = {"1 h": "1h", "6 h": "6h", "24 h": "24h", "7 d": "7d", "14 d": "14d", "90 d": "90d", "400 d": "400d"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--keep", type=Path)
    options.add_argument("--queues", type=int, default=50)
    options.add_argument("--days", type=int, default=400)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--postgresql", default="", help="a database, emptied before it is filled")
    options.add_argument("--inside", choices=("fill", "fold", "prepare"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.inside:
        import django

        django.setup()
        print(json.dumps({"fill": fill, "fold": fold, "prepare": prepare}[chosen.inside](chosen)))
        return
    with contextlib.ExitStack() as running:
        place = chosen.keep or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="redrive-depth-")))
        place.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine()}
        environment = desk(place / "desk", chosen, running)
        done = place / "filled.json"
        if not done.exists():
            done.write_text(inside("fill", environment, chosen))
        found["kept"] = json.loads(done.read_text())
        found["folding"] = json.loads(inside("fold", desk(place / "folding", chosen, running, fresh=True), chosen))
        known = json.loads(inside("prepare", environment, chosen))
        pages = running.enter_context(floor(place))
        port, _ = running.enter_context(granian(environment, "/healthz"))
        now = datetime.now(UTC)
        for span, hours in SPANS.items():
            parameters = {"source": "shop", "queue": "emails", "since": (now - timedelta(hours=hours)).isoformat()}
            pages[f"API, {span}"] = Page(port, f"/api/depth?{urlencode(parameters)}", token=known["token"])
            pages[f"page, {span}"] = Page(port, f"/queues/shop/emails/?span={NAMES[span]}", known["cookie"])
        pages["overview"] = Page(port, "/", known["cookie"])
        warm(pages)
        found |= {f"{n} clients": measure(pages, n, max(5, chosen.rounds * 2 // (n + 1))) for n in (1, 8)}
        found["load_after"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))
    print(table(found), file=sys.stderr)


def desk(
    folder: Path, chosen: argparse.Namespace, running: contextlib.ExitStack, *, fresh: bool = False
) -> dict[str, str]:
    """The environment of an installation in this folder, with its store running and its tables made."""
    from cryptography.fernet import Fernet

    from dashboard.setup.engine import Engine

    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "environment.json"
    if fresh:
        for file in folder.glob("redrive.sqlite3*"):
            file.unlink()
    if not stored.exists():
        made = {"SECRET_KEY": secrets.token_urlsafe(50), "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode()}
        stored.write_text(json.dumps(made))
    engine = Engine(folder / "engine").start()
    running.callback(engine.stop)
    settings = {
        **json.loads(stored.read_text()),
        "REDRIVE_DATA": str(folder.resolve()),
        "REDRIVE_REDIS_URL": engine.url,
        "REDRIVE_DEMO_BROKER_URL": engine.url.removesuffix("/0") + "/1",
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "DATABASE_URL": chosen.postgresql or f"sqlite:///{(folder / 'redrive.sqlite3').resolve()}",
    }
    environment = {**os.environ, **settings}
    for words in (["migrate", "--verbosity", "0"], ["collectstatic", "--noinput", "--clear", "--verbosity", "0"]):
        subprocess.run([sys.executable, "manage.py", *words], cwd=ROOT, env=environment, check=True)
    return environment


def inside(what: str, environment: dict[str, str], chosen: argparse.Namespace) -> str:
    sizes = ["--queues", str(chosen.queues), "--days", str(chosen.days)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.depth", "--inside", what, *sizes],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


# -- what stands in the tables ----------------------------------------------------------------------------------------


def queues(count: int) -> list[str]:
    return ["emails", "webhooks", *(f"queue-{n:02}" for n in range(2, count))][:count]


class Life:
    """The course of a queue: with the day, and in trouble for some hours of some days. The same for the same name."""

    def __init__(self, name: str, is_busy: bool) -> None:
        self.name, self.is_busy = name, is_busy
        self.seed = sum(map(ord, name))

    def at(self, moment: int, noise: random.Random) -> tuple[int, int, int, int, float, float]:
        """waiting, active, delayed, dead, failed and succeeded a minute"""
        if not self.is_busy:
            return 0, 0, 0, 0, 0.0, float(noise.randrange(3))
        day, hour = moment // 86_400, moment % 86_400 / 3600
        wave = 0.6 + 0.4 * math.sin((hour - 8) / 24 * 2 * math.pi)
        trouble = (day * 7 + self.seed) % 5 == 0
        begins = 2 + self.seed % 17
        since = hour - begins
        dead = round(1243 * min(1, since / 0.5) * max(0, 1 - since / 4)) if trouble and 0 < since < 4 else 0
        failed = 40 * wave if trouble and 0 < since < 0.5 else 0.4 * noise.random()
        waiting = round(40 * wave * noise.random() + (900 * since if trouble and 0 < since < 0.5 else 0))
        return waiting, round(8 * wave), noise.randrange(6), dead, round(failed, 1), round(120 * wave, 1)


def rows_of(step: int, since: int, until: int, lives: list[Life]) -> list[tuple[object, ...]]:
    noise = random.Random(since)
    found = []
    for at in range(since - since % step, until, step):
        moment = datetime.fromtimestamp(at, UTC)
        for life in lives:
            waiting, active, delayed, dead, failed, ran = life.at(at, noise)
            oldest = datetime.fromtimestamp(at - at % 3600, UTC) if dead else None
            low, high = (None, None) if step == 10 or not life.is_busy else (max(0, waiting - 9), waiting + 12)
            high_dead = None if step == 10 or not dead else dead + 7
            details = (4, 4, "late", '{"0": 3, "9": 1}') if step == 10 else (None, None, "", "{}")
            found.append(
                ("shop", life.name, moment, step, max(1, step // 10), True, "", waiting, active, delayed, dead, None, oldest,
                 failed, ran, *details, low, high, None, None, None, None, None, high_dead)
            )  # fmt: skip
    return found


COLUMNS = (
    "source", "queue", "at", "step", "looks", "is_reachable", "why", "waiting", "active", "delayed", "dead", "source_dead",
    "oldest_dead_at", "failed_per_min", "succeeded_per_min", "workers", "guarded_workers", "durability", "by_priority",
    "waiting_min", "waiting_max", "active_min", "active_max", "delayed_min", "delayed_max", "dead_min", "dead_max",
)  # fmt: skip


def write(step: int, since: int, until: int, lives: list[Life]) -> int:
    from django.db import transaction

    from jobs_admin.db import statements
    from jobs_admin.models import DepthSample

    count = 0
    at_once = max(step, 20_000 // len(lives) * step)
    for start in range(since - since % step, until, at_once):
        made = rows_of(step, start, min(until, start + at_once), lives)
        with transaction.atomic():
            statements.insert(DepthSample, COLUMNS, made, conflict="DO NOTHING")
        count += len(made)
    return count


def lives(count: int) -> list[Life]:
    return [Life(name, n % 3 == 0) for n, name in enumerate(queues(count))]


def fill(chosen: argparse.Namespace) -> dict[str, object]:
    """Fill the table with the samples that the chosen days leave, as they are stored."""
    from jobs_admin.models import DepthSample, Release, Source
    from jobs_admin.queues.depths.steps import LADDER

    now = int(time.time())
    Source.objects.get_or_create(name="shop", defaults={"is_configured": True, "is_reachable": True})
    DepthSample.objects.all().delete()
    counts = {}
    for rung in LADDER:
        longest = min(rung.longest or timedelta(days=chosen.days), timedelta(days=chosen.days))
        counts[rung.step_s] = write(rung.step_s, now - round(longest.total_seconds()), now, lives(chosen.queues))
    for n in range(0, chosen.days, 3):
        Release.objects.get_or_create(
            source="shop", version=f"v{n}", defaults={"at": datetime.fromtimestamp(now - n * 86_400, UTC)}
        )
    return {
        "rows": counts,
        "all_rows": sum(counts.values()),
        "bytes": size(),
        "bytes_a_row": round(sum(size().values()) / sum(counts.values())),
    }


def size() -> dict[str, int]:
    """Bytes of the table, and of each of its indexes."""
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.execute(
                "SELECT name, SUM(pgsize) FROM dbstat WHERE name IN "
                "(SELECT name FROM sqlite_master WHERE tbl_name = 'jobs_admin_depthsample') GROUP BY name"
            )
        else:
            cursor.execute(
                "SELECT 'table', pg_table_size('jobs_admin_depthsample') "
                "UNION ALL SELECT 'indexes', pg_indexes_size('jobs_admin_depthsample')"
            )
        return dict(cursor.fetchall())


def fold(chosen: argparse.Namespace) -> dict[str, object]:
    """A day of looks of which nothing is folded; then a round of a watch that is never away."""
    from django.utils import timezone

    from jobs_admin.models import DepthSample
    from jobs_admin.queues import depths
    from jobs_admin.queues.depths import rolling

    now = int(time.time()) // 86_400 * 86_400
    samples = write(10, now - 86_400, now, lives(chosen.queues))
    longest = 0.0
    inserted = rolling.statements.insert

    def timed(*args: object, **more: object) -> object:
        nonlocal longest
        began = time.perf_counter()
        done = inserted(*args, **more)  # type: ignore[arg-type]
        longest = max(longest, time.perf_counter() - began)
        return done

    rolling.statements.insert = timed  # type: ignore[assignment]
    began, at, rounds = time.perf_counter(), datetime.fromtimestamp(now, UTC), 1
    while depths.roll_up(at):
        rounds += 1
    took = time.perf_counter() - began
    write(10, now, now + 10, lives(chosen.queues))
    began = time.perf_counter()
    depths.roll_up(at + timedelta(seconds=10))
    once = time.perf_counter() - began
    assert timezone.now() and DepthSample.objects.filter(step=86_400).count() >= chosen.queues
    return {
        "looks": samples,
        "seconds": round(took, 2),
        "looks_a_second": round(samples / took),
        "rounds": rounds,
        "longest_transaction_ms": round(longest * 1000, 1),
        "a_round_ms": round(once * 1000, 1),
    }


def prepare(chosen: argparse.Namespace) -> dict[str, str]:
    """Log an operator in, and make a token; nothing is late."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    from jobs_admin import config
    from jobs_admin.core import keys
    from jobs_admin.management.commands.token import create
    from jobs_admin.models import ApiToken, DepthSample

    config.store().hset(keys.steps(), "sample", json.dumps({"at": time.time() + 86_400}))
    # What passed since the desk was filled, so that its pictures go up to now.
    last = DepthSample.objects.filter(step=10).order_by("-at").values_list("at", flat=True)[:1]
    for step in (10, 60, 300, 900, 3600, 21_600, 86_400):
        write(step, int(last[0].timestamp()), int(time.time()) + 600, lives(chosen.queues))
    users = get_user_model().objects
    user = users.filter(username="bench").first() or users.create_superuser("bench")
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "dashboard.web.second_step.Passwords"
    session.save()
    ApiToken.objects.filter(name="bench").delete()
    return {
        "cookie": f"sessionid={session.session_key}; csrftoken={secrets.token_hex(16)}",
        "token": create("bench", "viewer", "*"),
    }


def table(found: dict[str, object]) -> str:
    lines = [
        "| | 1 client p50 / p95 ms | × floor p50 / p95 | 8 clients p50 / p95 ms | × floor p50 / p95 | bytes |",
        "|---|---|---|---|---|---|",
    ]
    one, eight = found["1 clients"], found["8 clients"]
    assert isinstance(one, dict) and isinstance(eight, dict)
    for name, row in one.items():
        cells = [
            f"{r['p50_ms']:.1f} / {r['p95_ms']:.1f} | {r['p50_ratio']:.2f} / {r['p95_ratio']:.2f}"
            for r in (row, eight[name])
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {row['bytes']:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
