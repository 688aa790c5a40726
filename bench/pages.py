"""What pages cost at 1,000 and at 1,000,000 failures, as ratios to a bare Django page of 50 rows.

    python bench/pages.py --keep /tmp/desks [--failures 1000 1000000] [--postgresql postgresql://user@host:port/bench]

Each desk is a real one (SQLite, and PostgreSQL where a server is named; Valkey; granian as `up` starts it), filled by
`fill.py`. Every round asks each page of each desk once, and the floor, so that whatever else the machine does hits all
alike; first by one client, then by eight at the same time. Then the bytes of a first view, the memory of the web process while it
answers thousands of requests, and the disk. Prints JSON, and a table on stderr.

With `--keep` the filled desks stay in that folder (and in the databases `bench_1000`, `bench_1000000`), and the next run
finds them there. One that was only half filled, or that another version of the tables filled, is filled anew.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import http.client
import json
import os
import platform
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus, urlsplit, urlunsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
READY_WITHIN_S = 60
SLOW_S = 0.1  # a page that took longer when it was first asked for is asked less often
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
        for desk in desks:
            desk.memory_after(chosen.requests if desk.failures == max(chosen.failures) else 0)
        found = {"machine": machine(), "desks": {str(desk): desk.told() for desk in desks}, **figures}
    print(json.dumps(found, indent=1))
    print(table(found), file=sys.stderr)


class Page:
    """An address, and what asks for it."""

    _open = threading.local()  # a connection to each server, a client

    def __init__(self, port: int, path: str, cookie: str = "", token: str = "") -> None:
        self.port, self.path, self.cookie = port, path, cookie
        self.headers = {"Cookie": cookie, "Accept-Encoding": "gzip, deflate, br"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self.bytes, self.first_s = 0, 0.0

    def ask(self) -> float:
        """Seconds until the whole page was here."""
        connections = self._open.__dict__.setdefault("connections", {})
        for is_last in (False, True):
            connection = connections.pop(self.port, None)
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                connection.connect()
            began = time.perf_counter()
            try:
                connection.request("GET", self.path, headers=self.headers)
                response = connection.getresponse()
                self.bytes = len(response.read())
            except (http.client.RemoteDisconnected, ConnectionError):  # the server had closed what was idle
                if is_last:
                    raise
                continue
            took = time.perf_counter() - began
            if response.status != 200:
                raise SystemExit(f"{self.path} answered {response.status}")
            connections[self.port] = connection
            return took
        raise AssertionError


@dataclass
class Desk:
    """An installation with so many failures, in a folder of its own."""

    place: Path
    database: str  # sqlite or postgresql
    failures: int
    server: str  # of PostgreSQL
    pages: dict[str, Page] = field(default_factory=dict)
    said: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.failures:,} ({'SQLite' if self.database == 'sqlite' else 'PostgreSQL'})"

    @property
    def folder(self) -> Path:
        return self.place / f"{self.database}-{self.failures}"

    @property
    def url(self) -> str:
        if self.database == "sqlite":
            return f"sqlite:///{self.folder / 'redrive.sqlite3'}"
        parts = urlsplit(self.server)
        return urlunsplit(parts._replace(path=f"/{parts.path.strip('/') or 'bench'}_{self.failures}"))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **json.loads((self.folder / "environment.json").read_text()), "DATABASE_URL": self.url}

    def run(self, *words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self}: {' '.join(words)} failed.\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def fill(self) -> None:
        """Unless it was filled before, by these tables, this index and this filler."""
        from jobs_admin.core import terms

        made_by = [*sorted((ROOT / "jobs_admin/migrations").glob("0*.py")), ROOT / "bench/shop.py"]
        words = b"".join(file.read_bytes() for file in made_by) + f"terms {terms.VERSION}".encode()
        version = hashlib.sha256(words).hexdigest()
        done = self.folder / "filled.json"
        if done.exists() and json.loads(done.read_text())["version"] == version:
            return
        from cryptography.fernet import Fernet

        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.database == "postgresql":
            self._empty_database()
        made = {
            "REDRIVE_DATA": str(self.folder.resolve()),
            "SECRET_KEY": secrets.token_urlsafe(50),
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": "redis://127.0.0.1:1/0",
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        }
        (self.folder / "environment.json").write_text(json.dumps(made))
        print(f"{self}: filling", file=sys.stderr)
        self.run("manage.py", "migrate", "--verbosity", "0")
        told = self.run("bench/fill.py", "--failures", str(self.failures), "--seed", "1")
        figures = {
            "version": version,
            **json.loads(told.splitlines()[-1]),
            "disk": json.loads(self.run("bench/pages.py", "--disk")),
        }
        done.write_text(json.dumps(figures))
        print(f"{self}: {told.strip()}", file=sys.stderr)

    def _empty_database(self) -> None:
        import psycopg

        name = urlsplit(self.url).path[1:]
        with psycopg.connect(urlunsplit(urlsplit(self.server)._replace(path="/postgres")), autocommit=True) as server:
            server.execute(f'DROP DATABASE IF EXISTS "{name}"')
            server.execute(f'CREATE DATABASE "{name}"')

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        from dashboard.setup.engine import Engine

        engine = Engine(self.folder / "engine").start()
        # The shop is configured, so that its jobs could be replayed.
        broker = engine.url.removesuffix("/0") + "/1"
        kept = json.loads((self.folder / "environment.json").read_text())
        kept |= {"REDRIVE_REDIS_URL": engine.url, "REDRIVE_DEMO_BROKER_URL": broker}
        (self.folder / "environment.json").write_text(json.dumps(kept))
        environment = self.environment
        try:
            self.run("manage.py", "migrate", "--verbosity", "0")
            self.run("manage.py", "collectstatic", "--noinput", "--clear", "--verbosity", "0")
            known = json.loads(self.run("bench/pages.py", "--prepare"))
            with granian(environment, "/healthz") as (port, process):
                self.process = process
                self.pages = {name: Page(port, path, known["cookie"]) for name, path in known["pages"].items()}
                self.pages["list"].ask()
                self.said = {
                    "failures by state": known["states"],
                    "searches": known["searches"],
                    "memory": {"after the first page": uss(process)},
                }
                first = ("list", "groups", "group", "failure", "overview")
                self.said["first view"] = {name: first_view(self.pages[name]) for name in first}
                yield
        finally:
            engine.stop()

    def memory_after(self, requests: int) -> None:
        """Asks for all the ordinary pages in turn, eight at a time, and looks at the memory half-way and at the end."""
        memory = self.said["memory"]
        assert isinstance(memory, dict)
        memory["after the measurement"] = uss(self.process)
        pages = [page for page in self.pages.values() if page.first_s < SLOW_S]
        for part in (1, 2) if requests else ():
            each = requests // 2 // 8

            def client(number: int, each: int = each) -> None:
                for n in range(each):
                    pages[(number + n) % len(pages)].ask()

            together(8, client)
            memory[f"{part * each * 8:,} requests later"] = uss(self.process)

    def told(self) -> dict[str, object]:
        return {**self.said, "filled": json.loads((self.folder / "filled.json").read_text())}


def warm(pages: dict[str, Page]) -> None:
    """Templates compiled, files in the cache; and which pages are slow."""
    for page in pages.values():
        page.ask()
        page.first_s = page.ask()
        for _ in range(3 if page.first_s < SLOW_S else 0):
            page.ask()
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
                    took[name].append(page.ask())

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


def together(clients: int, work, stop: threading.Barrier | None = None) -> None:
    """`work(number)` by so many threads at a time. What fails in one fails here."""
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)
            if stop is not None:
                stop.abort()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def floor(place: Path) -> Iterator[dict[str, Page]]:
    """A bare Django page of 50 rows from SQLite, which the ratios are to; beside it one of 50 rows at hand."""
    database = place / "floor.sqlite3"
    environment = {**os.environ, "FLOOR_DATABASE": str(database)}
    if not database.exists():
        subprocess.run([sys.executable, "bench/floor.py"], cwd=ROOT, env=environment, check=True)
    with granian(environment, "/", "bench.floor:application") as (port, _):
        yield {"floor": Page(port, "/"), "floor without a database": Page(port, "/still/")}


_BARE = ("--interface", "wsgi", "--host", "127.0.0.1", "--blocking-threads", "3", "--log-level", "warning")


@contextlib.contextmanager
def granian(
    environment: dict[str, str], path: str, bare: str = ""
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The web server as `up` starts it, or granian with a bare WSGI application, on a free port, until the block ends."""
    from dashboard.setup.engine import die_with_parent, free_port
    from dashboard.web.server import ENVIRONMENT, server

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *(["-m", "granian", *_BARE, "--port", str(port), bare] if bare else server(port))],
        cwd=ROOT,
        env={**environment, **ENVIRONMENT},
        stdout=sys.stderr,
        preexec_fn=die_with_parent,
    )
    try:
        ends = time.monotonic() + READY_WITHIN_S
        while True:
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"{bare or 'The desk'} did not come up on port {port}.")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait(10)


def first_view(page: Page) -> dict[str, int]:
    """Bytes as a browser without a cache asks for them: the document, its styles and scripts, its icons.

    `at once`: what the page itself asks for as soon as it is there. `all, in gzip`: for a browser that takes no brotli.
    """
    document = fetched(page, page.path, "gzip, deflate, br")[1]
    plain = fetched(page, page.path, "identity")[1].decode()
    styles = re.findall(r'<link rel="stylesheet" href="([^"]+)"', plain)
    scripts = re.findall(r'<script src="([^"]+)"', plain)
    icons = sorted({url.partition("#")[0] for url in re.findall(r'<use href="([^"]+)"', plain)})
    icons += re.findall(r'<link rel="icon" href="([^"]+)"', plain)
    parts = [tag for tag in re.findall(r"<[a-z]+ [^>]*hx-get=[^>]*>", plain) if 'hx-trigger="load"' in tag]
    at_once = [re.search(r'hx-get="([^"]+)"', tag)[1].replace("&amp;", "&") for tag in parts]

    def size(urls: list[str], takes: str = "gzip, deflate, br") -> int:
        return sum(len(fetched(page, url, takes)[1]) for url in urls)

    found = {"document": len(document), "css": size(styles), "js": size(scripts), "icons": size(icons)}
    found["all"] = sum(found.values())
    found["all, in gzip"] = size([page.path, *styles, *scripts, *icons], "gzip")
    found["at once"] = size(at_once)
    return found


def fetched(page: Page, url: str, takes: str) -> tuple[dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", url, headers={"Cookie": page.cookie, "Accept-Encoding": takes})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{url} answered {answer.status}")
    if answer.headers.get("Content-Encoding") == "gzip":
        gzip.decompress(body)  # or it is none
    return dict(answer.headers), body


def uss(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Megabytes that would be free if the process ended (private clean and dirty): granian's main process, its worker."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for n, pid in enumerate([str(process.pid), *children]):
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
        private = sum(int(kb) for kb in re.findall(r"^Private_(?:Clean|Dirty|Hugetlb):\s+(\d+) kB", rows, re.M))
        found["main" if n == 0 else f"worker {n}"] = round(private / 1024, 1)
    return found


def prepare() -> None:
    """In the desk's environment: somebody who is logged in, and the addresses that are asked for."""
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
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.save()
    largest = (
        FailureCount.objects.filter(group_id__gt=0).values("group_id").annotate(n=Sum("count")).order_by("-n").first()
    )
    group = Group.objects.get(pk=largest["group_id"]).fingerprint
    newest = Failure.objects.filter(state="dead").order_by("-id")
    failure = newest.filter(group__fingerprint=group).first()
    dead = newest.count()
    middle = newest.values_list("id", flat=True)[dead // 2]
    last = newest.values_list("failed_at", flat=True)[min(SELECTED, dead) - 1]
    searches = {
        "rare word": re.search(r"[0-9a-f]{12}", newest.filter(message__contains="/v1/events/").first().message)[0],
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
    told = {
        "cookie": f"sessionid={session.session_key}; csrftoken={secrets.token_hex(16)}",
        "pages": pages,
        "searches": searches,
        "states": dict(FailureCount.objects.values_list("state").annotate(n=Sum("count"))),
    }
    print(json.dumps(told))


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
        whole = cursor.fetchone()[0]
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:12]
    return {"all": round(whole / 1e6, 1)} | {name: round(size / 1e6, 1) for name, size in largest if size > 5e5}


def table(found: dict[str, object]) -> str:
    """The times, as a table of Markdown: a row a page and desk."""
    rows = [
        "| page | 1 client p50 / p95 ms | × floor | 8 clients p50 / p95 ms | × floor | bytes |",
        "|---|---|---|---|---|---|",
    ]
    one, eight = found["1 clients"], found["8 clients"]
    assert isinstance(one, dict) and isinstance(eight, dict)
    for name, row in one.items():
        other = eight[name]
        times = [f"{r['p50_ms']:.1f} / {r['p95_ms']:.1f} | {r['p50_ratio']:.2f}" for r in (row, other)]
        rows.append(f"| {name} | {times[0]} | {times[1]} | {row['bytes']:,.0f} |")
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
