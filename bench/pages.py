"""Costs of pages at 1,000 and at 1,000,000 failures, as ratios to a bare Django page of 50 rows.

    python bench/pages.py --keep /tmp/desks [--failures 1000 1000000] [--postgresql postgresql://user@host:port/bench]

Each desk is a real one (SQLite, and PostgreSQL where a server is named; Valkey; granian as `up` starts it), filled by
`fill.py`. Every round asks each page of each desk once, and the floor, so that whatever else the machine does hits all
alike; first by one client, then by eight at the same time. Then the processor time that the server uses for each page,
which other work on the machine changes less; the bytes of a first view, the memory of the web process while it answers
thousands of requests, and the disk. Prints JSON, and a table on stderr.

With `--keep` the filled desks stay in that folder (and in the databases `bench_1000`, `bench_1000000`), and the next run
finds them there. One that was only half filled, or that another version of the tables filled, is filled again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.rigs.pages import SLOW_S, Desk, Page, granian, processor_s, together  # noqa: E402

SELECTED = 45_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--failures", type=int, nargs="+", default=[1_000, 1_000_000])
    options.add_argument("--keep", type=Path, help="folder of the filled desks; a temporary one otherwise")
    options.add_argument("--postgresql", default="", help="a server, and the first part of the databases' names")
    options.add_argument("--no-sqlite", action="store_true")
    options.add_argument(
        "--rounds", type=int, default=100, help="requests of each page by one client; eight ask a quarter each"
    )
    options.add_argument("--requests", type=int, default=5_000, help="after which memory is looked at again")
    options.add_argument("--only-fill", action="store_true", help="fill the desks and end")
    options.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--disk", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.prepare:
        prepare()
        return
    if chosen.disk:
        print(json.dumps(disk()))
        return
    with contextlib.ExitStack() as running:
        place = chosen.keep or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="redrive-pages-")))
        place.mkdir(parents=True, exist_ok=True)
        databases = ([] if chosen.no_sqlite else ["sqlite"]) + (["postgresql"] if chosen.postgresql else [])
        desks = [Desk(place, name, n, chosen.postgresql) for name in databases for n in chosen.failures]
        for desk in desks:
            desk.fill()
        if chosen.only_fill:
            return
        floors = running.enter_context(floor(place))
        for desk in desks:
            running.enter_context(desk.running())
        pages = floors | {f"{page} at {desk}": found for desk in desks for page, found in desk.pages.items()}
        warm(pages)
        figures = {f"{n} clients": measure(pages, n, max(5, chosen.rounds * 2 // (n + 1))) for n in (1, 8)}
        for name, used_ms in measure_processor(pages).items():
            figures["1 clients"][name]["processor_ms"] = used_ms
        for desk in desks:
            desk.memory_after(chosen.requests if desk.failures == max(chosen.failures) else 0)
        found = {"machine": machine(), "desks": {str(desk): desk.report() for desk in desks}, **figures}
    print(json.dumps(found, indent=1))
    print(table(found), file=sys.stderr)


def warm(pages: dict[str, Page]) -> None:
    """Templates compiled, files in the cache; and which pages are slow."""
    for page in pages.values():
        page.fetch()
        page.first_s = page.fetch()
        for _ in range(3 if page.first_s < SLOW_S else 0):
            page.fetch()
    print("measuring", file=sys.stderr)


def measure(pages: dict[str, Page], clients: int, rounds: int) -> dict[str, dict[str, float]]:
    """p50 and p95 in milliseconds of each page, and their ratios to the floor. All clients ask for the same at once."""
    took: dict[str, list[float]] = {name: [] for name in pages}
    all_here = threading.Barrier(clients)

    def client(_number: int) -> None:
        for n in range(rounds):
            for name, page in pages.items():
                if page.first_s < SLOW_S or n % 10 == 0:
                    all_here.wait()
                    took[name].append(page.fetch())

    together(clients, client, all_here)
    found = {}
    for name, times in took.items():
        cuts = statistics.quantiles(times, n=20) if len(times) > 1 else times * 19
        found[name] = {"p50_ms": cuts[9] * 1000, "p95_ms": cuts[18] * 1000, "asked": len(times)}
        found[name]["bytes"] = pages[name].bytes
    least = dict(found["floor"])
    for row in found.values():
        row["p50_ratio"], row["p95_ratio"] = (row[key] / least[key] for key in ("p50_ms", "p95_ms"))
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in found.items()}


def measure_processor(pages: dict[str, Page]) -> dict[str, float]:
    """Milliseconds of processor that the server uses for each page, the median of ten rounds of ten requests."""
    used: dict[str, list[float]] = {name: [] for name in pages}
    for _ in range(10):
        for name, page in pages.items():
            requests = 10 if page.first_s < SLOW_S else 2
            before = processor_s(page.server)
            for _ in range(requests):
                page.fetch()
            used[name].append((processor_s(page.server) - before) / requests * 1000)
    return {name: round(statistics.median(found), 2) for name, found in used.items()}


@contextlib.contextmanager
def floor(place: Path) -> Iterator[dict[str, Page]]:
    """A bare Django page of 50 rows from SQLite, which the ratios are to; beside it one of 50 rows at hand."""
    database = place / "floor.sqlite3"
    environment = {**os.environ, "FLOOR_DATABASE": str(database)}
    if not database.exists():
        subprocess.run([sys.executable, "bench/floor.py"], cwd=ROOT, env=environment, check=True)
    with granian(environment, "/", "bench.floor:application") as (port, server):
        paths = {"floor": "/", "floor without a database": "/still/"}
        yield {name: Page(port, path, server=server) for name, path in paths.items()}


def prepare() -> None:
    """Log a user in, in the desk's environment; return the addresses that are requested."""
    import django

    django.setup()
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore
    from django.db.models import Sum

    from jobs_admin import config
    from jobs_admin.core import keys
    from jobs_admin.models import Failure, FailureCount, Group

    # Watch would have ended a round just now: the overview is that of a desk that works.
    now = json.dumps({"at": time.time() + 86_400})
    for step in ("ingest", "reconcile", "sample", "send", "settle"):
        config.store().hset(keys.steps(), step, now)
    users = get_user_model().objects
    user = users.filter(username="bench").first() or users.create_superuser("bench")
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "dashboard.web.second_step.Passwords"
    session.save()
    largest = (
        FailureCount.objects.filter(group_id__gt=0).values("group_id").annotate(n=Sum("count")).order_by("-n").first()
    )
    group = Group.objects.get(pk=largest["group_id"]).fingerprint
    latest = Failure.objects.filter(state="dead").order_by("-id")
    failure = latest.filter(group__fingerprint=group).first()
    dead = latest.count()
    middle = latest.values_list("id", flat=True)[dead // 2]
    last = latest.values_list("failed_at", flat=True)[min(SELECTED, dead) - 1]
    searches = {
        "rare word": re.search(r"[0-9a-f]{12}", latest.filter(message__contains="/v1/events/").first().message)[0],
        "common word": "timed",
        "absent word": "zebrafish",
        "two words": "connection refused",
        "quoted words": '"Connection refused"',
        "word in a queue": "queue:webhooks unavailable",
        "argument by path": f"kwargs.customer.id:{json.loads(failure.kwargs)['customer']['id']}",
        "substring": "*imeou*",
        "substring, absent": "*ebrafis*",
    }
    pages = {
        "list": "/failures/",
        "list, in the middle": f"/failures/?after={middle}",
        "facets": "/failures/facets/?q=",
        "groups": "/groups/",
        "group": f"/groups/{group}/",
        "failure": f"/failures/{failure.pk}/",
        "overview": "/",
    }
    pages |= {name: f"/failures/?q={quote_plus(text)}" for name, text in searches.items()}
    pages["facets of a common word"] = "/failures/facets/?q=timed"
    chosen = f"state:dead since:{last:%Y-%m-%dT%H:%M:%SZ}"
    pages[f"replay of {min(SELECTED, dead):,} by query"] = f"/replays/new/?q={quote_plus(chosen)}"
    figures = {
        "cookie": f"sessionid={session.session_key}; csrftoken={secrets.token_hex(16)}",
        "pages": pages,
        "searches": searches,
        "states": dict(FailureCount.objects.values_list("state").annotate(n=Sum("count"))),
    }
    print(json.dumps(figures))


def disk() -> dict[str, float]:
    """In the desk's environment: megabytes of the database, and of its largest tables with their indexes."""
    import django

    django.setup()
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA optimize")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.execute("SELECT name, tbl_name FROM sqlite_master")
            table_of = dict(cursor.fetchall())
            cursor.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")
            sizes: dict[str, int] = {}
            for name, size in cursor.fetchall():
                # The tables of an index of words are named after it.
                table = re.sub(r"_(data|idx|content|docsize|config)$", "", table_of.get(name, name))
                kind = table if table_of.get(name, name) == name else f"{table}, indexes"
                sizes[kind] = sizes.get(kind, 0) + size
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        else:
            cursor.execute("SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables")
            sizes = dict(cursor.fetchall())
            cursor.execute("SELECT pg_database_size(current_database())")
        total = cursor.fetchone()[0]
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:12]
    return {"all": round(total / 1e6, 1)} | {name: round(size / 1e6, 1) for name, size in largest if size > 5e5}


def table(found: dict[str, object]) -> str:
    """The times, as a table of Markdown: a row a page and desk."""
    rows = [
        "| page | 1 client p50 / p95 ms | × floor | processor ms | × floor | 8 clients p50 / p95 ms | × floor | bytes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    one, eight = found["1 clients"], found["8 clients"]
    assert isinstance(one, dict) and isinstance(eight, dict)
    for name, row in one.items():
        other = eight[name]
        times = [f"{r['p50_ms']:.1f} / {r['p95_ms']:.1f} | {r['p50_ratio']:.2f}" for r in (row, other)]
        used = row["processor_ms"]
        used_words = f"{used:.2f} | {used / one['floor']['processor_ms']:.2f}"
        rows.append(f"| {name} | {times[0]} | {used_words} | {times[1]} | {row['bytes']:,.0f} |")
    return "\n".join(rows)


def machine() -> dict[str, object]:
    import django
    import granian as server

    versions = {"Python": platform.python_version(), "Django": django.__version__, "granian": server.__version__}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "versions": versions,
        "load average": [round(n, 1) for n in os.getloadavg()],
    }


if __name__ == "__main__":
    main()
