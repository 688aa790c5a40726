"""Histories of Django Tasks: its table by its own migrations, and what its worker, which never tries again, writes there."""

from __future__ import annotations

import random
import re
import uuid
from pathlib import Path

import psycopg

from tests.histories.jobs_table import Job, JobsTable
from tests.kit.django_tasks import TABLE, Host, Tasks, TasksOnPostgreSQL, TasksOnSQLite

_INDEXED = ("status", "finished_at")


class DjangoTasks(JobsTable):
    name, waits = TABLE, "READY"
    settings = 'backend = "django_tasks"\n'

    def open_table(self, folder: Path, server: str) -> Tasks:
        template = str(folder / "template.db")
        if self.on_postgresql:
            template = "template_of_tasks"
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {template}")
        host = Host(re.sub(r"/postgres$", f"/{template}", server) or f"sqlite:///{template}", folder / "host")
        host.call(template, "migrate")
        host.close()
        return (
            TasksOnPostgreSQL(server, "shop", template)
            if self.on_postgresql
            else TasksOnSQLite(folder / "shop.db", Path(template))
        )

    def empty_tables(self, rng: random.Random) -> None:
        self.table.execute(f"DELETE FROM {TABLE}")
        self.table.execute("DROP TABLE IF EXISTS redrive_ledger")
        is_indexed = rng.random() < 0.5
        for column in _INDEXED:
            self.table.execute(f"DROP INDEX IF EXISTS tasks_by_{column}")
            if is_indexed:
                self.table.execute(f"CREATE INDEX tasks_by_{column} ON {TABLE} ({column})")

    def new(self, queue: str, most: int = 1) -> Job:
        self.made += 1
        job_id = uuid.uuid5(uuid.NAMESPACE_OID, str(self.made))
        job = Job(self.source, queue, str(job_id) if self.on_postgresql else job_id.hex, most)
        self.jobs.append(job)
        self.table.enqueue(job.id, {"n": self.made}, queue=queue)
        return job

    def work(self, job: Job, outcome: str) -> None:
        """The worker takes the result, and it ends so: ok, fail, last, lost (the worker dies)."""
        self.table.claim(job.id, ago_s=1_000_000 if outcome == "lost" else 0)
        job.failed += 1
        if outcome == "lost":
            job.place, job.attempts, job.states = "running", job.failed, ("dead",)
        elif outcome == "ok":
            self.table.complete(job.id)
            job.place, job.attempts = "completed", None
            job.states = ("recovered",) if job.is_known else ()
        else:
            self.table.fail(job.id, f"TimeoutError: {self.rng_error(job)}")
            job.place, job.attempts, job.states = "failed", job.failed, ("dead",)

    def rng_error(self, job: Job) -> str:
        return ("too slow", "no such customer", "partner is down")[int(job.id[-1], 16) % 3]

    fail_and_wait = try_again = None  # nothing waits for another try


class DjangoTasksOnPostgreSQL(DjangoTasks):
    on_postgresql = True
