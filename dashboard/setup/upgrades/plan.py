"""Pending migrations, the tables that each locks, and an estimate of the time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

# Rows per second, measured on SQLite with a table of a million failures, on two busy cores (bench/results.md).
RATES = {"rebuild": 1_000, "update": 12_000, "index": 60_000, "scan": 90_000, "keys": 200_000}
_NOTHING = 0.05  # seconds for a statement that reads no row

WRITES_WAIT = "all writes to the database wait"
EXCLUSIVE = "ACCESS EXCLUSIVE: reads and writes of the table wait"
SHARE = "SHARE: writes to the table wait"
ROWS = "ROW EXCLUSIVE: only writes to the same rows wait"
NONE = "none"

_NAME = r'"?(\w+)"?'
# SQL -> (effect, lock on PostgreSQL, rate at which it reads rows). The first match counts.
_STATEMENTS: list[tuple[str, str, str, str]] = [
    (rf'CREATE TABLE "?new__{_NAME}', "rebuilds the table", EXCLUSIVE, "rebuild"),
    (rf"CREATE TABLE {_NAME}", "creates the table", NONE, ""),
    (rf"CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ON {_NAME}", "builds an index", NONE, "index"),
    (rf"CREATE (?:UNIQUE )?INDEX .*? ON {_NAME}", "builds an index", SHARE, "index"),
    (rf"ALTER TABLE {_NAME} .*ALTER COLUMN \S+ TYPE", "changes the type of a column", EXCLUSIVE, "rebuild"),
    (rf"ALTER TABLE {_NAME} .*SET NOT NULL", "checks all rows", EXCLUSIVE, "scan"),
    (rf"ALTER TABLE {_NAME} .*ADD CONSTRAINT .*NOT VALID", "adds a constraint for new rows", EXCLUSIVE, ""),
    (rf"ALTER TABLE {_NAME} .*ADD CONSTRAINT", "adds a constraint and checks all rows", EXCLUSIVE, "scan"),
    (rf"ALTER TABLE {_NAME} .*VALIDATE CONSTRAINT", "checks all rows", NONE, "scan"),
    (rf"ALTER TABLE {_NAME} .*ADD COLUMN", "adds a column", EXCLUSIVE, ""),
    (rf"ALTER TABLE {_NAME} .*DROP COLUMN", "drops a column", EXCLUSIVE, ""),
    (rf"ALTER TABLE {_NAME} .*RENAME", "renames the table or a column", EXCLUSIVE, ""),
    (rf"ALTER TABLE {_NAME}", "alters the table", EXCLUSIVE, ""),
    (rf"DROP TABLE {_NAME}", "drops the table", EXCLUSIVE, ""),
    (rf"UPDATE {_NAME}", "changes rows", ROWS, "update"),
    (rf"DELETE FROM {_NAME}", "deletes rows", ROWS, "update"),
]
_CODE = "CANNOT BE WRITTEN AS SQL"


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a migration on one table."""

    table: str  # "": unknown before it runs
    does: str
    lock: str
    rows: int
    seconds: float | None  # None: unknown before it runs


@dataclass(frozen=True, slots=True)
class Pending:
    name: str  # `jobs_admin.0024_sources_of_groups`
    effects: tuple[Effect, ...]

    @property
    def seconds(self) -> float:
        return sum(effect.seconds or 0.0 for effect in self.effects)


def find_pending() -> list[Pending]:
    """Return the pending migrations in order, without applying them."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    tables = set(connection.introspection.table_names())
    counts: dict[str, int] = {}
    found = []
    for migration, _ in plan:
        try:
            statements = executor.loader.collect_sql([(migration, False)])
        except Exception:
            statements = [_CODE]
        effects = [parse_statement(text, connection.vendor) for text in statements]
        mine = _merge([effect for effect in effects if effect is not None])
        effects = _count_rows_of(mine, tables, counts)
        if connection.vendor == "sqlite":
            effects.append(_check_of_keys(counts))
        found.append(Pending(f"{migration.app_label}.{migration.name}", tuple(effects)))
    return found


def _check_of_keys(counts: dict[str, int]) -> Effect:
    """Return the check of foreign keys in all tables with which Django ends each migration on SQLite."""
    for table in connection.introspection.django_table_names(only_existing=True):
        if table not in counts:
            counts[table] = count_rows(table)
    rows = sum(counts.values())
    return Effect("", "checks all foreign keys", WRITES_WAIT, rows, _NOTHING + rows / RATES["keys"])


def parse_statement(text: str, vendor: str) -> tuple[Effect, str] | None:
    """Return the effect of a statement, without its rows, and the rate at which it reads them; None without effect."""
    text = " ".join(line for line in text.splitlines() if not line.startswith("--") or _CODE in line)
    if _CODE in text:
        return Effect("", "runs Python code over rows", WRITES_WAIT if vendor == "sqlite" else ROWS, 0, None), ""
    for pattern, does, lock, rate in _STATEMENTS:
        if found := re.match(pattern, text):
            return Effect(found[1], does, WRITES_WAIT if vendor == "sqlite" else lock, 0, _NOTHING), rate
    return None


def _merge(effects: list[tuple[Effect, str]]) -> list[tuple[Effect, str]]:
    """Remove repetitions, and the indexes and renames that belong to a rebuild of the same table."""
    rebuilt = {effect.table for effect, _ in effects if effect.does == "rebuilds the table"}
    made = {effect.table for effect, _ in effects if effect.does == "creates the table"}
    found: list[tuple[Effect, str]] = []
    for effect, rate in effects:
        first = "creates the table" if effect.table in made else "rebuilds the table"
        is_part = effect.table.startswith("new__") or (effect.table in made | rebuilt and effect.does != first)
        if not is_part and (effect, rate) not in found:
            found.append((effect, rate))
    return found


def _count_rows_of(effects: list[tuple[Effect, str]], tables: set[str], counts: dict[str, int]) -> list[Effect]:
    found = []
    for effect, rate in effects:
        if effect.table in tables and effect.table not in counts:
            counts[effect.table] = count_rows(effect.table)
        rows = counts.get(effect.table, 0)
        seconds = effect.seconds + rows / RATES[rate] if rate and effect.seconds is not None else effect.seconds
        found.append(Effect(effect.table, effect.does, effect.lock, rows, seconds))
    return found


def count_rows(table: str) -> int:
    """Return the number of rows; for a large table on PostgreSQL its estimate."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table])
            estimate = int(cursor.fetchone()[0])
            if estimate > 100_000:
                return estimate
        cursor.execute(f'SELECT COUNT(*) FROM "{table}"')
        return int(cursor.fetchone()[0])


def as_json(pending: Pending) -> dict[str, Any]:
    effects = [
        {"table": one.table, "does": one.does, "lock": one.lock, "rows": one.rows, "seconds": _rounded(one.seconds)}
        for one in pending.effects
    ]
    return {"name": pending.name, "seconds": _rounded(pending.seconds), "effects": effects}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
