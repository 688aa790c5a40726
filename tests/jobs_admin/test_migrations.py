"""An installation of before keeps its rows when the tables change."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.core.management import call_command

pytestmark = pytest.mark.databases

ROOT = Path(__file__).resolve().parent.parent.parent
AT = "'2026-11-20 10:00:00'"


# Commands of `manage.py`, a line each, in one process: to start it costs as much as most of them.
COMMANDS = """
import io, sys, django; django.setup()
from django.core.management import call_command
for line in sys.stdin:
    call_command(*line.split(), verbosity=0, stdout=io.StringIO())
    print("done", flush=True)
"""


@contextmanager
def commands(database: Path) -> Iterator[Callable[[str], None]]:
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{database}", "REDRIVE_DATA": str(database.parent)}
    environment["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": (database.parent / "errors").open("w")}
    process = subprocess.Popen([sys.executable, "-c", COMMANDS], cwd=ROOT, env=environment, text=True, **pipes)

    def run(command: str) -> None:
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n", (database.parent / "errors").read_text()

    with process:
        yield run
        process.stdin.close()
        assert process.wait(60) == 0


def insert(database: sqlite3.Connection, table: str, **values: object) -> None:
    """Insert a row, with nothing in each other column that has to have something."""
    blank = {"varchar": "", "text": "", "datetime": "2026-11-20 10:00:00", "real": 0.0, "bool": 0}
    for _, name, kind, is_required, default, is_key in database.execute(f"PRAGMA table_info(jobs_admin_{table})"):
        if is_required and default is None and not is_key and name not in values:
            values[name] = blank.get(kind.split("(")[0].lower(), 0)
    names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
    database.execute(f"INSERT INTO jobs_admin_{table} ({names}) VALUES ({marks})", list(values.values()))


def fill_first_tables(database: Path) -> None:
    with sqlite3.connect(database) as old:
        # What today's code adds after every migrate was not there.
        for table in ("jobs_admin_failureterms", "jobs_admin_stackterms"):
            old.executescript(f"DROP TRIGGER {table}_delete; DROP TABLE {table};")
        old.execute("DROP TABLE jobs_admin_termsstate")
        old.execute(
            "INSERT INTO jobs_admin_group (id, fingerprint, error_type, message, culprit, state, regressed_after, note, "
            f"runbook_url, count, first_seen, last_seen) VALUES (9, 'v1-a', 'KeyError', 'x', '', 'ongoing', '', 'ours', '', 1, {AT}, {AT})"
        )
        old.execute(
            "INSERT INTO jobs_admin_failure (id, source, queue, first_job_id, job_id, run, state, task, group_id, error_type, message, "
            'kind, reason, attempts, first_failed_at, failed_at, received_at, worker, host, "release", tenant, labels, args, kwargs, '
            "headers, redacted) VALUES (9, 'first', 'emails', 'j9', 'j9', 1, 'dead', 'shop.mail', 9, 'KeyError', 'receipt 17', "
            f"'exception', '', 1, {AT}, {AT}, {AT}, '', '', '', '', '', '', '', '', 0)"
        )


def drift_counts(database: Path) -> None:
    with sqlite3.connect(database) as old:
        old.execute("UPDATE jobs_admin_failurecount SET count = 7")
        old.execute(
            "INSERT INTO jobs_admin_failurecount (source, queue, task, group_id, state, count) "
            "VALUES ('first', 'emails', 'as it was once', 9, 'dead', 1)"
        )


def check_first_tables(now: sqlite3.Connection) -> None:
    assert now.execute("SELECT note, state FROM jobs_admin_group WHERE id = 9").fetchall() == [("ours", "ongoing")]
    counted = now.execute(
        "SELECT queue, task, state, count FROM jobs_admin_failurecount WHERE source = 'first' ORDER BY task"
    )
    assert counted.fetchall() == [("emails", "as it was once", "dead", 0), ("emails", "shop.mail", "dead", 1)]
    found = now.execute("SELECT rowid FROM jobs_admin_failureterms WHERE jobs_admin_failureterms MATCH 'receipt'")
    assert found.fetchall() == [(9,)]


RULES = "SELECT name, metric, threshold, for_s FROM jobs_admin_rule ORDER BY name"


def change_rules(database: Path) -> None:
    with sqlite3.connect(database) as old:
        assert "stalled_s" not in {row[1] for row in old.execute(RULES)}
        old.execute("UPDATE jobs_admin_rule SET threshold = 300, changed_by = 'ann' WHERE name = 'Source Unreachable'")


def check_rules(now: sqlite3.Connection) -> None:
    """A desk is given the rule on progress, and keeps what it changed."""
    found = now.execute(RULES).fetchall()
    assert ("No Progress", "stalled_s", 40, 15) in found and ("Source Unreachable", "unreachable", 300, 0) in found


def fill_groups(database: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "{0}/tasks.py", line 3, in charge\n    pay()\nKeyError: x'
    with sqlite3.connect(database) as old:
        for pk, name in enumerate(("merged", "shared", "own"), 1):
            own = {"error_type": "KeyError", "message": f"{name} of shop", "culprit": "shop/tasks.py in charge"}
            insert(old, "group", id=pk, fingerprint=f"v3-{name}", state="ongoing", **own)
        insert(old, "groupalias", fingerprint="v3-of-crm", group_id=1)
        failures = [(1, "shop", 1), (2, "crm", 1), (3, "crm", 1), (4, "shop", 2), (5, "crm", 2), (6, "shop", 3)]
        for source in ("shop", "crm"):
            insert(old, "traceback", id=1 + (source == "crm"), sha256=source, text=trace.format(source))
        for pk, source, group in failures:
            insert(
                old, "failure", id=pk, source=source, queue="q", first_job_id=f"j{pk}", job_id=f"j{pk}", run=1, state="dead", task="t",
                group_id=group, error_type=f"{source}.Error", message=f"order {pk}\n of  {source}", release=f"r{pk}", attempts=1,
                failed_at=f"2026-11-20 1{pk}:00:00", traceback_id=1 + (source == "crm"),
            )  # fmt: skip
        old.execute("DELETE FROM jobs_admin_failurecount WHERE source != 'first'")
        for group, source, count in (
            (1, "shop", 1),
            (1, "crm", 2),
            (2, "shop", 1),
            (2, "crm", 1),
            (2, "gone", 0),
            (3, "shop", 1),
        ):
            insert(old, "failurecount", source=source, queue="q", task="t", group_id=group, state="dead", count=count)


def check_groups(now: sqlite3.Connection) -> None:
    """A group has its text at each source from that source alone."""
    columns = "group_id, source, error_type, message, culprit, first_release, substr(last_seen, 12, 2)"
    order = "FROM jobs_admin_groupsource WHERE source != 'first' ORDER BY group_id, source"
    assert now.execute(f"SELECT {columns} {order}").fetchall() == [
        (1, "crm", "crm.Error", "order 3 of crm", "", "r3", "13"),  # frames differ within a merged group
        (1, "shop", "shop.Error", "order 1 of shop", "", "r1", "11"),
        (2, "crm", "crm.Error", "order 5 of crm", "shop/tasks.py in charge", "r5", "15"),
        (2, "shop", "shop.Error", "order 4 of shop", "shop/tasks.py in charge", "r4", "14"),
        (3, "shop", "KeyError", "own of shop", "shop/tasks.py in charge", "", "10"),
    ]


@pytest.mark.sqlite
@pytest.mark.long("Runs every migration, on rows of three earlier versions.")
def test_the_tables_of_earlier_versions_become_those_of_now_and_keep_their_rows(tmp_path):
    database = tmp_path / "desk.sqlite3"
    with commands(database) as run:
        for version, fill in (
            ("0001", fill_first_tables),
            ("0002", drift_counts),
            ("0016", change_rules),
            ("0023", fill_groups),
        ):
            run(f"migrate jobs_admin {version}")
            fill(database)
        run("migrate")
        run("reindex")
    with sqlite3.connect(database) as now:
        check_first_tables(now)
        check_rules(now)
        check_groups(now)


def test_rows_are_changed_in_the_database_that_is_migrated():
    """A project may keep the desk in a database of its own, beside one with another desk."""
    for migration in (ROOT / "jobs_admin" / "migrations").glob("[0-9]*.py"):
        text = migration.read_text()
        assert text.count(".objects") == text.count(".objects.using("), migration.name


@pytest.mark.django_db
def test_models_and_migrations_agree():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
