"""A desk in processes of its own, that can be killed: its database in a file (or the PostgreSQL of the tests)."""

from __future__ import annotations

import json
import os
import subprocess
import weakref
from pathlib import Path

from cryptography.fernet import Fernet
from django.db import connection

from tests.kit import migrated
from tests.kit.forked import Forked, Forker

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import json, os, sys, time, base64, hashlib
import django; django.setup()
from jobs_admin import config, replays
from jobs_admin.core.refused import Refused
from jobs_admin.models import *
from jobs_admin.models.access import OPERATOR, Viewer
from django.utils import timezone
ANN = Viewer("ann", {"*": OPERATOR})
def say(answer): print(json.dumps(answer), flush=True)
"""

BURY = """
def message(n, task="ok", arguments=None):
    # As Celery 5.7 writes it, in its order.
    body = base64.b64encode(json.dumps([[n] if arguments is None else arguments, {},
        {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()).decode()
    return json.dumps({"body": body, "content-encoding": "utf-8", "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": f"j{n}", "shadow": None, "eta": None, "expires": None, "group": None,
                    "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": f"j{n}", "parent_id": None,
                    "argsrepr": f"[{n}]", "kwargsrepr": "{}", "origin": "gen1@desk", "ignore_result": None,
                    "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {}},
        "properties": {"correlation_id": f"j{n}", "reply_to": "7066f683-2129-3716-b85f-2be07f56732f", "delivery_mode": 2,
                       "delivery_info": {"exchange": "", "routing_key": "emails"}, "priority": 0, "body_encoding": "base64",
                       "delivery_tag": f"t{n}"}}).encode()

def bury(count, task="ok", arguments=lambda n: [n], tenant=lambda n: ""):
    now = timezone.now()
    first = Failure.objects.count()
    numbers = range(first, first + count)
    for start in range(first, first + count, 1000):
        part = numbers[start - first:start - first + 1000]
        Failure.objects.bulk_create([Failure(source="shop", queue="emails", first_job_id=f"j{n}", job_id=f"j{n}", state="dead",
            task=task, kind="exception", tenant=tenant(n), first_failed_at=now, failed_at=now, received_at=now) for n in part])
        keys = config.payload_keys()
        rows = []
        for pk, job_id in Failure.objects.order_by("-pk").values_list("pk", "first_job_id")[:len(part)]:
            raw = message(int(job_id[1:]), task, arguments(int(job_id[1:])))
            rows.append(Payload(failure_id=pk, run=1, body=keys.encrypt(raw), size=len(raw), sha256=hashlib.sha256(raw).hexdigest()))
        Payload.objects.bulk_create(rows)
"""

SENDER = """
while True:
    replays.create_items()
    if not replays.send("sender"):
        if not Replay.objects.filter(state="running", planned__gt=0).exists(): break
        time.sleep(0.1)
"""


# Forks for each code that it is told, where the imports have ended: they take two seconds of a processor.
_FORKS = """
from django.db import connections
from tests.kit import forked

def run(asked):
    for number, place in enumerate(asked["output"], start=1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    try:
        exec(asked["code"], globals())
    finally:
        connections.close_all()
forked.serve(int(sys.argv[1]), run)
"""


class Desk:
    def __init__(self, folder: Path, broker_url: str) -> None:
        if connection.vendor == "postgresql":
            s = connection.settings_dict
            url = f"postgresql://{s['USER']}:{s['PASSWORD']}@{s['HOST']}:{s['PORT']}/{s['NAME']}"
        else:
            url = f"sqlite:///{folder / 'desk.sqlite3'}"
        self.environment = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "REDRIVE_DEMO_BROKER_URL": broker_url,  # the source `shop`
            "REDRIVE_REDIS_URL": broker_url,
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
        }
        if connection.vendor == "sqlite":
            migrated.into(folder, "desk.sqlite3")
        self._folder = folder
        self._forks: Forker | None = None
        self._forks_know: dict[str, str] = {}
        self._started = 0

    def run(self, code: str, deadline_s: float = 180):
        """The last output of the code, from a process of its own."""
        outputs = [self._folder / f"said.{number}" for number in (1, 2)]
        for file in outputs:
            file.unlink(missing_ok=True)
        process = self._fork(code, *outputs)
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TimeoutError(f"not done in {deadline_s:g} s: {code}") from None
        out, error = (file.read_text() for file in outputs)
        assert status == 0, error[-3000:]
        return json.loads(out.splitlines()[-1]) if out.strip() else None

    def start(self, code: str, log: Path | None = None) -> Forked:
        """The process that runs the code. Its output is to be read, or in `log`."""
        if log is not None:
            return self._fork(code, log, log)
        self._started += 1
        pipe = self._folder / f"pipe.{self._started}"
        os.mkfifo(pipe, 0o600)
        process = self._fork(code, pipe)
        process.stdout = pipe.open()
        return process

    def _fork(self, code: str, *output: Path) -> Forked:
        if self._forks is None or self._forks_know != self.environment:
            self._forks_know = dict(self.environment)
            self._forks = Forker(["-c", BEGIN + BURY + _FORKS], self.environment)
            weakref.finalize(self, self._forks.stop)
        return self._forks.start({"code": code, "output": [str(file) for file in output]})
