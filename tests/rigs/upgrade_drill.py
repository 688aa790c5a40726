"""Upgrade of a desk with failures from an earlier commit to this one and back, while pages are requested and reports arrive."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from dashboard.setup.engine import Engine, die_with_parent
from dashboard.web import server
from tests.kit.installations import ROOT, Installation, hash_rows

# The version before: four migrations fewer (0020), workers write to keys that all sources share.
PIN = "99f91ae348a6"
_EACH_S = 0.05  # between two requests, and between two reports
_COMMAND_S = 3_600  # at most, of a command on a large desk

_REPORTS = """
import signal, sys, time, redis
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, encode
client, n, is_asked = redis.Redis.from_url(sys.argv[1]), 0, False
def stop(*_):  # not between a report and its number
    global is_asked
    is_asked = True
signal.signal(signal.SIGTERM, stop)
while not is_asked:
    now = time.time()
    one = Envelope(source="shop", queue="emails", task="shop.send", job_id=f"drill-{n}", kind="exception", attempt=1, at=now,
                   error_type="TimeoutError", message="too slow", worker="w1", host="h", args="[1]", kwargs="{}", raw=b"{}", raw_size=2)
    client.xadd(keys.failures(), encode(one))
    n += 1
    print(n, flush=True)
    time.sleep(float(sys.argv[2]))
"""


# Rows of the largest table a second, for each kind of statement that `upgrade --check` estimates.
_RATES = """
from django.db import connection
TABLE, IS_SQLITE = "jobs_admin_failure", connection.vendor == "sqlite"
def rebuild():
    if not IS_SQLITE:
        return execute(f"ALTER TABLE {TABLE} ALTER COLUMN redacted TYPE bigint")
    with connection.schema_editor() as editor:
        editor._remake_table(Failure)
def execute(text):
    with connection.cursor() as cursor:
        cursor.execute(text)
def scan():
    if IS_SQLITE:
        return execute(f"UPDATE {TABLE} SET redacted = 0 WHERE redacted < 0")
    execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT probe CHECK (redacted >= 0)")
rows, rates = Failure.objects.count(), {"rows": Failure.objects.count()}
statements = [
    ("scan", scan),
    ("index", lambda: execute(f"CREATE INDEX probe ON {TABLE} (host, received_at)")),
    ("update", lambda: execute(f"UPDATE {TABLE} SET redacted = redacted + 1")),
    ("rebuild", rebuild),
]
for name, run in statements:
    began = time.monotonic()
    run()
    rates[name] = round(rows / (time.monotonic() - began))
say(rates)
"""


class Requests(threading.Thread):
    """A client that requests a page again and again, as a proxy does that waits for its server."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.answered = self.failed = 0
        self.longest_s = 0.0
        self.errors: list[str] = []
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(_EACH_S):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self.url, timeout=120) as answer:  # noqa: S310
                    answer.read()
                self.answered += 1
            except (OSError, urllib.error.URLError) as error:
                self.failed += 1
                self.errors.append(str(error))
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> None:
        self._ends.set()
        self.join()


class Drill:
    """One desk and its two versions. Needs the history of this repository."""

    def __init__(self, folder: Path, failures: int) -> None:
        self.folder, self.failures = folder, failures
        self.old = folder / "old"
        self.engine = Engine(folder / "engine").start()
        self.desk = Installation(folder / "desk", self.engine.url, is_empty=True, REDRIVE_KEEP="ever")
        self.processes: list[subprocess.Popen[str]] = []
        self.listener = server.listen("127.0.0.1", 0)
        self.found: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self._unpack()
        began = time.monotonic()
        self._command(self.old, "bench/fill.py", "--failures", str(self.failures), "--seed", "1")
        self.found["fill_s"] = round(time.monotonic() - began, 1)
        filled = self._count_failures()
        port = self.listener.getsockname()[1]
        self._collect(self.old)
        sent_file = self.folder / "sent"
        reports = self._start(self.old, "-c", _REPORTS, self.engine.url, str(_EACH_S), stdout=sent_file.open("w"))
        pages = self._serve(self.old)
        requests = Requests(f"http://127.0.0.1:{port}/login/")
        requests.start()
        self._steady(requests)
        self.found["check"] = self.desk.run("upgrade", "--check", expect=2, within_s=_COMMAND_S).splitlines()
        requests.longest_s = 0.0
        began = time.monotonic()
        self.found["upgrade"] = self.desk.run("upgrade", within_s=_COMMAND_S).splitlines()
        self.found["upgrade_s"] = round(time.monotonic() - began, 1)
        self.found["during_upgrade"] = {"longest_pause_s": round(requests.longest_s, 2), "failed": requests.failed}
        self._steady(requests)  # the version before, on the tables of this one
        for name, folder in (("to_this_version", ROOT), ("back", self.old)):
            before, requests.longest_s = requests.failed, 0.0
            if folder == self.old:
                self._collect(folder)  # `upgrade` did so for this version
            self._stop(pages)
            pages = self._serve(folder)
            self._steady(requests)
            self.found[name] = {"longest_pause_s": round(requests.longest_s, 2), "failed": requests.failed - before}
        requests.end()
        reports.send_signal(signal.SIGTERM)
        reports.wait()
        sent = int(sent_file.read_text().split()[-1])
        self._wait(lambda: self._filed() >= sent)
        self._stop(pages)
        self.found |= {
            "failures": filled, "failures_lost": filled + self._filed() - self._count_failures(), "requests": requests.answered + requests.failed, "requests_failed": requests.failed,
            "errors": sorted(set(requests.errors))[:3], "reports": sent, "reports_lost": sent - self._filed(),
            "unfiled": self.desk.query("SELECT COUNT(*) FROM jobs_admin_unfiled")[0][0], "miscounted": self._miscounted(),
        }  # fmt: skip
        return self.found

    def back_up_and_restore(self) -> dict[str, Any]:
        """Time of both, and whether each table has the same rows afterwards."""
        self.desk.run("upgrade", "--no-backup", within_s=_COMMAND_S)
        file = self.folder / "backup.zip"
        began = time.monotonic()
        self.desk.run("backup", str(file), within_s=_COMMAND_S)
        backup_s = time.monotonic() - began
        before = hash_rows(self.desk)
        self.desk.query("UPDATE jobs_admin_failure SET message = 'changed after the backup' WHERE id % 100 = 0")
        began = time.monotonic()
        self.desk.run("restore", str(file), "--replace", within_s=_COMMAND_S)
        restore_s = time.monotonic() - began
        after = hash_rows(self.desk)
        return {
            "backup_s": round(backup_s, 1), "restore_s": round(restore_s, 1), "file_mb": round(file.stat().st_size / 1e6, 1),
            "tables": len(before), "rows": sum(rows for rows, _ in before.values()),
            "tables_that_differ": sorted(name for name in before if before[name] != after.get(name)),
        }  # fmt: skip

    def measure_rates(self) -> dict[str, int]:
        """Rows a second of each kind of statement. Spoils the desk: SQLite drops the triggers of a table that is rebuilt."""
        return self.desk.read(_RATES, within_s=_COMMAND_S)

    def stop(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it forked
            process.wait()
        self.listener.close()
        self.engine.stop()

    def _unpack(self) -> None:
        archive = subprocess.run(["git", "archive", PIN], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(self.old, filter="data")

    def _environment(self, folder: Path) -> dict[str, str]:
        named = {name: value for name, value in self.desk.variables.items() if value}
        return {**named, **server.ENVIRONMENT, "PYTHONPATH": str(folder)}

    def _start(self, folder: Path, *arguments: str, **pipes: Any) -> subprocess.Popen[str]:
        log = (self.folder / "log").open("a")
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=self._environment(folder), text=True, stdin=subprocess.DEVNULL,
            stderr=log, preexec_fn=die_with_parent, process_group=0, **{"stdout": log, **pipes},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def _command(self, folder: Path, *arguments: str) -> None:
        process = self._start(folder, *arguments)
        assert process.wait() == 0, (self.folder / "log").read_text()[-3000:]

    def _collect(self, folder: Path) -> None:
        self._command(folder, "-m", "django", "collectstatic", "--noinput", "-v0")

    def _serve(self, folder: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Web on the listening socket, which stays open meanwhile, and `watch`."""
        number = self.listener.fileno()
        web = self._start(folder, "-m", "dashboard.web", str(number), pass_fds=(number,))
        return web, self._start(folder, "-m", "django", "watch")

    def _stop(self, pages: tuple[subprocess.Popen[str], ...]) -> None:
        for process in pages:
            process.send_signal(signal.SIGTERM)
        for process in pages:
            process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _steady(self, requests: Requests) -> None:
        """Wait until some requests were answered and some more reports were filed."""
        answered, filed = requests.answered + 20, self._filed() + 20
        self._wait(lambda: requests.answered >= answered and self._filed() >= filed)

    def _wait(self, is_so: Any) -> None:
        ends = time.monotonic() + 300
        while not is_so():
            assert time.monotonic() < ends, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.2)

    def _filed(self) -> int:
        # A range of the unique index.
        mine = "source = 'shop' AND queue = 'emails' AND first_job_id >= 'drill-' AND first_job_id < 'drill.'"
        return int(self.desk.query(f"SELECT COUNT(*) FROM jobs_admin_failure WHERE {mine}")[0][0])

    def _count_failures(self) -> int:
        return int(self.desk.query("SELECT COUNT(*) FROM jobs_admin_failure")[0][0])

    def _miscounted(self) -> int:
        counted, rows = "SELECT SUM(count) FROM jobs_admin_failurecount", "SELECT COUNT(*) FROM jobs_admin_failure"
        return abs(int(self.desk.query(counted)[0][0] or 0) - int(self.desk.query(rows)[0][0]))


def run(folder: Path, failures: int) -> dict[str, Any]:
    drill = Drill(folder, failures)
    try:
        return {"upgrade": drill.run(), "backup": drill.back_up_and_restore(), "rates": drill.measure_rates()}
    finally:
        drill.stop()
