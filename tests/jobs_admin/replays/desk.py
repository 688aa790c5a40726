"""A desk in processes of its own, that can be killed: its database in a file (or the PostgreSQL of the tests)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cryptography.fernet import Fernet
from django.db import connection

ROOT = Path(__file__).resolve().parents[3]

_BEGIN = """
import json, os, sys, time, base64, hashlib
import django; django.setup()
from jobs_admin import config, replays
from jobs_admin.models import *
from jobs_admin.models.access import OPERATOR, Viewer
from django.utils import timezone
ANN = Viewer("ann", {"*": OPERATOR})
def say(answer): print(json.dumps(answer), flush=True)
"""

BURY = """
def message(n):
    body = base64.b64encode(json.dumps([[n], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()).decode()
    return json.dumps({"body": body, "content-type": "application/json", "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": "ok", "id": f"j{n}", "retries": 0, "eta": None, "expires": None, "root_id": f"j{n}",
                    "parent_id": None, "group": None, "timelimit": [None, None], "argsrepr": "()", "kwargsrepr": "{}"},
        "properties": {"correlation_id": f"j{n}", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
                       "delivery_tag": f"t{n}", "delivery_info": {"exchange": "", "routing_key": "emails"}}}).encode()

def bury(count):
    now = timezone.now()
    Failure.objects.bulk_create([Failure(source="shop", queue="emails", first_job_id=f"j{n}", job_id=f"j{n}", state="dead",
        task="ok", kind="exception", first_failed_at=now, failed_at=now, received_at=now) for n in range(count)], batch_size=1000)
    keys = config.payload_keys()
    rows = []
    for pk, job_id in Failure.objects.values_list("pk", "first_job_id"):
        raw = message(int(job_id[1:]))
        rows.append(Payload(failure_id=pk, run=1, body=keys.encrypt(raw), size=len(raw), sha256=hashlib.sha256(raw).hexdigest()))
    Payload.objects.bulk_create(rows, batch_size=1000)
"""

SENDER = """
while True:
    if not replays.send("sender"):
        if not Replay.objects.filter(state="running", planned__gt=0).exists(): break
        time.sleep(0.1)
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
            self._done([sys.executable, "manage.py", "migrate", "-v0"])

    def run(self, code: str):
        """What the code says, from a process of its own."""
        out = self._done([sys.executable, "-c", _BEGIN + BURY + code])
        return json.loads(out.splitlines()[-1]) if out.strip() else None

    def start(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _BEGIN + BURY + code],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _done(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout
