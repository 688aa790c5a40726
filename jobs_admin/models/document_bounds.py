"""Bounds of a policy's document in the database itself, in the language of each database.

A constraint over columns would leave the document beside them unchecked. These look into the document, so that a row
which someone writes by hand has the same bounds as one that a service writes. What a path does not find is not refused:
the document's reader has a default for it. A path may go over a list: `classes[*].as`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, CheckConstraint, Expression
from django.utils.deconstruct import deconstructible

COLUMN = "document"


# SQLite's words end in `,1)` without a blank: Django looks for a table's columns by ", " and falls over a lone character
# (django/db/backends/sqlite3/introspection.py, _get_column_collations, 5.2).


@deconstructible(path="jobs_admin.models.document_bounds.Holds")
class Holds(Expression):
    """A condition. A migration keeps its words, whatever becomes of the code that wrote them."""

    output_field = BooleanField()

    def __init__(self, postgresql: str, sqlite: str) -> None:
        super().__init__()
        self.postgresql, self.sqlite = postgresql, sqlite

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        return f"({self.postgresql if connection.vendor == 'postgresql' else self.sqlite})", []


class Bound(CheckConstraint):
    """Asked by the database alone: its words need a row of the table. `core.policy` says the same to people."""

    def validate(self, *args: Any, **kwargs: Any) -> None:
        pass


def number(path: str, least: float, most: float, *, integer: bool = False, longest: int = 1) -> Holds:
    """A number from `least` to `most`, or nothing. `longest`: entries of the list that the path goes over."""
    within = f'@.type() == "number" && @ >= {least:.12g} && @ <= {most:.12g}'
    is_integer = " && @.floor() == @" if integer else ""
    return Holds(
        _none_but(path, within + is_integer),
        # Text is greater than any number to SQLite.
        _each(
            path,
            longest,
            f"{{value}} BETWEEN {least:.12g} AND {most:.12g}" + (" AND {value} = round({value})" if integer else ""),
        ),
    )


def choice(path: str, choices: Sequence[str], *, longest: int = 1) -> Holds:
    """One of these words, or nothing."""
    one_of = " || ".join(f'@ == "{word}"' for word in choices)
    words = ", ".join(f"'{word}'" for word in choices)
    return Holds(
        _none_but(path, f'@.type() == "string" && ({one_of})'),
        _each(path, longest, f"{{value}} IN ({words})"),
    )


def text(path: str) -> Holds:
    """A text with something in it."""
    return Holds(
        f"COALESCE(jsonb_path_match({COLUMN}, 'strict $.{path}.type() == \"string\" && $.{path} != \"\"', '{{}}', true), false)",
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'text' AND json_extract({COLUMN}, '$.{path}') > '',0)",
    )


def unless_false(path: str, condition: Holds) -> Holds:
    """The condition, or false at `path`."""
    return Holds(
        f"COALESCE(jsonb_path_match({COLUMN}, 'strict $.{path} == false', '{{}}', true), false) OR {condition.postgresql}",
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'false',0) OR {condition.sqlite}",
    )


def at_most(path: str, longest: int) -> Holds:
    """A list with at most `longest` entries, or nothing."""
    return Holds(
        _none_but(path, f'@.type() == "array" && @.size() <= {longest}'),
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'array' AND json_array_length({COLUMN}, '$.{path}') <= {longest},1)",
    )


def not_below(path: str, other: str) -> Holds:
    """Not less than the other, where both are there."""
    return Holds(
        f"NOT jsonb_path_exists({COLUMN}, '$ ? (@.{path} < @.{other})')",
        f"COALESCE(json_extract({COLUMN}, '$.{path}') >= json_extract({COLUMN}, '$.{other}'),1)",
    )


def not_between(path: str, low: float, high: float) -> Holds:
    """Either of the two, or beyond them, or nothing."""
    found = f"json_extract({COLUMN}, '$.{path}')"
    return Holds(
        f"NOT jsonb_path_exists({COLUMN}, '$ ? (@.{path} > {low:.12g} && @.{path} < {high:.12g})')",
        f"COALESCE({found} <= {low:.12g} OR {found} >= {high:.12g},1)",
    )


def _none_but(path: str, condition: str) -> str:
    # Strict, so that a list where a number belongs is not looked into; silent, so that what is not there is no error
    # but NULL, which a constraint lets pass.
    where = f'strict $.{path} ? (!(@.type() == "null" || {condition}))'
    return f"(NOT jsonb_path_exists({COLUMN}, '{where}', '{{}}', true)) IS NOT FALSE"


def _each(path: str, longest: int, condition: str) -> str:
    """SQLite's constraints know no loops: each place of the list is written out."""
    places = [path.replace("[*]", f"[{n}]") for n in range(longest)]
    values = [f"json_extract({COLUMN}, '$.{place}')" for place in places]
    return " AND ".join(f"COALESCE({condition.format(value=value)},1)" for value in values)
