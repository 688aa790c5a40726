"""Trigram filters (`core/trigrams.py`) of failures, one for each block of BLOCK ids.

Tables without models, like those of the term index. A block without a filter, or with a mark in STALE, is searched row
by row. Triggers mark a block in the transaction that inserts, changes or deletes one of its failures.

On PostgreSQL a writer of failures holds LOCK shared until it commits, and the process that fills filters holds it
exclusively, so that a filter never misses a concurrent change.
"""

from __future__ import annotations

from django.db import connections, transaction

from jobs_admin.core import trigrams
from jobs_admin.models.terms import STATE

FILTERS, STALE = "jobs_admin_textfilter", "jobs_admin_staletext"
BLOCK = 16  # ids
LOCK = 0x72656472_74657874  # key of one of PostgreSQL's advisory locks

# Columns of a failure whose text is in its filter.
COLUMNS = ("error_type", "message", "tenant", "release", "host", "worker", "first_job_id", "job_id")

_OF = "jobs_admin_failure"


def install_text_filters(using: str = "default", **_: object) -> None:
    """Create the tables and triggers if they do not exist, and empty them after the rules changed.

    Runs after every migrate.
    """
    connection = connections[using]
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.vendor]()
    # In one transaction: a writer sees either the old or the new triggers, never none.
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute(_COUNT_TRIGGERS[connection.vendor])
        was_watched = cursor.fetchone()[0] == _TRIGGERS[connection.vendor]
        for statement in statements:
            cursor.execute(statement)
        cursor.execute(f"SELECT version FROM {STATE} WHERE name = %s", [FILTERS])
        # SQLite drops the triggers of a table that a migration rebuilds: changes in that time have no mark.
        if not was_watched or cursor.fetchone() != (trigrams.VERSION,):
            for table in (FILTERS, STALE):
                cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"DELETE FROM {STATE} WHERE name = %s", [FILTERS])
            cursor.execute(f"INSERT INTO {STATE} (name, version) VALUES (%s, %s)", [FILTERS, trigrams.VERSION])


_TRIGGERS = {"sqlite": 3, "postgresql": 4}
_COUNT_TRIGGERS = {
    "sqlite": f"SELECT COUNT(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{_OF}' AND name GLOB '{FILTERS}_*'",
    "postgresql": "SELECT COUNT(*) FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D' "
    f"AND tgrelid = '{_OF}'::regclass AND starts_with(tgname, '{FILTERS}_')",
}


def _sqlite() -> list[str]:
    statements = [
        f"CREATE TABLE IF NOT EXISTS {FILTERS} (block integer PRIMARY KEY, filter blob NOT NULL)",
        f"CREATE TABLE IF NOT EXISTS {STALE} (block integer PRIMARY KEY)",
    ]
    changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in COLUMNS)
    triggers = {
        "insert": ("INSERT", "", "NEW"),
        "update": (f"UPDATE OF {', '.join(COLUMNS)}", f" WHEN {changed}", "NEW"),
        "delete": ("DELETE", "", "OLD"),
    }
    for name, (event, when, row) in triggers.items():
        statements += [
            f"DROP TRIGGER IF EXISTS {FILTERS}_{name}",
            f"CREATE TRIGGER {FILTERS}_{name} AFTER {event} ON {_OF} FOR EACH ROW{when} BEGIN "
            # Not OR IGNORE: SQLite uses the conflict clause of the triggering statement, and ingest inserts ON
            # CONFLICT.
            f"INSERT INTO {STALE} (block) SELECT block FROM {FILTERS} WHERE block = {row}.id / {BLOCK} "
            f"AND NOT EXISTS (SELECT 1 FROM {STALE} WHERE block = {row}.id / {BLOCK}); END",
        ]
    return statements


def _postgresql() -> list[str]:
    statements = [
        f"CREATE TABLE IF NOT EXISTS {FILTERS} (block bigint PRIMARY KEY, filter bytea NOT NULL)",
        # Without a unique key: two writers that mark the same blocks in different orders would deadlock.
        f"CREATE TABLE IF NOT EXISTS {STALE} (block bigint NOT NULL)",
        f"CREATE INDEX IF NOT EXISTS {STALE}_block ON {STALE} (block)",
    ]
    for name, rows in (("insert", "new_rows"), ("delete", "old_rows")):
        row = rows.partition("_")[0].upper()
        statements += [
            f"CREATE OR REPLACE FUNCTION {FILTERS}_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"PERFORM pg_advisory_xact_lock_shared({LOCK}); INSERT INTO {STALE} (block) "
            f"SELECT block FROM {FILTERS} WHERE block IN (SELECT id / {BLOCK} FROM {rows}); RETURN NULL; END $$",
            f"DROP TRIGGER IF EXISTS {FILTERS}_{name} ON {_OF}",
            f"CREATE TRIGGER {FILTERS}_{name} AFTER {name.upper()} ON {_OF} REFERENCING {row} TABLE AS {rows} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {FILTERS}_{name}()",
        ]
    old, new = (", ".join(f"{row}.{column}" for column in COLUMNS) for row in ("OLD", "NEW"))
    return [
        *statements,
        f"CREATE OR REPLACE FUNCTION {FILTERS}_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"PERFORM pg_advisory_xact_lock_shared({LOCK}); INSERT INTO {STALE} (block) "
        f"SELECT block FROM {FILTERS} WHERE block = NEW.id / {BLOCK}; RETURN NULL; END $$",
        f"DROP TRIGGER IF EXISTS {FILTERS}_update ON {_OF}",
        # Per row, because few updates change a text: a condition decides before the function is called.
        f"CREATE TRIGGER {FILTERS}_update AFTER UPDATE OF {', '.join(COLUMNS)} ON {_OF} FOR EACH ROW "
        f"WHEN (({old}) IS DISTINCT FROM ({new})) EXECUTE FUNCTION {FILTERS}_update()",
        f"CREATE OR REPLACE FUNCTION {FILTERS}_truncate() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN TRUNCATE {FILTERS}, {STALE}; RETURN NULL; END $$",
        f"DROP TRIGGER IF EXISTS {FILTERS}_truncate ON {_OF}",
        f"CREATE TRIGGER {FILTERS}_truncate AFTER TRUNCATE ON {_OF} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {FILTERS}_truncate()",
    ]
