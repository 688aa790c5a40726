"""A desk of its own on a folder: a database and a store that no other test has, and its commands as processes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.db import connection

from dashboard.setup.engine import die_with_parent
from tests.kit import migrated
from tests.kit.desks import BEGIN, BURY
from tests.kit.up import ROOT, SILENT

# Forks for each command or code that is requested, where the imports have ended: they take seconds of a processor.
_FORKS = """
import importlib, runpy
import dashboard.urls
from django import conf
for requested in map(json.loads, sys.stdin):
    if child := os.fork():
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(requested["output"], os.O_WRONLY | os.O_APPEND), number)
    if requested["variables"]:
        os.environ.update(requested["variables"])
        importlib.reload(sys.modules["dashboard.settings"])
        conf.settings._wrapped = conf.Settings("dashboard.settings")
    if requested["code"]:
        exec(requested["code"])
    else:
        sys.argv = ["manage.py", *requested["arguments"]]
        runpy.run_path("manage.py", run_name="__main__")
    sys.exit()
"""


class _Forks:
    """The process that forks: one a test process, with the variables of the installation that ran a command last."""

    process: subprocess.Popen[str] | None = None
    known: dict[str, str] | None = None

    @classmethod
    def run(cls, known: dict[str, str], output: Path, within_s: int, **requested: Any) -> int:
        """Return the exit code."""
        if cls.known != known:
            cls.end()
            cls.known = dict(known)
            cls.process = subprocess.Popen(
                [sys.executable, "-c", BEGIN + BURY + _FORKS], cwd=ROOT, env=known, text=True, process_group=0,
                preexec_fn=die_with_parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        output.write_text("")
        print(json.dumps({"output": str(output), **requested}), file=cls.process.stdin, flush=True)
        if not select.select([cls.process.stdout], [], [], within_s)[0]:
            os.killpg(cls.process.pid, signal.SIGKILL)
            cls.end()
            raise TimeoutError(f"not done in {within_s} s: {requested}")
        return int(cls.process.stdout.readline())

    @classmethod
    def end(cls) -> None:
        if cls.process is not None:
            cls.process.stdin.close()
            cls.process.stdout.close()
            cls.process.wait()
        cls.process = cls.known = None


class Installation:
    """Settings and processes of one desk. Its database is SQLite, or PostgreSQL where the run of the suite is on it.

    With `forks` a command begins where the imports of another process have ended; with further variables of Redrive it
    reads its settings again. What is killed starts afresh.
    """

    def __init__(
        self, folder: Path, store: str, *, is_empty: bool = False, forks: bool = False, **variables: str
    ) -> None:
        self.folder, self._forks = folder, forks
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(SILENT)},
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SECRET_KEY": "k" * 50,
            "PYTHONPATH": str(ROOT),
            "REDRIVE_PAYLOAD_KEYS": Fernet.generate_key().decode(),
            "REDRIVE_REDIS_URL": store,
            "REDRIVE_DATA": str(folder),
            "DATABASE_URL": _database(folder, is_empty),
            **variables,
        }

    @property
    def database(self) -> str:
        return self.variables["DATABASE_URL"]

    @property
    def sqlite(self) -> Path:
        return Path(self.database.removeprefix("sqlite:///"))

    def start(self, *arguments: str, code: str = "", **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BEGIN + BURY + code] if code else [sys.executable, "manage.py", *arguments]
        environment = {name: value for name, value in {**self.variables, **variables}.items() if value}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, preexec_fn=die_with_parent, **pipes)

    def run(self, *arguments: str, code: str = "", expect: int = 0, within_s: int = 300, **variables: str) -> str:
        """Run a command of `manage.py`, or Python code with Django set up, and return its output."""
        if self._forks and all(name.startswith("REDRIVE_") for name in variables):
            printed = self.folder.with_name(f"{self.folder.name}-printed")
            given = {name: value for name, value in self.variables.items() if value}
            returned = _Forks.run(given, printed, within_s, arguments=arguments, code=code, variables=variables)
            output = printed.read_text()
        else:
            with self.start(*arguments, code=code, **variables) as process:
                output = process.communicate(timeout=within_s)[0]
            returned = process.returncode
        assert returned == expect, output
        assert "Traceback" not in output, output
        return output

    def read(self, code: str, within_s: int = 300) -> Any:
        """Run Python code and return what it prints by `say`."""
        return json.loads(self.run(code=code, within_s=within_s).splitlines()[-1])

    def query(self, text: str) -> list[tuple]:
        return list(self.stream(text))

    def stream(self, text: str) -> Iterator[tuple]:
        """Yield the rows of a statement, without having all of them in memory."""
        if self.database.startswith("sqlite"):
            import sqlite3

            with closing(sqlite3.connect(self.sqlite)) as database:
                yield from database.execute(text)
                database.commit()
            return
        import psycopg

        with psycopg.connect(self.database, autocommit=True) as database, database.cursor() as cursor:
            if text.startswith("SELECT * "):
                yield from cursor.stream(text)
                return
            cursor.execute(text)
            if cursor.description:
                yield from cursor


def _database(folder: Path, is_empty: bool) -> str:
    if connection.vendor == "sqlite":
        if not is_empty:
            migrated.into(folder)
        return f"sqlite:///{folder / 'redrive.sqlite3'}"
    return new_postgresql("template0" if is_empty else _template())


@cache
def _template() -> str:
    """A migrated database, to be copied: made once in a process of tests."""
    url = new_postgresql("template0")
    environment = {**os.environ, "DATABASE_URL": url, "REDRIVE_DATA": os.environ["REDRIVE_DATA"]}
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return url.rpartition("/")[2]


def new_postgresql(template: str) -> str:
    import psycopg

    found = settings.DATABASES["default"]
    server = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}"
    name = f"desk_{secrets.token_hex(6)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as database:
        database.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server}/{name}"


def hash_rows(desk: Installation) -> dict[str, tuple[int, str]]:
    """Return table -> number and hash of its rows, in any order. Without sessions and what SQLite makes for its indexes."""
    if desk.database.startswith("sqlite"):
        tables = (
            "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main' AND name NOT LIKE 'sqlite%'"
        )
    else:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    found = {}
    for (name,) in desk.query(f"{tables} ORDER BY 1"):
        rows = total = 0
        for row in desk.stream(f'SELECT * FROM "{name}"'):
            rows += 1
            total += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest())
        found[name] = rows, f"{total:x}"
    return found
