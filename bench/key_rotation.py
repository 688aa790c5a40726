"""A rotation of the payload keys beside writers: how long it takes, and how long anybody's write takes meanwhile.

    python -m bench.key_rotation --rows 100000 [--postgresql] [--large 16]

Fills a desk with messages under an old key, then re-encrypts them as `manage.py rotate-keys` does, while one process files
reports and another writes a row at a time, as a click does. `--large`: MB of one message among them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from cryptography.fernet import Fernet

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

_FILL = """
now = timezone.now()
bury({rows})
if {large}:
    raw = os.urandom({large} * 2**20)
    failure = Failure.objects.create(source="shop", queue="emails", first_job_id="large", job_id="large", state="dead", task="ok",
        kind="exception", first_failed_at=now, failed_at=now, received_at=now)
    body, digest = config.payload_keys().encrypt(raw), hashlib.sha256(raw).hexdigest()
    Payload.objects.create(failure=failure, run=1, body=body, size=len(raw), sha256=digest)
say(os.path.getsize({file!r}) if {file!r} and os.path.exists({file!r}) else 0)
"""
_WRITES = """
from jobs_admin import ingest
from jobs_admin.core.envelope import Envelope, encode
took, n = [], 0
while not os.path.exists({stop!r}):
    if {reports}:
        batch = []
        for m in range(100):
            raw = message(10**7 + n * 100 + m)
            told = Envelope("shop", "emails", "ok", f"w{{n * 100 + m}}", "exception", 1, at=time.time(), raw=raw, raw_size=len(raw))
            batch.append((f"{{n}}-{{m + 1}}".encode(), encode(told)))
        began = time.monotonic()
        ingest.file(batch)
    else:
        began = time.monotonic()
        Failure.objects.filter(pk=1 + n % {rows}).update(tenant=str(n))
    took.append(time.monotonic() - began)
    n += 1
    time.sleep(0.02)
took.sort()
say({{"writes": n, "median_ms": round(took[len(took) // 2] * 1000, 1), "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 1),
      "longest_ms": round(took[-1] * 1000, 1)}})
"""
_ROTATE = """
from jobs_admin.desk import key_rotation
longest, steps = 0.0, 0
pace = key_rotation.ManyRows._pace
def noted(column, took_s):
    global longest, steps
    longest, steps = max(longest, took_s), steps + 1
    pace(column, took_s)
key_rotation.ManyRows._pace = noted
began = time.monotonic()
while key_rotation.step(): pass
say({"seconds": round(time.monotonic() - began, 1), "transactions": steps, "longest_ms": round(longest * 1000, 1),
     "remaining": key_rotation.rotation(timezone.now()).remaining})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=16, help="MB of one message; 0: none")
    parser.add_argument("--postgresql", action="store_true")
    chosen = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    os.environ.setdefault("SECRET_KEY", "x" * 60)
    os.environ.setdefault("REDRIVE_PAYLOAD_KEYS", Fernet.generate_key().decode())
    import django

    django.setup()
    from dashboard.setup.engine import Engine
    from tests.kit import postgresql_server
    from tests.kit.desks import Desk

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-rotation-")))
        engine = Engine(folder / "engine").start()
        stack.callback(engine.stop)
        desk = Desk(folder, engine.url)
        file = "" if chosen.postgresql else str(folder / "desk.sqlite3")
        desk.environment["DATABASE_URL"] = (
            stack.enter_context(postgresql_server.running()) if chosen.postgresql else f"sqlite:///{file}"
        )
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=desk.environment, check=True)
        size = desk.run(_FILL.format(rows=chosen.rows, large=chosen.large, file=file), deadline_s=1200)
        found = {"rows": chosen.rows, "file_mb": round(size / 2**20), "determined": desk.run(_ROTATE, deadline_s=1800)}
        desk.environment["REDRIVE_PAYLOAD_KEYS"] = (
            f"{Fernet.generate_key().decode()},{desk.environment['REDRIVE_PAYLOAD_KEYS']}"
        )
        stop = folder / "stop"
        writers = {
            name: desk.start(_WRITES.format(stop=str(stop), reports=name == "reports", rows=chosen.rows))
            for name in ("reports", "rows")
        }
        time.sleep(3)
        try:
            found["rotated"] = desk.run(_ROTATE, deadline_s=1800)
        finally:
            stop.touch()
            found |= {f"writes of {name}": json.loads(one.communicate()[0]) for name, one in writers.items()}
        found["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
