"""Instances read by hand: to compile a statement, convert each value and make instances takes the ORM four times as long
as all that a page of fifty rows needs.

For columns of texts, numbers and times alone. A column that was not read is read when it is asked for, as with `only()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import DateTimeField, Model, QuerySet
from django.db.models.base import ModelState

Row = TypeVar("Row", bound=Model)


def instances(found: QuerySet[Row]) -> list[Row]:
    """The same as `list(found)`, with its annotations; no relation comes along."""
    model = found.model
    names = [field.attname for field in model._meta.concrete_fields] + list(found.query.annotations)
    times = [field.attname for field in model._meta.concrete_fields if isinstance(field, DateTimeField)]
    annotated = found.query.annotations.items()
    times += [name for name, one in annotated if isinstance(one.output_field, DateTimeField)]
    try:
        sql, values = found.query.sql_with_params()
    except EmptyResultSet:
        return []
    return [instance(model, names, read, times) for read in fetched(sql, values)]


def fetched(sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def instance(model: type[Row], names: Sequence[str], values: Sequence[object], times: Sequence[str] = ()) -> Row:
    """One with these columns; `times`: those of them that are times."""
    row = model.__new__(model)
    row.__dict__.update(zip(names, values, strict=True))
    for name in times:
        at = row.__dict__[name]
        if isinstance(at, str):  # SQLite's driver knows columns alone, not what is made of them
            at = row.__dict__[name] = datetime.fromisoformat(at)
        if isinstance(at, datetime) and at.tzinfo is None:  # SQLite's driver leaves out that it is of UTC
            row.__dict__[name] = at.replace(tzinfo=UTC)
    row._state = ModelState()
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    return row
