"""From a job that dies in a real worker to the signed POST at a receiver that verifies it.

    python -m bench.alert_path [--queues 120] [--over 240] [--for 5]

A desk of its own (SQLite, Valkey, `manage.py watch` with all its steps), a Celery worker, a receiver on loopback that checks each
request with the Standard Webhooks library, and a rule for each queue: more than 0 dead for `--for` seconds. One job dies on each queue,
at a random moment within `--over` seconds. Counted is from the error in the worker, plus `--for`, until the POST about this queue has
been verified. (Under one rule for all of them most would join the notice of a moment ago, and a notice is sent once a minute.) Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from demo.pager import new_secret
from tests.kit.celery import RealWorker
from tests.rigs.empty_desk import desk
from tests.rigs.figures import spread

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0


class Receiver(ThreadingHTTPServer):
    """The time at which each queue was first reported as firing, and the ids that came."""

    daemon_threads = True

    def __init__(self, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.webhook = Webhook(secret)
        self.told: dict[str, float] = {}
        self.ids: list[str] = []
        self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event = self.server.webhook.verify(body, dict(self.headers))
        except Exception:  # whatever it is, it was not the desk's
            self.server.refused += 1
            self.send_error(401)
            return
        now = time.time()
        if event["type"] == "alert.firing":
            self.server.ids.append(self.headers["webhook-id"])
            self.server.told.setdefault(event["data"]["queue"], now)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=120)
    parser.add_argument("--over", type=float, default=240.0, help="seconds within which the jobs die")
    parser.add_argument("--for", type=int, default=5, dest="for_s", help="seconds that the rule waits")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        json.dump(measure(wanted, Path(folder)), sys.stdout, indent=2)
    print()


def measure(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    queues = [f"path-{n}" for n in range(wanted.queues)]
    with contextlib.ExitStack() as stack:

        def started(server: Any) -> Any:
            stack.callback(server.stop)
            return server.start()

        store, broker = started(Engine(folder / "store")), started(Engine(folder / "broker"))
        desk(
            folder,
            REDRIVE_REDIS_URL=store.url,
            CELERY_BROKER_URL=broker.url,
            REDRIVE_WEBHOOK_ALLOW="127.0.0.1",
        )
        secret = new_secret()
        receiver = Receiver(secret)
        threading.Thread(target=receiver.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(receiver.shutdown)
        _rules(receiver.url, secret, wanted.for_s, queues)
        watch = subprocess.Popen([sys.executable, "manage.py", "watch"], cwd=ROOT, env=os.environ)
        stack.callback(watch.wait)
        stack.callback(watch.terminate)
        worker = started(
            RealWorker(broker.url, store.url, queues=",".join(queues), environment={"REAL_SOURCE": "celery"})
        )
        began = time.monotonic()
        for queue, at in sorted(
            zip(queues, (random.uniform(0, wanted.over) for _ in queues), strict=True), key=lambda x: x[1]
        ):
            time.sleep(max(0.0, began + at - time.monotonic()))
            worker.send("fail", queue=queue)
        ends = time.monotonic() + wanted.for_s + PATIENCE_S
        while len(receiver.told) < len(queues) and time.monotonic() < ends:
            time.sleep(0.2)
        died = _died()
    late = [receiver.told[queue] - died[queue] - wanted.for_s for queue in queues if queue in receiver.told]
    return {
        "machine": machine(),
        "versions": versions(),
        "queues": len(queues),
        "told": len(late),
        "not_told": len(queues) - len(late),
        "requests_that_were_not_signed": receiver.refused,
        "ids_that_came_twice": len(receiver.ids) - len(set(receiver.ids)),
        "seconds_from_crossing_and_for_until_the_verified_post": spread(late),
    }


def _rules(url: str, secret: str, for_s: int, queues: list[str]) -> None:
    from jobs_admin import alerts, notices
    from jobs_admin.models import Rule
    from jobs_admin.models.access import ENGINE

    Rule.objects.all().delete()
    notices.save_channel(ENGINE, {"name": "receiver", "kind": "webhook", "url": url, "secret": secret})
    for queue in queues:
        rule = {"name": queue, "metric": "dead", "queue": queue, "threshold": 0, "for_s": for_s}
        alerts.save_rule(ENGINE, {**rule, "channels": ["receiver"]})


def _died() -> dict[str, float]:
    """Return the time at which the job of each queue failed, seconds since 1970, by the worker's clock, which is the
    bench's too.
    """
    from jobs_admin.models import Failure

    return {queue: at.timestamp() for queue, at in Failure.objects.values_list("queue", "failed_at")}


if __name__ == "__main__":
    main()
