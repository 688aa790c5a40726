"""An installation of before keeps its rows when the tables change."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

ROOT = Path(__file__).resolve().parent.parent.parent
AT = "'2026-11-20 10:00:00'"


def manage(database: Path, *arguments: str) -> str:
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{database}", "REDRIVE_DATA": str(database.parent)}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.sqlite
def test_the_first_tables_with_a_failure_in_them_become_those_of_now(tmp_path):
    database = tmp_path / "desk.sqlite3"
    manage(database, "migrate", "jobs_admin", "0001")
    with sqlite3.connect(database) as old:
        # What today's code adds after every migrate was not there.
        for table in ("jobs_admin_failureterms", "jobs_admin_stackterms"):
            old.executescript(f"DROP TRIGGER {table}_delete; DROP TABLE {table};")
        old.execute("DROP TABLE jobs_admin_termsstate")
        old.execute(
            "INSERT INTO jobs_admin_group (id, fingerprint, error_type, message, culprit, state, regressed_after, note, "
            f"runbook_url, count, first_seen, last_seen) VALUES (1, 'v1-a', 'KeyError', 'x', '', 'ongoing', '', 'ours', '', 1, {AT}, {AT})"
        )
        old.execute(
            "INSERT INTO jobs_admin_failure (source, queue, first_job_id, job_id, run, state, task, group_id, error_type, message, "
            'kind, reason, attempts, first_failed_at, failed_at, received_at, worker, host, "release", tenant, labels, args, kwargs, '
            "headers, redacted) VALUES ('shop', 'emails', 'j1', 'j1', 1, 'dead', 'shop.mail', 1, 'KeyError', 'receipt 17', "
            f"'exception', '', 1, {AT}, {AT}, {AT}, '', '', '', '', '', '', '', '', 0)"
        )
    manage(database, "migrate")
    manage(database, "reindex")
    with sqlite3.connect(database) as now:
        assert now.execute("SELECT note, state FROM jobs_admin_group").fetchall() == [("ours", "ongoing")]
        assert now.execute("SELECT queue, state, count FROM jobs_admin_failurecount").fetchall() == [
            ("emails", "dead", 1)
        ]
        found = now.execute("SELECT rowid FROM jobs_admin_failureterms WHERE jobs_admin_failureterms MATCH 'receipt'")
        assert found.fetchall() == [(1,)]


@pytest.mark.sqlite
def test_a_desk_of_before_is_given_the_rule_on_progress_and_keeps_what_it_changed(tmp_path):
    database = tmp_path / "desk.sqlite3"
    manage(database, "migrate", "jobs_admin", "0016")
    rules = "SELECT name, metric, threshold, for_s FROM jobs_admin_rule ORDER BY name"
    with sqlite3.connect(database) as old:
        assert "stalled_s" not in {row[1] for row in old.execute(rules)}
        old.execute("UPDATE jobs_admin_rule SET threshold = 300, changed_by = 'ann' WHERE name = 'Source Unreachable'")
    manage(database, "migrate")
    with sqlite3.connect(database) as now:
        found = now.execute(rules).fetchall()
        assert ("No Progress", "stalled_s", 40, 15) in found and ("Source Unreachable", "unreachable", 300, 0) in found


@pytest.mark.django_db
def test_models_and_migrations_agree():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
