"""The search index: the terms of failures and stacks (`core/search_terms.py`), in SQLite's FTS5 or PostgreSQL's GIN.

Tables without models, because Django supports neither type. A row is deleted with its failure or stack.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, connections, transaction

from jobs_admin.core import search_terms

FAILURES, STACKS = "jobs_admin_failureterms", "jobs_admin_stackterms"
STATE = "jobs_admin_termsstate"  # the version of the rules for each table, and the progress of rebuilding
_OF = {FAILURES: "jobs_admin_failure", STACKS: "jobs_admin_traceback"}


def write_failures(rows: Sequence[tuple[int, str]]) -> None:
    """Write (id, `terms.document`) of each failure, replacing earlier ones. In the caller's transaction."""
    _write(FAILURES, rows)


def write_stacks(rows: Sequence[tuple[int, str]]) -> None:
    """Write (id, `terms.stack_document`) of each traceback."""
    _write(STACKS, rows)


def _write(table: str, rows: Sequence[tuple[int, str]]) -> None:
    if not rows:
        return
    # In a fixed order: two writers that lock the same rows in different orders would deadlock.
    rows = sorted(rows)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.executemany(f"INSERT OR REPLACE INTO {table}(rowid, terms) VALUES (%s, %s)", rows)
        else:
            cursor.execute(
                f"INSERT INTO {table} (id, terms) SELECT id, terms::tsvector "
                "FROM unnest(%s::bigint[], %s::text[]) AS new(id, terms) ORDER BY id "
                "ON CONFLICT (id) DO UPDATE SET terms = excluded.terms",
                [[pk for pk, _ in rows], [as_tsvector(document) for _, document in rows]],
            )


def as_tsvector(document: str) -> str:
    """Return the document in PostgreSQL's syntax: each term with its positions.

    Terms contain neither quotes nor backslashes.
    """
    return " ".join(
        f"'{term}':{','.join(map(str, at))}" if at else f"'{term}'"
        for term, at in search_terms.places(document).items()
    )


def install_terms(using: str = "default", **_: object) -> None:
    """Create the tables and triggers if they do not exist. Runs after every migrate."""
    connection = connections[using]
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.vendor]()
    # In one transaction: a writer sees either the old or the new triggers, never none.
    with transaction.atomic(using=using), connection.cursor() as cursor:
        for statement in statements:
            try:
                cursor.execute(statement)
            except DatabaseError as error:
                if "fts5" not in str(error):
                    raise
                raise ImproperlyConfigured(
                    "This Python's SQLite has no FTS5, which search needs: use another build, or PostgreSQL."
                ) from error


def _sqlite() -> list[str]:
    statements = [_STATE]
    for table, of in _OF.items():
        statements += [
            # The terms come from this code, so the tokenizer only splits at spaces. `columnsize` is for ranking, which
            # is not used.
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING "
            f"fts5(terms, columnsize=0, tokenize=\"ascii tokenchars '{search_terms.MARKS}'\")",
            f"DROP TRIGGER IF EXISTS {table}_delete",
            f"CREATE TRIGGER {table}_delete AFTER DELETE ON {of} FOR EACH ROW "
            f"BEGIN DELETE FROM {table} WHERE rowid = OLD.id; END",
            _initial_state(table, of),
        ]
    return statements


def _postgresql() -> list[str]:
    statements = [_STATE]
    for table, of in _OF.items():
        statements += [
            f"CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, terms tsvector NOT NULL)",
            # Every search scans the index's list of pending words, so it is limited to a megabyte.
            f"CREATE INDEX IF NOT EXISTS {table}_gin ON {table} USING gin (terms) WITH (gin_pending_list_limit = 1024)",
            f"CREATE OR REPLACE FUNCTION {table}_delete() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN DELETE FROM {table} WHERE id IN (SELECT id FROM old_rows); RETURN NULL; END $$",
            f"DROP TRIGGER IF EXISTS {table}_delete ON {of}",
            f"CREATE TRIGGER {table}_delete AFTER DELETE ON {of} REFERENCING OLD TABLE AS old_rows "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_delete()",
            f"CREATE OR REPLACE FUNCTION {table}_truncate() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN TRUNCATE {table}; RETURN NULL; END $$",
            f"DROP TRIGGER IF EXISTS {table}_truncate ON {of}",
            f"CREATE TRIGGER {table}_truncate AFTER TRUNCATE ON {of} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_truncate()",
            _initial_state(table, of),
        ]
    return statements


_STATE = f"CREATE TABLE IF NOT EXISTS {STATE} (name varchar(63) PRIMARY KEY, version integer NOT NULL, below bigint)"


def _initial_state(table: str, of: str) -> str:
    """Return SQL that records the version of the rules: the current one for an empty table, unknown for any other."""
    return (
        f"INSERT INTO {STATE} (name, version, below) "
        f"SELECT '{table}', CASE WHEN EXISTS (SELECT 1 FROM {of}) THEN 0 ELSE {search_terms.VERSION} END, NULL "
        f"WHERE NOT EXISTS (SELECT 1 FROM {STATE} WHERE name = '{table}')"
    )
