"""What a page costs at 1,000 and at 100,000 failures, as a ratio to a bare Django page of 50 rows.

    python bench/pages.py [--failures 1000 100000] [--rounds 60] [--recovered 0.9]

Each desk is a real one (SQLite, Valkey, granian as `up` starts it), filled through the real ingest. Every round asks
each page of each desk once, and the floor, so that whatever else the machine does hits all alike. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WEB_THREADS = 4
READY_WITHIN_S = 60
FILL_WITHIN_S = 1800


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--failures", type=int, nargs="+", default=[1_000, 100_000])
    options.add_argument("--rounds", type=int, default=60, help="requests of each page by each client")
    options.add_argument("--recovered", type=float, default=0.0, help="share of the failures that recovered since")
    options.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.prepare:
        prepare(chosen.recovered)
        return
    with tempfile.TemporaryDirectory(prefix="redrive-pages-") as place, contextlib.ExitStack() as running:
        pages = {"floor": running.enter_context(floor(Path(place)))}
        desks = {}
        for failures in chosen.failures:
            found, desk = running.enter_context(filled_desk(Path(place), failures, chosen.recovered))
            pages |= {f"{name} at {failures:,}": page for name, page in found.items()}
            desks[f"{failures:,}"] = desk
        for page in pages.values():  # templates compiled, files in the cache
            for _ in range(5):
                page.ask()
        print("filled: measuring", file=sys.stderr)
        figures = {f"{clients} clients": measure(pages, clients, chosen.rounds) for clients in (1, 8)}
    print(json.dumps({"machine": machine(), "desks": desks, "rounds": chosen.rounds, **figures}, indent=1))


class Page:
    """An address, and what asks for it."""

    def __init__(self, port: int, path: str, cookie: str = "") -> None:
        self.port, self.path = port, path
        self.headers = {"Cookie": cookie, "Accept-Encoding": "gzip"} if cookie else {"Accept-Encoding": "gzip"}
        self.bytes = 0
        self.open = threading.local()

    def ask(self) -> float:
        """Seconds until the whole page was here."""
        connection = getattr(self.open, "connection", None)
        if connection is None:
            connection = self.open.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", self.path, headers=self.headers)
        response = connection.getresponse()
        self.bytes = len(response.read())
        took = time.perf_counter() - began
        if response.status != 200:
            raise SystemExit(f"{self.path} answered {response.status}")
        return took


def measure(pages: dict[str, Page], clients: int, rounds: int) -> dict[str, dict[str, float]]:
    """p50 and p95 in milliseconds of each page, and their ratios to the floor."""
    took: dict[str, list[float]] = {name: [] for name in pages}

    def client(number: int) -> None:
        names = list(pages)
        for n in range(rounds):
            # Each client goes round from another page: otherwise all would ask for the same at the same time.
            for place in range(len(names)):
                name = names[(place + number + n) % len(names)]
                took[name].append(pages[name].ask())

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {}
    for name, times in took.items():
        cuts = statistics.quantiles(times, n=20)
        found[name] = {"p50_ms": cuts[9] * 1000, "p95_ms": cuts[18] * 1000, "bytes": pages[name].bytes}
    least = dict(found["floor"])
    for row in found.values():
        row["p50_ratio"], row["p95_ratio"] = (row[key] / least[key] for key in ("p50_ms", "p95_ms"))
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in found.items()}


@contextlib.contextmanager
def floor(place: Path) -> Iterator[Page]:
    environment = {**os.environ, "FLOOR_DATABASE": str(place / "floor.sqlite3")}
    subprocess.run([sys.executable, "bench/floor.py"], cwd=ROOT, env=environment, check=True)
    with granian("bench.floor:application", environment, "/") as port:
        yield Page(port, "/")


@contextlib.contextmanager
def filled_desk(place: Path, failures: int, recovered: float) -> Iterator[tuple[dict[str, Page], dict[str, object]]]:
    from cryptography.fernet import Fernet

    from dashboard.engine import Engine

    data = place / f"desk-{failures}"
    engine = Engine(data / "engine").start()
    environment = {
        **os.environ,
        "REDRIVE_DATA": str(data),
        "SECRET_KEY": secrets.token_urlsafe(50),
        "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        "REDRIVE_REDIS_URL": engine.url,
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }
    try:
        run = lambda *words: subprocess.run(  # noqa: E731
            [sys.executable, *words], cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
            timeout=FILL_WITHIN_S,
        )  # fmt: skip
        run("manage.py", "migrate", "--verbosity", "0")
        run("manage.py", "collectstatic", "--noinput", "--verbosity", "0")
        run("bench/fill.py", "--failures", str(failures), "--seed", "1")
        print(f"{failures:,} failures filed", file=sys.stderr)
        known = json.loads(run("bench/pages.py", "--prepare", "--recovered", str(recovered)).stdout)
        with granian("dashboard.wsgi:application", environment, "/healthz") as port:
            pages = {name: Page(port, path, known["cookie"]) for name, path in known["pages"].items()}
            yield pages, {"database_mb": known["database_mb"], "states": known["states"]}
    finally:
        engine.stop()


@contextlib.contextmanager
def granian(application: str, environment: dict[str, str], path: str) -> Iterator[int]:
    """The web server as `up` starts it, on a free port, until the block ends."""
    from dashboard.engine import die_with_parent, free_port

    port = free_port()
    command = [sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--blocking-threads", str(WEB_THREADS), "--log-level", "warning", application]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=die_with_parent)
    try:
        ends = time.monotonic() + READY_WITHIN_S
        while True:
            if server.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"{application} did not come up on port {port}.")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def prepare(recovered: float) -> None:
    """In the desk's environment: a session, and the addresses of its largest group and of a failure in it."""
    import django

    django.setup()
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore
    from django.db import connection
    from django.db.models import Count, Sum

    from jobs_admin.models import Failure, FailureCount, Group

    if recovered:
        # The oldest ones: then the newest page must not walk through them, nor the default scope sort them.
        ids = list(Failure.objects.order_by("id").values_list("id", flat=True))
        Failure.objects.filter(pk__lte=ids[int(len(ids) * recovered) - 1]).update(state="recovered")
    user = get_user_model().objects.create_superuser("bench")
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.save()
    group = Group.objects.annotate(n=Count("failures")).order_by("-n").first()
    failure = Failure.objects.filter(group=group).order_by("-id").first()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA optimize")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    print(
        json.dumps(
            {
                "cookie": f"{settings.SESSION_COOKIE_NAME}={session.session_key}",
                "pages": {
                    "failures": "/failures/",
                    "failures of a queue": "/failures/?q=queue%3Awebhooks",
                    "failures by word": "/failures/?q=refused",
                    "groups": "/groups/",
                    "group": f"/groups/{group.fingerprint}/",
                    "failure": f"/failures/{failure.pk}/",
                    "overview": "/",
                },
                "states": dict(FailureCount.objects.values_list("state").annotate(n=Sum("count"))),
                "database_mb": round(Path(settings.DATABASES["default"]["NAME"]).stat().st_size / 1e6),
            }
        )
    )


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


if __name__ == "__main__":
    main()
