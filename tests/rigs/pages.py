"""A desk with many failures, and its web server."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 60
SLOW_S = 0.1  # a page that took longer when it was first asked for is asked less often


class Page:
    """An address, and what asks for it."""

    _open = threading.local()  # a connection to each server, a client

    def __init__(
        self,
        port: int,
        path: str,
        cookie: str = "",
        token: str = "",
        server: subprocess.Popen[bytes] | None = None,  # if its processor time is measured
    ) -> None:
        self.port, self.path, self.cookie, self.server = port, path, cookie, server
        self.headers = {"Cookie": cookie, "Accept-Encoding": "gzip, deflate, br"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self.bytes, self.first_s = 0, 0.0

    def fetch(self) -> float:
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
    """An installation with that many failures, in a folder of its own."""

    place: Path
    database: str  # sqlite or postgresql
    failures: int
    server: str  # of PostgreSQL
    pages: dict[str, Page] = field(default_factory=dict)
    figures: dict[str, object] = field(default_factory=dict)

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
        from jobs_admin.core import search_terms as terms

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
        output = self.run("bench/fill.py", "--failures", str(self.failures), "--seed", "1")
        figures = {
            "version": version,
            **json.loads(output.splitlines()[-1]),
            "disk": json.loads(self.run("bench/pages.py", "--disk")),
        }
        done.write_text(json.dumps(figures))
        print(f"{self}: {output.strip()}", file=sys.stderr)

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
        settings = json.loads((self.folder / "environment.json").read_text())
        settings |= {"REDRIVE_REDIS_URL": engine.url, "REDRIVE_DEMO_BROKER_URL": broker}
        (self.folder / "environment.json").write_text(json.dumps(settings))
        environment = self.environment
        try:
            self.run("manage.py", "migrate", "--verbosity", "0")
            self.run("manage.py", "collectstatic", "--noinput", "--clear", "--verbosity", "0")
            known = json.loads(self.run("bench/pages.py", "--prepare"))
            with granian(environment, "/healthz") as (port, process):
                self.process = process
                cookie = known["cookie"]
                self.pages = {name: Page(port, path, cookie, server=process) for name, path in known["pages"].items()}
                self.pages["list"].fetch()
                self.figures = {
                    "failures by state": known["states"],
                    "searches": known["searches"],
                    "memory": {"after the first page": uss(process)},
                }
                first = ("list", "groups", "group", "failure", "overview")
                self.figures["first view"] = {name: first_view(self.pages[name]) for name in first}
                yield
        finally:
            engine.stop()

    def memory_after(self, requests: int) -> None:
        """Asks for all the ordinary pages in turn, eight at a time, and looks at the memory half-way and at the end."""
        memory = self.figures["memory"]
        assert isinstance(memory, dict)
        memory["after the measurement"] = uss(self.process)
        pages = [page for page in self.pages.values() if page.first_s < SLOW_S]
        for part in (1, 2) if requests else ():
            each = requests // 2 // 8

            def client(number: int, each: int = each) -> None:
                for n in range(each):
                    pages[(number + n) % len(pages)].fetch()

            together(8, client)
            memory[f"{part * each * 8:,} requests later"] = uss(self.process)

    def report(self) -> dict[str, object]:
        return {**self.figures, "filled": json.loads((self.folder / "filled.json").read_text())}


def together(clients: int, work, stop: threading.Barrier | None = None) -> None:
    """`work(number)` by that many threads at a time. What fails in one fails here."""
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


_BARE = ("--interface", "wsgi", "--host", "127.0.0.1", "--blocking-threads", "3", "--log-level", "warning")


@contextlib.contextmanager
def granian(
    environment: dict[str, str], path: str, bare: str = "", gateway: str = ""
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The web server as `up` starts it, or granian with a bare WSGI application, on a free port, until the block ends.

    `gateway` names another gateway than the desk's own.
    """
    from dashboard.setup.engine import die_with_parent, free_port
    from dashboard.web.server import ENVIRONMENT, server

    port = free_port()
    words = ["-m", "granian", *_BARE, "--port", str(port), bare] if bare else server(port)
    if gateway:
        words = ["-c", f"from dashboard.web.server import *; serve(hold({port}), {gateway!r})"]
    process = subprocess.Popen(
        [sys.executable, *words],
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


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor that granian's threads, and those of its worker, have used."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    tasks = [task for pid in (process.pid, *children) for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def uss(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Megabytes that would be free if the process ended (private clean and dirty): granian's main process, its worker."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for n, pid in enumerate([str(process.pid), *children]):
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text()
        private = sum(int(kb) for kb in re.findall(r"^Private_(?:Clean|Dirty|Hugetlb):\s+(\d+) kB", rows, re.M))
        found["main" if n == 0 else f"worker {n}"] = round(private / 1024, 1)
    return found
