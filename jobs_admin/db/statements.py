"""Many rows in one statement, written the same for SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.db import connection, models

# SQLite takes 32,766 parameters in a statement (its default since 3.32).
_MOST_PARAMETERS = 32_000


def insert(
    model: type[models.Model],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    conflict: str,
    returning: Sequence[str] = (),
) -> list[tuple[Any, ...]]:
    """Insert `rows`; what happens to a row that is there already is said by `conflict` (`DO NOTHING`, …).

    Answers the `returning` columns of the rows that were written. Give the rows in one order everywhere:
    two writers that lock the same rows in different orders would lock each other out.
    """
    if not rows:
        return []
    names = ", ".join(f'"{name}"' for name in columns)
    head = f'INSERT INTO "{model._meta.db_table}" ({names})'
    tail = f"ON CONFLICT {conflict}"
    if returning:
        tail += " RETURNING " + ", ".join(f'"{name}"' for name in returning)
    one = f"({', '.join(['%s'] * len(columns))})"
    at_once = _MOST_PARAMETERS // len(columns)
    times = [i for i, name in enumerate(columns) if isinstance(_field(model, name), models.DateTimeField)]
    written: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            if connection.vendor == "sqlite":
                values = ", ".join([one] * len(part))
                cursor.execute(f"{head} VALUES {values} {tail}", _parameters(part, times))
            else:
                # Each row is put in by itself: to find 15,000 places in one text takes the driver longer than the
                # rows take the server.
                values = ", ".join(cursor.mogrify(one, row) for row in part)
                cursor.execute(f"{head} VALUES {values} {tail}")
            if returning:
                written += cursor.fetchall()
    return written


def find(
    model: type[models.Model], columns: Sequence[str], *, among: tuple[str, Sequence[str]], **equal: str
) -> list[tuple[Any, ...]]:
    """The rows whose one column is among many texts, and others equal what is named; in no order.

    The texts go as one parameter: prepared one by one by the ORM, 500 names of jobs cost more than looking them up.
    """
    column, values = among
    if not values:
        return []
    if connection.vendor == "sqlite":
        one_of, given = "IN (SELECT value FROM json_each(%s))", json.dumps(list(values))
    else:
        one_of, given = "= ANY(%s)", list(values)
    wanted = "".join(f'"{name}" = %s AND ' for name in equal)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(columns)} FROM {model._meta.db_table} WHERE {wanted}{column} {one_of}",
            [*equal.values(), given],
        )
        return cursor.fetchall()


def replace(columns: Sequence[str], *, key: Sequence[str]) -> str:
    """The `conflict` that gives an existing row the new values of all columns but its key."""
    changed = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in key)
    return f"({', '.join(key)}) DO UPDATE SET {changed}"


def add(model: type[models.Model], columns: Sequence[str], *, key: Sequence[str]) -> str:
    """The `conflict` that adds the new row's numbers to those of an existing row."""
    table = model._meta.db_table
    changed = ", ".join(f'"{name}" = "{table}"."{name}" + excluded."{name}"' for name in columns if name not in key)
    return f"({', '.join(key)}) DO UPDATE SET {changed}"


def _field(model: type[models.Model], column: str) -> Any:
    return next(field for field in model._meta.concrete_fields if field.column == column)


def _parameters(rows: Sequence[Sequence[Any]], times: Sequence[int]) -> list[Any]:
    if not times or connection.vendor != "sqlite":
        return [value for row in rows for value in row]
    flat = [value for row in rows for value in row]
    width = len(rows[0])
    for i in times:
        flat[i::width] = [None if at is None else _as_text(at) for at in flat[i::width]]
    return flat


@lru_cache(maxsize=4096)  # a row, and rows that are written together, hold the same time several times
def _as_text(at: datetime) -> str:
    """A time as Django writes and compares it on SQLite, which has no type for times."""
    if at.tzinfo is UTC:  # the usual case, at a fifth of the cost
        return str(at.replace(tzinfo=None))
    return connection.ops.adapt_datetimefield_value(at)


def update(model: type[models.Model], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Give each row, named by its id in the last place, new values of `columns`."""
    if not rows:
        return
    changed = ", ".join(f'"{name}" = %s' for name in columns)
    times = [i for i, name in enumerate(columns) if isinstance(_field(model, name), models.DateTimeField)]
    width = len(columns) + 1
    flat = _parameters(rows, times)
    with connection.cursor() as cursor:
        cursor.executemany(
            f'UPDATE "{model._meta.db_table}" SET {changed} WHERE id = %s',
            [flat[start : start + width] for start in range(0, len(flat), width)],
        )
