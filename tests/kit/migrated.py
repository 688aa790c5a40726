"""An empty desk's tables in an SQLite file. The migrations take five seconds of a processor, so they are run once.

    shutil.copy(migrated.database(), folder / "desk.sqlite3")

Kept in pytest's cache folder, for all processes of a run and for the next run on the same code. What the migrations do is
held by tests/jobs_admin/test_migrations.py, and `up` from nothing by tests/dashboard/test_up.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from django.conf import settings
from django.db.backends.sqlite3.creation import DatabaseCreation

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = ROOT / ".pytest_cache" / "migrated"
_FORGOTTEN_AFTER_S = 86_400


@cache
def database() -> Path:
    """The file: to be copied, never opened to write."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    made = _FOLDER / f"{_of_this_code()}.sqlite3"
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one makes it, and the others wait
        if made.exists():
            os.utime(made)
        else:
            _forget_old()
            _make(made)
    return made


def into(folder: Path, name: str = "redrive.sqlite3") -> None:
    """The database of a desk that `up` will start on this folder, as if it had been migrated there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(database(), folder / name)
    (folder / name).chmod(0o600)


def _of_this_code() -> str:
    """Changes with whatever a migration may read: our own code, and what is installed beside it."""
    seen = hashlib.sha256(sqlite3.sqlite_version.encode() + sys.version.encode())
    for file in [
        ROOT / "requirements.txt",
        *sorted(ROOT.glob("jobs_admin/**/*.py")),
        *ROOT.glob("dashboard/*.py"),
        *ROOT.glob("dashboard/setup/*.py"),
    ]:
        seen.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return seen.hexdigest()[:24]


def _forget_old() -> None:
    for file in _FOLDER.glob("*.sqlite3*"):
        if file.stat().st_mtime < time.time() - _FORGOTTEN_AFTER_S:
            file.unlink(missing_ok=True)


def _make(made: Path) -> None:
    begun = made.with_suffix(".sqlite3-begun")
    begun.unlink(missing_ok=True)
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{begun}"}
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    with closing(sqlite3.connect(begun)) as opened:
        opened.execute("PRAGMA journal_mode = DELETE")  # in one file, for any kind of copy
    begun.rename(made)


class Copied(DatabaseCreation):
    """Django's test database, filled from that file instead of by the migrations."""

    def create_test_db(self, verbosity=1, autoclobber=False, serialize=False, keepdb=False):
        name = self._get_test_db_name()
        self._create_test_db(verbosity, autoclobber, keepdb)
        self.connection.close()
        settings.DATABASES[self.connection.alias]["NAME"] = name
        self.connection.settings_dict["NAME"] = name
        self.connection.ensure_connection()
        with closing(sqlite3.connect(database())) as made:
            made.backup(self.connection.connection)
        return name
