"""A jobs table on real databases, and what its workers do to it, with the delays of
https://hectoday.com/courses/background-jobs-and-queues/retries-and-backoff.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import psycopg

from jobs_admin.sources.base import OutgoingMessage, Ref

# The page shows `failJob` and a query; this table has the columns that these name.
SQLITE = """
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, type TEXT NOT NULL, payload TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending',
  attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER NOT NULL DEFAULT 3, last_error TEXT, locked_by TEXT, locked_at TEXT,
  scheduled_at TEXT DEFAULT (datetime('now')), created_at TEXT NOT NULL DEFAULT (datetime('now')),
  updated_at TEXT NOT NULL DEFAULT (datetime('now')))
"""
POSTGRESQL = re.sub(r"(\w+_at) TEXT", r"\1 timestamptz", SQLITE).replace("(datetime('now'))", "now()")

# As pages on jobs tables write it. SQLite reads the sum as ('+' || (attempts + 1)) * (30 || ' seconds'), since `||` binds
# tighter than `*`, and so the row that is to be tried again gets NULL for a time (measured: SQLite 3.40).
AS_PUBLISHED = """
UPDATE jobs SET
  attempts = attempts + 1, last_error = ?, updated_at = datetime('now'), locked_by = NULL, locked_at = NULL,
  status = CASE WHEN attempts + 1 < max_attempts THEN 'pending' ELSE 'failed' END,
  scheduled_at = CASE WHEN attempts + 1 < max_attempts
    THEN datetime('now', '+' || (attempts + 1) * 30 || ' seconds') ELSE scheduled_at END
WHERE id = ?
"""
# As it is meant: the delays of the page's table.
FAIL_JOB = AS_PUBLISHED.replace("(attempts + 1) * 30 ||", "((attempts + 1) * 30) ||")
ON_POSTGRESQL = (
    FAIL_JOB.replace(
        "datetime('now', '+' || ((attempts + 1) * 30) || ' seconds')", "now() + (attempts + 1) * interval '30 seconds'"
    )
    .replace("datetime('now')", "now()")
    .replace("?", "%s")
)


class Table:
    """A user's database; `execute` is what their own programs do there."""

    def execute(self, sql, *values):
        raise NotImplementedError

    def enqueue(self, job_id, payload=None, *, max_attempts=3, type="send_email", table="jobs"):
        text = (
            payload
            if isinstance(payload, str)
            else json.dumps(payload if payload is not None else {"to": "ann@example.com"})
        )
        self.execute(
            f"INSERT INTO {table} (id, type, payload, max_attempts) VALUES (?, ?, ?, ?)",
            job_id,
            type,
            text,
            max_attempts,
        )

    def fail(self, job_id, error="TimeoutError: too slow"):
        self.execute(FAIL_JOB, error, job_id)

    def die(self, job_id, error="TimeoutError: too slow", **more):
        self.enqueue(job_id, max_attempts=1, **more)
        self.fail(job_id, error)

    def claim(self, job_id, worker="w1", ago_s=0):
        self.execute(
            f"UPDATE jobs SET status = 'running', locked_by = ?, locked_at = {self.ago(ago_s)}, updated_at = {self.ago(ago_s)} WHERE id = ?",
            worker, job_id,
        )  # fmt: skip

    def complete(self, job_id):
        self.execute(
            f"UPDATE jobs SET status = 'completed', locked_by = NULL, locked_at = NULL, updated_at = {self.ago(0)} WHERE id = ?",
            job_id,
        )

    def row(self, job_id, *columns):
        """One row's columns; one of one column."""
        (found,) = self.execute(f"SELECT {', '.join(columns)} FROM jobs WHERE id = ?", job_id)
        return found[0] if len(columns) == 1 else tuple(found)


class OnSQLite(Table):
    create = SQLITE

    def __init__(self, path: Path, *, wal=True):
        self.path = path
        self.url = f"sqlite:///{path}"
        self.options = {}
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        if wal:
            self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(self.create)

    def execute(self, sql, *values):
        return self.connection.execute(sql, values).fetchall()

    def ago(self, seconds):
        return f"datetime('now', '{-seconds:+d} seconds')"

    def lose(self):
        """A fresh database under the same name."""
        self.close()
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()
        self.__init__(self.path)

    def unplug(self):
        self.path.rename(self.path.with_suffix(".away"))

    def close(self):
        self.connection.close()


class OnPostgreSQL(Table):
    create = POSTGRESQL
    template = "template1"

    def __init__(self, url: str, name: str):
        self.server, self.name = url, name
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {self.template}")
        self.url = re.sub(r"/postgres$", f"/{name}", url)
        self.options = {}
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.connection.execute(self.create)

    def execute(self, sql, *values):
        sql = ON_POSTGRESQL if sql == FAIL_JOB else sql.replace("?", "%s")
        done = self.connection.execute(sql, values or None)
        return done.fetchall() if done.description else []

    def ago(self, seconds):
        return f"now() + interval '{-seconds} seconds'"

    def lose(self):
        self.close()
        with psycopg.connect(self.server, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.__init__(self.server, self.name)

    def unplug(self):
        self.close()
        with psycopg.connect(self.server, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {self.name} WITH (FORCE)")

    def close(self):
        self.connection.close()


def pulled(source, after=""):
    """All that there is to report, filed; and the place."""
    reports = []
    while True:
        one = source.dead_letters(after)
        reports += one.reports
        source.confirm_filed(one)
        after = one.after
        if not one.is_more:
            return reports, after


def list_reports(source, after=""):
    return [(one.job_id, one.kind, one.attempt) for one in pulled(source, after)[0]]


def build_message(report, token=1, **changes):
    lineage = {
        "queue": report.queue,
        "job_id": report.job_id,
        "run": 2,
        "item": token,
        "replay": "r",
        "sent_as": report.job_id,
    }
    values = {"token": token, "raw": report.raw, "queue": report.queue, "job_id": report.job_id, "lineage": lineage}
    return OutgoingMessage(**values | changes)


def refs(reports, state="dead"):
    return [Ref(one.queue, one.job_id, state, one.at) for one in reports]
