"""Secrets in failing jobs of a real worker, searched for in every place where the desk shows something.

    python -m bench.canaries [first_set] [--json]

Each canary of `tests/canaries/` fails a job of a Celery worker, on a queue of its own; one that is a text is also sent as an
argument of another job. A whole desk files them (watch, web server, SQLite), an alert rule for each queue notifies a receiver
over HTTP, and each sink is read: SINKS. A canary counts as shown if its secret, or either half of one of 16 characters or
more, is in any of them. Prints what is shown and where.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import redis

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dashboard.setup.engine import die_with_parent, free_port  # noqa: E402
from tests.canaries.jobs import IN_MESSAGE, needles, read_set  # noqa: E402
from tests.kit.celery import RealWorker  # noqa: E402
from tests.rigs.empty_desk import served_desk  # noqa: E402

SINKS = (
    "store", "database", "search", "failure page", "lists and titles", "API", "exports", "webhook", "Django admin", "logs",
    "terminal", "facets, palette, completions", "metrics",
)  # fmt: skip
WITHIN_S = 400
_REFUSED = {"place": "kwargs", "text": {}}  # how a job fails whose secret is an argument: its error tells nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="?", default="first_set")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    canaries = read_set(chosen.name)
    with tempfile.TemporaryDirectory(prefix="redrive-canaries-") as folder:
        shown, read = run(canaries, Path(folder))
    if chosen.json:
        print(json.dumps({"canaries": len(canaries), "shown": shown, "read": read}, ensure_ascii=False, indent=1))
        return
    for label, places in shown.items():
        print(f"{label}: {', '.join(places)}")
    by_sink = {sink: sum(sink in places for places in shown.values()) for sink in SINKS}
    print(f"{len(shown)} of {len(canaries)} canaries are shown; by sink: {by_sink}")
    print(f"characters read in each sink: {read}")


def run(canaries: list[dict[str, Any]], folder: Path) -> tuple[dict[str, list[str]], dict[str, int]]:
    """The sinks that show each canary, by label, and the number of characters read in each sink."""
    texts: dict[str, list[str]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        store, broker = served_desk(stack, folder)
        collect = [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity", "0"]
        subprocess.run(collect, cwd=ROOT, check=True)
        receiver = Receiver()
        threading.Thread(target=receiver.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(receiver.shutdown)
        session, token = _watched_by(receiver, canaries)
        data = folder / "canaries.json"
        data.write_text(json.dumps([*canaries, _REFUSED]))
        queues = [f"c{n}" for n in range(len(canaries))]
        worker = RealWorker(
            broker.url,
            store.url,
            queues=",".join([*queues, "noted"]),
            environment={"CANARIES": str(data), "REAL_SOURCE": "celery", "PYTHONWARNINGS": "ignore"},
            app="tests.canaries.jobs:app",
        )
        stack.callback(worker.stop)
        worker.start()
        sent = _send(worker, canaries)
        with redis.Redis.from_url(store.url) as reports:
            entries = _entries(reports, sent)
            texts["store"] += [_readable(fields) for _, fields in entries]
            texts["store"] += [repr(reports.hgetall(key)) for key in reports.scan_iter(_type="HASH")]
        watch = stack.enter_context(_process("watch", folder, [sys.executable, "manage.py", "watch"]))
        port = free_port()
        web = stack.enter_context(_process("web", folder, _server(port), _web_environment()))
        _wait(
            lambda: httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200, "the web server"
        )
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        for name, value in session.items():
            client.cookies.set(name, value, domain="127.0.0.1", path="/")
        api = httpx.Client(
            base_url=client.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )
        _wait(
            lambda: api.get("/api/failures", params={"q": "state:any"}).json()["count"] == len(sent),
            "all failures to be filed",
        )
        reported = {f"c{n}" for n, canary in enumerate(canaries) if canary["place"] != "retry"}
        _wait(lambda: reported <= receiver.queues(), "an alert for each queue", may_fail=True)
        print(f"alerts received for {len(reported & receiver.queues())} of {len(reported)} queues", file=sys.stderr)
        try:
            _read(client, api, texts, canaries)
        except SystemExit:  # the folder is removed: the traceback of a 500 is only in the log
            print((folder / "web.log").read_text(errors="replace")[-20_000:], file=sys.stderr)
            raise
        texts["webhook"] += receiver.bodies
        for arguments in (["failures", "state:any", "--limit", "1000"], ["failures", "state:any", "--json", "--limit", "1000"],
                          ["replays", "list"], ["audit", "verify"], ["workers", "gone"],
                          ["replay", "state:any", "--dry-run"], ["doctor"]):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "manage.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
            )
            texts["terminal"] += [done.stdout, done.stderr]
        texts["database"] += _database()
        for process in (watch, web):
            process.terminate()
        texts["logs"] += [
            path.read_text(errors="replace") for path in (folder / "watch.log", folder / "web.log", worker.log)
        ]
    found: dict[str, list[str]] = {}
    contents = {sink: "\n".join(texts[sink]).lower() for sink in SINKS}
    for canary in canaries:
        # A half that is a word may be in the text of another canary.
        full_secret, *halves = needles(canary)
        found_by = [full_secret, *(half for half in halves if not half.strip("-_.#*! ").isalpha())]
        parts = [part for needle in found_by for part in spellings(needle)]
        places = [sink for sink in SINKS if any(part in contents[sink] for part in parts)]
        if places:
            found[canary["label"]] = places
    return found, {sink: len(text) for sink, text in contents.items()}


def spellings(text: str) -> set[str]:
    """The text as pages, JSON, CSV and URLs write it, in lower case as the search index does."""
    from django.utils.html import escape

    found = {
        text,
        escape(text),
        json.dumps(text)[1:-1],
        quote(text, safe=""),
        quote_plus(text),
        text.replace('"', '""'),
    }
    return {one.lower() for one in found | {escape(json.dumps(text)[1:-1])}}


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.bodies: list[str] = []

    def queues(self) -> set[str]:
        return {json.loads(body)["data"].get("queue") for body in self.bodies}


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def _watched_by(receiver: Receiver, canaries: list[dict[str, Any]]) -> tuple[dict[str, str], str]:
    """An alert rule for the queue of each canary. Returns an admin's cookies and API token."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    from demo.pager import new_secret
    from jobs_admin import alerts, notices
    from jobs_admin.management.commands.token import create
    from jobs_admin.models import Role, Rule
    from jobs_admin.models.access import ENGINE

    Rule.objects.all().delete()
    url = f"http://127.0.0.1:{receiver.server_address[1]}/"
    notices.save_channel(ENGINE, {"name": "receiver", "kind": "webhook", "url": url, "secret": new_secret()})
    for n in range(len(canaries)):
        rule = {
            "name": f"c{n}",
            "metric": "dead",
            "queue": f"c{n}",
            "threshold": 0,
            "for_s": 1,
            "channels": ["receiver"],
        }
        alerts.save_rule(ENGINE, rule)
    user = get_user_model().objects.create_superuser("ann", password=secrets.token_urlsafe(12))
    Role.objects.create(user=user, source="*", role="admin")
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "dashboard.web.second_step.Passwords"
    session.save()
    csrf = secrets.token_hex(16)
    return {"sessionid": session.session_key, "csrftoken": csrf}, create("reader", "admin")


def _send(worker: RealWorker, canaries: list[dict[str, Any]]) -> set[str]:
    sent = set()
    for n, canary in enumerate(canaries):
        text, options = canary["text"], {"queue": f"c{n}", "args": [n]}
        if canary["place"] == "args":
            options["args"] = [n, *text]
        elif canary["place"] in {"kwargs", "headers"}:
            options[canary["place"]] = text
        sent.add(worker.app.send_task("canary", **options).id)
        if canary["place"] in IN_MESSAGE and canary["place"] != "source":
            sent.add(worker.app.send_task("canary", args=[len(canaries)], kwargs={"note": text}, queue="noted").id)
    return sent


def _entries(reports: redis.Redis, sent: set[str]) -> list[Any]:
    from jobs_admin.core import keys
    from jobs_admin.core.envelope import decode

    def all_there() -> bool:
        return sent <= {decode(fields).job_id for _, fields in reports.xrange(keys.failures("celery"))}

    _wait(all_there, "all reports")
    return reports.xrange(keys.failures("celery"))


def _readable(fields: dict[bytes, bytes]) -> str:
    """All fields of an entry but the raw message, which a replay sends."""
    return " ".join(value.decode("utf-8", "replace") for name, value in fields.items() if name != b"raw")


def _read(client: httpx.Client, api: httpx.Client, texts: dict[str, list[str]], canaries: list[dict[str, Any]]) -> None:
    from django.urls import reverse

    from jobs_admin.models import Alert, Failure

    def see(sink: str, path: str, who: httpx.Client = client, **query: Any) -> None:
        answer = who.get(path, params=query)
        if answer.status_code not in {200, 302, 404, 409}:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
        texts[sink].append(answer.text)

    groups = set()
    for failure in Failure.objects.select_related("group"):
        for name in ("failure-detail", "failure-attempts", "failure-related", "failure-edit"):
            see("failure page", reverse(f"redrive:{name}", args=[failure.pk]))
        for part in ("args", "kwargs", "headers"):
            see("failure page", reverse("redrive:failure-opened", args=[failure.pk]), at=part)
        for form in ("python", "json", "traceback"):
            see("exports", reverse("redrive:failure-text", args=[failure.pk, form]))
        see("API", f"/api/failures/{failure.pk}", api)
        see("Django admin", reverse("admin:jobs_admin_failure_change", args=[failure.pk]))
        groups.add(failure.group.fingerprint)
    for fingerprint in groups:
        for name in ("group-detail", "group-story", "group-why"):
            see("lists and titles", reverse(f"redrive:{name}", args=[fingerprint]))
    for n in range(len(canaries)):
        see("lists and titles", reverse("redrive:failure-list"), q=f"queue:c{n} state:any")
        see("lists and titles", reverse("redrive:queue-detail", args=["celery", f"c{n}"]))
        see("lists and titles", reverse("redrive:replay-new"), q=f"queue:c{n} state:any")
        see("facets, palette, completions", reverse("redrive:failure-facets"), q=f"queue:c{n} state:any")
        see("facets, palette, completions", reverse("redrive:palette"), q=f"c{n}")
    for name in ("overview", "group-list", "quarantine-list", "queue-list", "incident", "audit-list", "alert-list",
                 "delivery-list", "replay-list", "reschedule-list"):  # fmt: skip
        see("lists and titles", reverse(f"redrive:{name}"))
    for pk in Alert.objects.values_list("pk", flat=True):
        see("lists and titles", reverse("redrive:alert-detail", args=[pk]))
    for form in ("markdown", "json"):
        see("exports", reverse("redrive:incident-text", args=[form]))
    for name in ("failure", "group", "attempt", "alert", "delivery"):
        with contextlib.suppress(Exception):
            see("Django admin", reverse(f"admin:jobs_admin_{name}_changelist"), all="1")
    for word in sorted({canary.get("shown") or canary["secret"] for canary in canaries}):
        # What the desk says of a search repeats the words of the search: only its hits count.
        hits = api.get("/api/failures", params={"q": 'state:any "' + word.replace('"', '\\"') + '"'})
        if hits.status_code == 200 and hits.json()["count"] and '"' not in word:
            texts["search"].append(f"found: {word}")
        completions = client.get(reverse("redrive:failure-complete"), params={"q": word[:4]}).text
        texts["facets, palette, completions"].append(completions)
    for field in ("kwargs.", "message:", "args.0:", "headers.", "error:", "tenant:"):
        see("facets, palette, completions", reverse("redrive:failure-complete"), q=field)
    for path in (
        "failures?q=state:any&limit=500",
        "groups?limit=500",
        "queues",
        "audit",
        "incident",
        "alerts",
        "retries",
    ):
        see("API", f"/api/{path}", api) if "?" not in path else texts["API"].append(api.get(f"/api/{path}").text)
    for form in ("jsonl", "csv"):
        token = client.cookies["csrftoken"]
        answer = client.post(
            reverse("redrive:failure-export", args=[form]), data={"q": "state:any", "csrfmiddlewaretoken": token}
        )
        if answer.status_code != 200:
            raise SystemExit(f"export {form}: {answer.status_code}")
        texts["exports"].append(answer.text)
    see("metrics", "/metrics", api)


def _database() -> list[str]:
    from django.db import connection

    rows = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')
            rows += [
                " ".join(str(value) for value in row if not isinstance(value, bytes | memoryview))
                for row in cursor.fetchall()
            ]
    return [*rows, connection.connection.serialize().decode("utf-8", "replace")]


@contextlib.contextmanager
def _process(name: str, folder: Path, command: list[str], more: dict[str, str] | None = None) -> Iterator[Any]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(more or {})}, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def _server(port: int) -> list[str]:
    from dashboard.web.server import server

    return [sys.executable, *server(port)]


def _web_environment() -> dict[str, str]:
    from dashboard.web.server import ENVIRONMENT

    return dict(ENVIRONMENT)


def _wait(reached: Any, what: str, *, may_fail: bool = False) -> None:
    ends = time.monotonic() + WITHIN_S
    while time.monotonic() < ends:
        with contextlib.suppress(httpx.TransportError, KeyError):
            if reached():
                return
        time.sleep(0.3)
    if not may_fail:
        raise SystemExit(f"waited {WITHIN_S} s for {what}")


if __name__ == "__main__":
    main()
