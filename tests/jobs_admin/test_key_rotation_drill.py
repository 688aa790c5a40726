"""A rotation on a real desk: under writes, killed in the middle, the old key taken out, and every job replayed byte for byte."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import psycopg
import pytest
import redis
from cryptography.fernet import Fernet

from tests.kit import migrated, postgresql_server
from tests.kit.desks import ROOT, SENDER, Desk
from tests.kit.endurance import times

pytestmark = [
    pytest.mark.server,
    pytest.mark.django_db(transaction=True),
    pytest.mark.long("Kills and stops a rotation on a desk of its own, and replays every job of it."),
]

JOBS = times(2_500, 4_000)

# Reports arrive while rows are re-encrypted; half of them are new attempts of jobs that are known, so their row is replaced.
WRITER = """
from jobs_admin import ingest
from jobs_admin.core.envelope import Envelope, encode
n = 0
while not os.path.exists({stop!r}):
    batch = []
    for job in ("new", "again"):
        for m in range(5):
            number = {jobs} + 10_000 + n * 5 + m if job == "new" else (n * 37 + m) % {jobs}
            raw = message(number)
            batch.append((f"{{n}}-{{len(batch) + 1}}".encode(), encode(Envelope("shop", "emails", "ok", f"j{{number}}", "exception",
                n + 2, at=time.time(), raw=raw, raw_size=len(raw), raw_sha256=hashlib.sha256(raw).hexdigest()))))
    ingest.file(batch)
    n += 1
say(n)
"""
STATUS = """
from jobs_admin.desk import key_rotation
rotation = key_rotation.rotation(timezone.now())
say({"ids": [use.id for use in rotation.uses], "rows": [use.rows for use in rotation.uses], "remaining": rotation.remaining})
"""
# Every value of every table that is a Fernet token, and how many of them the keys that are configured do not open.
TOKENS = """
from cryptography.fernet import InvalidToken
from django.apps import apps
keys, found, closed = config.payload_keys(), {}, {}
def look(value, place):
    if isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value: look(one, place)
        return
    token = bytes(value) if isinstance(value, (bytes, memoryview)) else value.encode() if isinstance(value, str) else b""
    if token.startswith(b"gAAAAA"):
        found[place] = found.get(place, 0) + 1
        try: keys.decrypt(token)
        except InvalidToken: closed[place] = closed.get(place, 0) + 1
for model in apps.get_models():
    for field in model._meta.concrete_fields:
        if field.get_internal_type() in ("BinaryField", "TextField", "CharField", "JSONField"):
            for value in model._base_manager.values_list(field.attname, flat=True).iterator(): look(value, f"{model.__name__}.{field.name}")
wrong = sum(hashlib.sha256(keys.decrypt(bytes(b))).hexdigest() != s for b, s in Payload.objects.values_list("body", "sha256"))
say({"found": found, "closed": closed, "wrong": wrong, "failures": Failure.objects.count()})
"""
# `rotate-keys` in many short transactions, so that a signal arrives between the first and the last.
ROTATE = """
import django; django.setup()
from django.core.management import execute_from_command_line
from jobs_admin.desk import key_rotation
key_rotation._MOST_ROWS = 20
execute_from_command_line(["manage.py", "rotate_keys"])
"""
REPLAY = """
replay = replays.start(ANN, replays.draft(ANN, query="queue:emails", pace={"style": "at_once"}, reason="the old key is gone"))
say(replay.total)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def desk(request, tmp_path, engine, monkeypatch):
    client = redis.Redis.from_url(engine.url)
    client.flushall()
    with ExitStack() as stack:
        found = Desk(tmp_path, engine.url)
        if request.param == "postgresql":
            found.environment["DATABASE_URL"] = stack.enter_context(postgresql_server.running())
            command(found, "migrate", "-v0")
        else:
            found.environment["DATABASE_URL"] = f"sqlite:///{tmp_path / 'desk.sqlite3'}"
            migrated.into(tmp_path, "desk.sqlite3")
        found.broker = client
        yield found
        client.close()


def command(desk: Desk, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=desk.environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def start_rotation(desk: Desk) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ROTATE],
        cwd=ROOT, env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def begin_and_end(desk: Desk, number: int) -> str:
    """Start the rotation, send it a signal when it has re-encrypted something, and answer what it printed."""
    older = desk.run(STATUS)["ids"][1]
    with ExitStack() as stack:
        left = rows_under(older, desk.environment["DATABASE_URL"], stack)
        process = start_rotation(desk)
        assert " rows remain: " in process.stdout.readline()
        before = left() - 100  # beyond what reports that arrive meanwhile bring under the new key
        ends = time.monotonic() + 120
        while left() >= before and process.poll() is None and time.monotonic() < ends:
            time.sleep(0.001)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, number)
        printed = process.communicate(timeout=60)[0]
        assert left() > 0
    return printed


def rows_under(key: str, url: str, stack: ExitStack) -> Callable[[], int]:
    """Count the messages under a key, asked fast enough to kill a process in the middle."""
    if url.startswith("sqlite"):
        opened = stack.enter_context(closing(sqlite3.connect(url.removeprefix("sqlite:///"))))
    else:
        opened = stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
    question = f"SELECT count(*) FROM jobs_admin_payload WHERE payload_key = '{key}'"
    return lambda: opened.execute(question).fetchone()[0]


def test_a_rotation_that_is_killed_under_writes_loses_no_job(desk, tmp_path):
    desk.run(f"bury({JOBS}); say(1)")
    command(desk, "rotate-keys")
    old, new = desk.environment["REDRIVE_PAYLOAD_KEYS"], Fernet.generate_key().decode()
    desk.environment["REDRIVE_PAYLOAD_KEYS"] = f"{new},{old}"
    stop = tmp_path / "stop"
    writer = desk.start(WRITER.format(stop=str(stop), jobs=JOBS))
    try:
        begin_and_end(desk, signal.SIGKILL)
        first, older = desk.run(STATUS)["ids"]
        assert f"Keep {older} in REDRIVE_PAYLOAD_KEYS: " in command(desk, "rotate-keys", "--status")
        printed = begin_and_end(desk, signal.SIGTERM)
        assert "Stopped. " in printed and f" under {older}. `watch` and the next run continue." in printed
        assert f"{older} can be removed from REDRIVE_PAYLOAD_KEYS." in command(desk, "rotate-keys")
    finally:
        stop.touch()
        rounds = json.loads(writer.communicate(timeout=120)[0])
    assert rounds > 3 and writer.returncode == 0
    desk.environment["REDRIVE_PAYLOAD_KEYS"] = new
    counts = desk.run(TOKENS)
    assert counts["failures"] == JOBS + 5 * rounds and counts["found"] == {"Payload.body": counts["failures"]}
    assert (counts["closed"], counts["wrong"]) == ({}, 0)
    assert desk.run(STATUS)["ids"] == [first]
    assert desk.run(REPLAY) == counts["failures"]
    assert desk.start(SENDER).wait(180) == 0
    sent = [json.loads(one) for one in desk.broker.lrange("emails", 0, -1)]
    expected = desk.run(
        "say({f'j{n}': json.loads(message(n))['body'] for n in map(int, (i[1:] for i in Failure.objects.values_list('first_job_id', flat=True)))})"
    )
    assert len(sent) == counts["failures"]
    assert {one["headers"]["root_id"]: one["body"] for one in sent} == expected
