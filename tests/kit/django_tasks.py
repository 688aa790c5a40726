"""Django Tasks in a real database: the table that the library's own migrations create, and a project with its worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from dashboard.setup.engine import die_with_parent
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite

ROOT = Path(__file__).resolve().parents[2]
TABLE = "django_tasks_database_dbtaskresult"
TASK = "tests.rigs.django_tasks_jobs.deliver"


def need_library() -> None:
    if find_spec("django_tasks_db") is None:
        pytest.skip("django-tasks-db is not installed: pip install -r requirements-strict.txt")


class Host:
    """A project on a server or a file; `call` goes to its one process. `folder` has `ran` and `down`."""

    def __init__(self, url: str, folder: Path, python: str = sys.executable) -> None:
        self.folder, self.python = folder, python
        folder.mkdir(exist_ok=True)
        self.environment = {"PATH": os.environ["PATH"], "DATABASE": url, "DELIVERIES": str(folder)}
        self.process = self.run("serve")

    def run(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-m", "tests.rigs.django_tasks_host", *command],
            cwd=ROOT, env=self.environment | environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )  # fmt: skip

    def call(self, database: str, name: str, **given: object) -> object:
        self.process.stdin.write(json.dumps({"name": name, "database": database, **given}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def work(self, table: Tasks, *, fails: bool) -> None:
        """The library's worker runs what waits, until nothing does."""
        self.partner(is_down=fails)
        self.call(table.database, "work")

    def partner(self, *, is_down: bool) -> None:
        down = self.folder / "down"
        down.touch() if is_down else down.unlink(missing_ok=True)

    @property
    def ran(self) -> list[int]:
        """The numbers of the deliveries, in the order in which they ran."""
        ran = self.folder / "ran"
        return [int(line) for line in ran.read_text().split()] if ran.exists() else []

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


class Tasks:
    """The table, and what the library's own code writes to it, as SQL: for tests that need many rows, or a time ago."""

    database: str  # as Django names it
    create = "SELECT 1"  # its migrations create the table

    def enqueue(self, job_id, kwargs=None, *, queue="default"):
        self.execute(
            f"INSERT INTO {TABLE} (id, status, enqueued_at, args_kwargs, priority, task_path, worker_ids, queue_name, "
            f"backend_name, run_after, exception_class_path, traceback) VALUES (?, 'READY', {self.ago(0)}, ?, 0, ?, '[]', "
            "?, 'default', '9999-01-01 00:00:00', '', '')",
            job_id, json.dumps({"args": [], "kwargs": kwargs or {}}), TASK, queue,
        )  # fmt: skip

    def claim(self, job_id, worker="w1", ago_s=0):
        self.execute(
            f"UPDATE {TABLE} SET status = 'RUNNING', started_at = {self.ago(ago_s)}, worker_ids = ? WHERE id = ?",
            json.dumps([*json.loads(self.row(job_id, "CAST(worker_ids AS TEXT)")), worker]), job_id,
        )  # fmt: skip

    def fail(self, job_id, error="TimeoutError: too slow"):
        error_type = error.partition(":")[0]
        trace = (
            f'Traceback (most recent call last):\n  File "/app/shop/tasks.py", line 3, in deliver\n    go()\n{error}\n'
        )
        self.execute(
            f"UPDATE {TABLE} SET status = 'FAILED', finished_at = {self.ago(0)}, exception_class_path = ?, traceback = ? "
            "WHERE id = ?",
            f"builtins.{error_type}", trace, job_id,
        )  # fmt: skip

    def complete(self, job_id):
        self.execute(
            f"UPDATE {TABLE} SET status = 'SUCCESSFUL', finished_at = {self.ago(0)}, return_value = 'null', "
            "exception_class_path = '', traceback = '' WHERE id = ?",
            job_id,
        )

    def row(self, job_id, *columns):
        (found,) = self.execute(f"SELECT {', '.join(columns)} FROM {TABLE} WHERE id = ?", job_id)
        return found[0] if len(columns) == 1 else tuple(found)


class TasksOnSQLite(Tasks, OnSQLite):
    def __init__(self, path: Path, template: Path) -> None:
        self.template, self.database = template, str(path)
        shutil.copy(template, path)
        super().__init__(path)

    def ago(self, seconds):
        return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '{-seconds:+d} seconds')"

    def lose(self):
        self.close()
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()
        self.__init__(self.path, self.template)

    @staticmethod
    def new_id() -> str:
        return uuid.uuid4().hex


class TasksOnPostgreSQL(Tasks, OnPostgreSQL):
    def __init__(self, url: str, name: str, template: str) -> None:
        self.template, self.database = template, name
        super().__init__(url, name)

    def lose(self):
        self.unplug()
        self.__init__(self.server, self.name, self.template)

    @staticmethod
    def new_id() -> str:
        return str(uuid.uuid4())
