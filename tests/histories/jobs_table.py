"""Histories of a jobs table: a real SQLite file or PostgreSQL, whose workers' statements are the tutorial's own."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dashboard.setup.engine import Engine
from tests.histories.desk import JobKey
from tests.histories.kit import act
from tests.histories.source import PulledWorld
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite, Table

QUEUES = [f"q{n}" for n in range(20)]
_INDEXES = ("status, updated_at", "updated_at", "locked_at")


@dataclass
class Job:
    """The model of one row."""

    source: str
    queue: str
    id: str
    most: int = 1
    place: str = ""  # its row: failed, pending (waits for another try), running (its worker is gone), completed, ""
    states: tuple[str, ...] = ()
    run: int | None = 1
    attempts: int | None = 0
    failed: int = 0  # the column `attempts`: those that failed
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey(self.source, self.queue, self.id)


class JobsTable(PulledWorld):
    """The source `shop` deletes rows that are discarded, `store` does not."""

    on_postgresql = False
    name, waits = "jobs", "pending"
    settings = 'backend = "jobs_table"\ncolumns = { queue = "queue" }\n'

    def __init__(self, folder: Path) -> None:
        self.stack = ExitStack()
        self.engine = Engine(folder / "engine").start()
        url = self.stack.enter_context(postgresql_server.running()) if self.on_postgresql else ""
        self.table = self.open_table(folder, url)
        if not self.on_postgresql:
            self.table.execute("PRAGMA synchronous = OFF")
        settings = f'{self.settings}url = "{self.table.url}"\n'
        super().__init__(
            folder,
            f"[sources.shop]\n{settings}discard_deletes = true\n[sources.store]\n{settings}",
            self.engine.url,
        )

    def open_table(self, folder: Path, server: str) -> Table:
        return OnPostgreSQL(server, "shop") if self.on_postgresql else OnSQLite(folder / "shop.db")

    def close(self) -> None:
        self.table.close()
        self.stack.close()
        self.engine.stop()

    def empty_system(self, rng: random.Random) -> None:
        self.source = rng.choice(("shop", "store"))
        self.queues = rng.sample(QUEUES, rng.choice([1, 1, 2, 3, 5, 20]))
        self.was_emptied = False
        self.empty_tables(rng)

    def empty_tables(self, rng: random.Random) -> None:
        for table in ("jobs", "redrive_ledger"):
            self.table.execute(f"DROP TABLE IF EXISTS {table}")
        self.table.execute(self.table.create)
        self.table.execute("ALTER TABLE jobs ADD COLUMN queue TEXT")
        if rng.random() < 0.5:
            for columns in _INDEXES:
                self.table.execute(f"CREATE INDEX ON jobs ({columns})" if self.on_postgresql else
                                   f"CREATE INDEX jobs_by_{columns[:6]} ON jobs ({columns})")  # fmt: skip

    def choose_bounds(self, rng: random.Random) -> None:
        from jobs_admin.sources.jobs_table import reading, source

        bound = super().choose_bounds(rng)
        self.set_bound(reading, "_ROWS_AT_ONCE", rng.choice([bound, 500]))
        self.set_bound(reading, "_SLICE", rng.choice([bound, 5_000]))
        self.set_bound(source, "_REPORTS_AT_ONCE", rng.choice([bound, 300]))

    def new(self, queue: str, most: int = 1) -> Job:
        self.made += 1
        job = Job(self.source, queue, f"j{self.made}", most)
        self.jobs.append(job)
        self.table.enqueue(job.id, max_attempts=most, type="send_email")
        self.table.execute("UPDATE jobs SET queue = ? WHERE id = ?", queue, job.id)
        return job

    def work(self, job: Job, outcome: str) -> None:
        """A worker takes the row, and it ends so: ok, fail, last (no try after it), lost (the worker dies)."""
        if outcome == "lost":
            self.table.claim(job.id, ago_s=1_000_000)
            job.place, job.attempts, job.states = "running", job.failed + 1 - self.before(job), ("dead",)
            return
        if outcome == "last":
            self.table.execute("UPDATE jobs SET max_attempts = attempts + 1 WHERE id = ?", job.id)
            job.most = job.failed + 1
        self.table.claim(job.id)
        if outcome == "ok":
            self.table.complete(job.id)
            job.place, job.attempts = "completed", None
            job.states = ("recovered",) if job.is_known else ()
            return
        self.table.fail(job.id, f"TimeoutError: {self.rng_error(job)}")
        job.failed += 1
        job.attempts = job.failed - self.before(job)
        is_last = job.failed >= job.most
        job.place, job.states = ("failed", ("dead",)) if is_last else ("pending", ("retrying",))

    def before(self, job: Job) -> int:
        """Attempts that counted as made when its current run began."""
        return 0

    def rng_error(self, job: Job) -> str:
        return ("too slow", "no such customer", "partner is down")[hash(job.id) % 3]

    # Acts of producers and workers

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            for _ in range(self.size(rng)):
                self.work(self.new(queue), "fail")

    @act()
    def succeed(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 3)):
            self.work(self.new(rng.choice(self.queues)), "ok")

    @act(weight=2)
    def fail_and_wait(self, rng: random.Random) -> None:
        queue = rng.choice(self.queues)
        for _ in range(self.size(rng)):
            self.work(self.new(queue, most=rng.randint(2, 3)), "fail")

    @act(weight=2)
    def try_again(self, rng: random.Random) -> None:
        self.read_first(rng)
        for job in self.some(rng, lambda job: job.place == "pending"):
            self.work(job, rng.choice(("ok", "fail", "last")))

    @act()
    def lose_worker(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            self.work(self.new(rng.choice(self.queues)), "lost")

    # Acts of other people

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        removed = self.some(rng, lambda job: job.place and job.states)
        for job in removed:
            self.table.execute(f"DELETE FROM {self.name} WHERE id = ?", job.id)
            job.place = ""
        # A table without any row that it had before may be another one, as may be what fails in it within that second:
        # that proves nothing.
        self.was_emptied = self.was_emptied or not any(job.place for job in self.jobs)
        for job in removed:
            if job.states[0] in ("dead", "retrying"):
                job.states = ("gone", job.states[0]) if self.was_emptied else ("gone",)
        self.read()

    @act()
    def retry_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place == "failed" and job.states == ("dead",)):
            self.table.execute(f"UPDATE {self.name} SET status = '{self.waits}' WHERE id = ?", job.id)
            outcome = rng.choice(("ok", "last"))
            self.work(job, outcome)
            if outcome == "ok":
                job.states = ("gone" if job.run == 1 else "recovered",)

    # The desk's part

    def read_reports(self) -> None:
        """Rows whose workers are gone are read a page in each look."""
        from jobs_admin.retries import pulling
        from jobs_admin.sources.jobs_table import reading

        super().read_reports()
        lost = sum(job.place == "running" for job in self.jobs)
        for _ in range(lost // reading._ROWS_AT_ONCE + 1 if lost else 0):
            pulling.pull(self.source, "histories:1")

    def is_replayable(self, job: Job) -> bool:
        return job.states == ("dead",) and job.place != "running"  # whether its worker is gone is not known for sure

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.run, job.attempts, job.failed, job.states = job.run + 1, 0, 0, ("replaying",)
            job.most = max(job.most, 1)
            self.work(job, outcome)

    def removed_by_us(self, job: Job) -> None:
        if self.source == "shop" and job.place == "failed":
            job.place = ""


class JobsTableOnPostgreSQL(JobsTable):
    on_postgresql = True
