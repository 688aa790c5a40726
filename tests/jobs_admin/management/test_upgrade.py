"""An upgrade reports what it would do, does it, and goes on after it was killed in the middle of a migration."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dashboard.setup import environment
from dashboard.setup.engine import free_port
from dashboard.setup.upgrades import plan
from jobs_admin.db import schema
from tests.kit.installations import ROOT, Installation

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("store")]

BEFORE, LATEST = "0022_entry_names", max(schema.known_migrations())


@pytest.fixture
def desk(tmp_path, engine) -> Installation:
    return Installation(tmp_path / "desk", engine.url, forks=True)


@pytest.fixture(scope="module")
def older(tmp_path_factory, engine) -> Callable[[Installation], None]:
    """Gives an empty desk the database of the version before; in SQLite it is migrated back once."""
    made = tmp_path_factory.mktemp("older") / "older.sqlite3"

    def migrate_back(desk: Installation) -> None:
        if made.exists():
            return copy_database(made, desk.sqlite)
        desk.run("migrate", "jobs_admin", BEFORE, "-v0")
        if desk.database.startswith("sqlite"):
            copy_database(desk.sqlite, made)

    return migrate_back


def copy_database(was: Path, to: Path) -> None:
    with closing(sqlite3.connect(was)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def applied(desk: Installation) -> str:
    return desk.query("SELECT MAX(name) FROM django_migrations WHERE app = 'jobs_admin'")[0][0]


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_check_lists_what_an_upgrade_does_and_upgrade_does_it(desk, older):
    assert "Nothing to do" in desk.run("upgrade", "--check")
    older(desk)
    desk.query(
        'INSERT INTO jobs_admin_worker (source, name, boot, seen_at, host, "release", celery, guard, mode, pool, queues, counted, '
        "spooled, dropped, overrun, shared_out) VALUES ('shop', 'w9', 'b', '2999-01-01 00:00:00', '', '', '', '9.1.0', '', '', '[]', '{}', 0, 0, 0, 0)"
    )
    output = desk.run("upgrade", "--check", expect=2, REDRIVE_KEPP="30d")
    assert "jobs_admin.0023_source_keys: about " in output and "jobs_admin_unfiled (0 rows): " in output
    assert ("checks all foreign keys, about " in output) == desk.database.startswith("sqlite")
    assert "new__" not in output
    assert (
        "→ Did you mean REDRIVE_KEEP?" in output
        and "1 live worker has a guard newer than this version: shop/w9 9.1.0." in output
    )
    assert output.strip().endswith("Ready: run `upgrade`.") and applied(desk) == BEFORE
    found = json.loads(desk.run("upgrade", "--check", "--json", expect=2))
    assert (found["result"], found["backup_at"]) == ("ready", None)
    assert found["migrations"][0]["name"] == "jobs_admin.0023_source_keys"
    away = desk.run("upgrade", "--check", expect=1, REDRIVE_REDIS_URL="redis://127.0.0.1:1/0")
    assert "Not ready" in away and "The store does not answer" in away

    output = desk.run("upgrade")
    assert re.search(r"Backup: .*before-upgrade-.*\.zip, ", output) and "jobs_admin.0023_source_keys: " in output
    assert "migrations applied; static files collected." in output and "Restart watch and web." in output
    assert applied(desk) == LATEST and len(list((desk.folder / "backups").glob("*.zip"))) == 1
    assert "No migration was pending" in desk.run("upgrade")


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_an_upgrade_that_is_killed_in_a_migration_is_continued_by_the_next(desk):
    desk.run(code="bury(30)")
    desk.run("migrate", "jobs_admin", BEFORE, "-v0")
    counts = desk.query("SELECT SUM(count) FROM jobs_admin_failurecount")
    kill = kill_on_postgresql if desk.database.startswith("postgresql") else kill_on_sqlite
    kill(desk)
    assert applied(desk) == BEFORE
    desk.run("upgrade", "--no-backup")
    assert applied(desk) == LATEST
    assert desk.query("SELECT SUM(count) FROM jobs_admin_failurecount") == counts
    assert "Nothing to do" in desk.run("upgrade", "--check")


def kill_on_postgresql(desk: Installation) -> None:
    """Kill while a statement of the migration waits for a reader, after others of it have run."""
    import psycopg

    with psycopg.connect(desk.database) as reader:
        reader.execute("LOCK TABLE jobs_admin_unfiled IN ACCESS SHARE MODE")
        with desk.start("upgrade", "--no-backup") as process:
            waits = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'jobs_admin_unfiled'::regclass"
            ends = time.monotonic() + 120
            while not reader.execute(waits).fetchone()[0]:
                assert time.monotonic() < ends and process.poll() is None, process.stdout.read()
                time.sleep(0.02)
            process.kill()


def kill_on_sqlite(desk: Installation) -> None:
    """Kill while the migration rebuilds a table: its pages, more than the cache has room for, are in the log."""
    desk.query(
        "INSERT INTO jobs_admin_unfiled (entry_id, received_at, why, body, size) "
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "SELECT 'e' || i, '2026-11-20 10:00:00', printf('%0400d', i), x'00', 1 FROM n"
    )
    log = desk.sqlite.with_name(f"{desk.sqlite.name}-wal")
    with desk.start("upgrade", "--no-backup", REDRIVE_SQLITE_CACHE_KB="100") as process:
        ends = time.monotonic() + 120
        while not log.exists() or log.stat().st_size < 2_000_000:
            assert time.monotonic() < ends and process.poll() is None, process.stdout.read()
            time.sleep(0.005)
        process.kill()
    assert desk.query("SELECT COUNT(*) FROM jobs_admin_unfiled") == [(100000,)]


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_a_broken_migration_is_a_sentence_and_changes_nothing(desk, older):
    older(desk)
    desk.query("CREATE TABLE jobs_admin_sourcekey (id integer)")  # as another program might
    output = desk.run("upgrade", expect=1)
    assert "Migration jobs_admin.0023_source_keys failed: " in output, output
    assert "run `upgrade` again" in output and "restore " in output and applied(desk) == BEFORE
    desk.query("DROP TABLE jobs_admin_sourcekey")
    desk.run("upgrade", "--no-backup")
    assert applied(desk) == LATEST


def test_the_version_before_stores_a_report_that_it_refuses(desk):
    # Columns of 0022.
    desk.query(
        "INSERT INTO jobs_admin_unfiled (entry_id, received_at, why, body, size) VALUES ('1-1', '2026-11-27 10:00:00', 'w', '', 0)"
    )
    assert desk.query("SELECT source, cause FROM jobs_admin_unfiled") == [("", "")]


@pytest.mark.postgresql
def test_a_half_built_index_is_dropped(desk):
    desk.run(code="bury(3)")
    # A unique index on equal values fails, and stays as an invalid one: as a kill leaves it.
    with pytest.raises(Exception, match="could not create unique index"):
        desk.query("CREATE UNIQUE INDEX CONCURRENTLY half ON jobs_admin_failure (queue)")
    desk.query("CREATE TABLE posts AS SELECT 1 AS id FROM generate_series(1, 2)")
    with pytest.raises(Exception, match="could not create unique index"):
        desk.query("CREATE UNIQUE INDEX CONCURRENTLY theirs ON posts (id)")
    assert "half-built indexes: half." in desk.run("upgrade", "--check", expect=2)
    assert "Dropped the half-built index half." in desk.run("upgrade", "--no-backup")
    assert "Nothing to do" in desk.run("upgrade", "--check")
    assert desk.query("SELECT COUNT(*) FROM pg_class WHERE relname IN ('theirs', 'half')") == [(1,)]


@pytest.mark.sqlite
def test_triggers_that_a_killed_upgrade_left_out_are_created_and_counted_again(desk):
    desk.run(code="bury(3)")
    for name in ("insert", "update", "delete"):
        desk.query(f"DROP TRIGGER failure_count_{name}")
    desk.run(code="bury(2)")
    assert "without the triggers that count" in desk.run("upgrade", "--check", expect=2)
    desk.run("upgrade", "--no-backup")
    assert desk.query("SELECT SUM(count) FROM jobs_admin_failurecount") == [(5,)]


@pytest.mark.long("Runs a desk's commands in processes of their own.")
def test_an_older_program_on_a_newer_database_is_one_sentence(desk):
    desk.query(
        "INSERT INTO django_migrations (app, name, applied) VALUES ('jobs_admin', '0999_later', '2026-11-27 10:00:00')"
    )
    sentence = (
        f"The database belongs to a newer version of Redrive: it has 0999_later, and this version knows up to {LATEST}."
    )
    for command in ("failures", "watch", "doctor", "upgrade", "backup x.zip", "migrate"):
        output = desk.run(*command.split(), expect=1)
        assert output.startswith(sentence) and output.count("\n") == 1, (command, output)
    web = [sys.executable, "-m", "dashboard.web", f"127.0.0.1:{free_port()}"]
    process = subprocess.Popen(
        web, cwd=ROOT, env=desk.variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    watchdog = threading.Timer(60, os.kill, (process.pid, signal.SIGTERM))
    watchdog.start()
    output = process.communicate()[0]
    watchdog.cancel()
    assert process.returncode not in (0, -signal.SIGTERM), output
    assert sentence in output and "Traceback" not in output, output
    desk.run("failures", REDRIVE_NEWER_SCHEMA="1")


def test_every_variable_of_the_code_is_known():
    pinned = json.loads((Path(ROOT) / "tests/pinned/environment.json").read_text())
    names = {name.removesuffix("_FILE") for name in pinned}
    of_settings = {"REDRIVE_CELERY_BROKER_URL", "REDRIVE_MOUNTED_AT", "REDRIVE_SENDS_MAIL", "REDRIVE_TEST_BACKENDS"}
    assert names - of_settings <= environment.KNOWN


@pytest.mark.parametrize(
    ("statement", "does", "lock"),
    [
        ('CREATE INDEX "a" ON "t" ("c");', "builds an index", plan.SHARE),
        ('CREATE INDEX CONCURRENTLY "a" ON "t" ("c");', "builds an index", plan.NONE),
        ('ALTER TABLE "t" ADD COLUMN "c" varchar(8) NULL;', "adds a column", plan.EXCLUSIVE),
        ('ALTER TABLE "t" ADD CONSTRAINT "k" CHECK (a > 0);', "adds a constraint and checks all rows", plan.EXCLUSIVE),
        (
            'ALTER TABLE "t" ALTER COLUMN "c" TYPE bigint USING "c"::bigint;',
            "changes the type of a column",
            plan.EXCLUSIVE,
        ),
        ('ALTER TABLE "t" ALTER COLUMN "c" SET NOT NULL;', "checks all rows", plan.EXCLUSIVE),
        ('UPDATE "t" SET c = 1;', "changes rows", plan.ROWS),
    ],
)
def test_the_lock_of_each_statement(statement, does, lock):
    effect, _ = plan.parse_statement(statement, "postgresql")
    assert (effect.table, effect.does, effect.lock) == ("t", does, lock)
    effect, _ = plan.parse_statement(statement, "sqlite")
    assert effect.lock == plan.WRITES_WAIT


def test_a_table_that_sqlite_rebuilds_is_named():
    effect, rate = plan.parse_statement('CREATE TABLE "new__jobs_admin_unfiled" ("id" integer);', "sqlite")
    assert (effect.table, effect.does, rate) == ("jobs_admin_unfiled", "rebuilds the table", "rebuild")
