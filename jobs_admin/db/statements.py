"""Statements on many rows at once, in SQL for both SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models import DateTimeField, Model, QuerySet
from django.db.models.base import ModelState

Row = TypeVar("Row", bound=Model)


def fetch_instances(found: QuerySet[Row]) -> list[Row]:
    """Return the same as `list(found)`, with annotations but without related objects."""
    model = found.model
    names = [field.attname for field in model._meta.concrete_fields] + list(found.query.annotations)
    times = [field.attname for field in model._meta.concrete_fields if isinstance(field, DateTimeField)]
    annotated = found.query.annotations.items()
    times += [name for name, one in annotated if isinstance(one.output_field, DateTimeField)]
    try:
        sql, values = found.query.sql_with_params()
    except EmptyResultSet:
        return []
    return [build_instance(model, names, read, times) for read in fetch_rows(sql, values)]


def fetch_rows(sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def fetch_number(sql: str, values: Sequence[object] = ()) -> Any:
    """Return the first column of the first row: a number, or None."""
    return fetch_rows(sql, values)[0][0]


def build_instance(model: type[Row], names: Sequence[str], values: Sequence[object], times: Sequence[str] = ()) -> Row:
    """Return an instance with these columns; `times`: the columns that are times."""
    row = model.__new__(model)
    row.__dict__.update(zip(names, values, strict=True))
    for name in times:
        at = row.__dict__[name]
        if isinstance(at, str):  # SQLite's driver converts columns, but not expressions
            at = row.__dict__[name] = datetime.fromisoformat(at)
        if isinstance(at, datetime) and at.tzinfo is None:  # SQLite's driver omits the time zone, UTC
            row.__dict__[name] = at.replace(tzinfo=UTC)
    row._state = ModelState()
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    return row


_MOST_PARAMETERS = 32_000  # values per statement on PostgreSQL


def insert(
    model: type[models.Model],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    conflict: str,
    returning: Sequence[str] = (),
) -> list[tuple[Any, ...]]:
    """Insert `rows`; `conflict` decides about existing rows (`DO NOTHING`, …).

    Return the `returning` columns of the written rows; they may be requested only with `DO NOTHING`, inside a
    transaction. Always pass the rows in the same order: two writers that lock the same rows in different orders would
    deadlock.
    """
    if not rows:
        return []
    names = ", ".join(f'"{name}"' for name in columns)
    head = f'INSERT INTO "{model._meta.db_table}" ({names}) VALUES '
    tail = f" ON CONFLICT {conflict}"
    if connection.vendor == "sqlite":
        times = [i for i, name in enumerate(columns) if isinstance(_field(model, name), models.DateTimeField)]
        sql = f"{head}({', '.join(['%s'] * len(columns))}){tail}"
        return _insert_prepared(model, sql, _parameters(rows, times), returning)
    if returning:
        tail += " RETURNING " + ", ".join(f'"{name}"' for name in returning)
    one = f"({', '.join(['%s'] * len(columns))})"
    at_once = _MOST_PARAMETERS // len(columns)
    written: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for start in range(0, len(rows), at_once):
            # Each row is formatted separately: finding 15,000 placeholders in one text takes the driver longer than the
            # server needs for the rows.
            values = ", ".join(cursor.mogrify(one, row) for row in rows[start : start + at_once])
            cursor.execute(f"{head}{values}{tail}")
            if returning:
                written += cursor.fetchall()
    return written


def _insert_prepared(
    model: type[models.Model], sql: str, rows: Sequence[Sequence[Any]], returning: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Insert on SQLite with one statement that is prepared once.

    Reading rows again costs less than returning each: in a transaction no one else writes, and ids only increase.
    """
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if returning:
            cursor.execute(f'SELECT COALESCE(max(id), 0) FROM "{table}"')
            last = cursor.fetchone()[0]
        cursor.executemany(sql, rows)
        if not returning:
            return []
        names = ", ".join(f'"{name}"' for name in returning)
        cursor.execute(f'SELECT {names} FROM "{table}" WHERE id > %s ORDER BY id', [last])
        return cursor.fetchall()


def find(
    model: type[models.Model], columns: Sequence[str], *, among: tuple[str, Sequence[str]], **equal: str
) -> list[tuple[Any, ...]]:
    """Return the rows, unordered, whose one column is among many texts and whose others equal the given values.

    The texts are one parameter: prepared individually by the ORM, 500 job ids cost more than looking them up.
    """
    column, values = among
    if not values:
        return []
    among_values, given = one_of(column, values)
    wanted = "".join(f'"{name}" = %s AND ' for name in equal)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(columns)} FROM {model._meta.db_table} WHERE {wanted}TRUE {among_values}",
            [*equal.values(), *given],
        )
        return cursor.fetchall()


def delete(model: type[models.Model], column: str, ids: Sequence[int]) -> int:
    """Delete the rows whose `column` is among the ids, without what refers to them. Return their number."""
    among, given = one_of(column, ids)
    with connection.cursor() as cursor:
        cursor.execute(f'DELETE FROM "{model._meta.db_table}" WHERE TRUE {among}', given)
        return cursor.rowcount


def clear(model: type[models.Model], column: str, ids: Sequence[int]) -> None:
    """Set `column` to NULL where it is among the ids."""
    among, given = one_of(column, ids)
    with connection.cursor() as cursor:
        cursor.execute(f'UPDATE "{model._meta.db_table}" SET {column} = NULL WHERE TRUE {among}', given)


def one_of(column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return SQL ` AND column is among the values`, and its one parameter."""
    if connection.vendor == "sqlite":
        return f"AND {column} IN (SELECT value FROM json_each(%s))", [json.dumps(list(values))]
    return f"AND {column} = ANY(%s)", [list(values)]


def replace(columns: Sequence[str], *, key: Sequence[str]) -> str:
    """Return the `conflict` that gives an existing row the new values of all columns but its key."""
    changed = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in key)
    return f"({', '.join(key)}) DO UPDATE SET {changed}"


def add(model: type[models.Model], columns: Sequence[str], *, key: Sequence[str]) -> str:
    """Return the `conflict` that adds the new row's numbers to those of an existing row."""
    table = model._meta.db_table
    changed = ", ".join(f'"{name}" = "{table}"."{name}" + excluded."{name}"' for name in columns if name not in key)
    return f"({', '.join(key)}) DO UPDATE SET {changed}"


def _field(model: type[models.Model], column: str) -> Any:
    return next(field for field in model._meta.concrete_fields if field.column == column)


def _parameters(rows: Sequence[Sequence[Any]], times: Sequence[int]) -> Sequence[Sequence[Any]]:
    """Return the rows in SQLite's format: the columns `times` as text."""
    if not times:
        return rows
    given = [list(row) for row in rows]
    for row in given:
        for i in times:
            if row[i] is not None:
                row[i] = _as_text(row[i])
    return given


@lru_cache(maxsize=4096)  # a row, and rows that are written together, repeat the same time
def _as_text(at: datetime) -> str:
    """Return a time in Django's text format for SQLite, which has no type for times."""
    if at.tzinfo is UTC:  # the usual case, at a fifth of the cost
        return str(at.replace(tzinfo=None))
    return connection.ops.adapt_datetimefield_value(at)


def update(model: type[models.Model], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Update `columns` of each row, whose id is in the last place."""
    if not rows:
        return
    changed = ", ".join(f'"{name}" = %s' for name in columns)
    if connection.vendor == "sqlite":
        rows = _parameters(
            rows, [i for i, name in enumerate(columns) if isinstance(_field(model, name), models.DateTimeField)]
        )
    with connection.cursor() as cursor:
        cursor.executemany(f'UPDATE "{model._meta.db_table}" SET {changed} WHERE id = %s', rows)
