"""Limits of a policy's document as constraints of the database, in the SQL dialect of each.

Constraints on columns would leave the document itself unchecked. These check values in the document, so that a row
edited by hand has the same limits as one written by a service. A missing value is accepted: the document's parser has a
default for it. A path may include a list: `classes[*].as`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, CheckConstraint, Expression
from django.utils.deconstruct import deconstructible

COLUMN = "document"


# SQLite's expressions end in `,1)` without a space: Django splits a table's columns by ", " and fails on a single
# character (django/db/backends/sqlite3/introspection.py, _get_column_collations, 5.2).


@deconstructible(path="jobs_admin.models.document_bounds.Holds")
class Holds(Expression):
    """A condition. A migration stores its SQL, independent of later changes to this code."""

    output_field = BooleanField()

    def __init__(self, postgresql: str, sqlite: str) -> None:
        super().__init__()
        self.postgresql, self.sqlite = postgresql, sqlite

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        return f"({self.postgresql if connection.vendor == 'postgresql' else self.sqlite})", []


class Bound(CheckConstraint):
    """Constraint checked only by the database: its SQL needs a row of the table.

    `core.policy` has the same check with messages.
    """

    def validate(self, *args: Any, **kwargs: Any) -> None:
        pass


def number(path: str, least: float, most: float, *, integer: bool = False, longest: int = 1) -> Holds:
    """Return the condition that a value is a number from `least` to `most`, or missing.

    `longest`: maximum number of entries of the list in the path.
    """
    within = f'@.type() == "number" && @ >= {least:.12g} && @ <= {most:.12g}'
    is_integer = " && @.floor() == @" if integer else ""
    return Holds(
        _none_but(path, within + is_integer),
        # SQLite sorts text after all numbers.
        _each(
            path,
            longest,
            f"{{value}} BETWEEN {least:.12g} AND {most:.12g}" + (" AND {value} = round({value})" if integer else ""),
        ),
    )


def choice(path: str, choices: Sequence[str], *, longest: int = 1) -> Holds:
    """Return the condition that a value is one of these words, or missing."""
    one_of = " || ".join(f'@ == "{word}"' for word in choices)
    words = ", ".join(f"'{word}'" for word in choices)
    return Holds(
        _none_but(path, f'@.type() == "string" && ({one_of})'),
        _each(path, longest, f"{{value}} IN ({words})"),
    )


def text(path: str) -> Holds:
    """Return the condition that a value is non-empty text."""
    return Holds(
        f"COALESCE(jsonb_path_match({COLUMN}, 'strict $.{path}.type() == \"string\" && $.{path} != \"\"', '{{}}', true), false)",
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'text' AND json_extract({COLUMN}, '$.{path}') > '',0)",
    )


def unless_false(path: str, condition: Holds) -> Holds:
    """Return the condition, which does not apply if the value at `path` is false."""
    return Holds(
        f"COALESCE(jsonb_path_match({COLUMN}, 'strict $.{path} == false', '{{}}', true), false) OR {condition.postgresql}",
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'false',0) OR {condition.sqlite}",
    )


def at_most(path: str, longest: int) -> Holds:
    """Return the condition that a list has at most `longest` entries, or is missing."""
    return Holds(
        _none_but(path, f'@.type() == "array" && @.size() <= {longest}'),
        f"COALESCE(json_type({COLUMN}, '$.{path}') = 'array' AND json_array_length({COLUMN}, '$.{path}') <= {longest},1)",
    )


def not_below(path: str, other: str) -> Holds:
    """Return the condition that a value is not less than the other, if both are present."""
    return Holds(
        f"NOT jsonb_path_exists({COLUMN}, '$ ? (@.{path} < @.{other})')",
        f"COALESCE(json_extract({COLUMN}, '$.{path}') >= json_extract({COLUMN}, '$.{other}'),1)",
    )


def not_between(path: str, low: float, high: float) -> Holds:
    """Return the condition that a value is one of the two, or outside of them, or missing."""
    found = f"json_extract({COLUMN}, '$.{path}')"
    return Holds(
        f"NOT jsonb_path_exists({COLUMN}, '$ ? (@.{path} > {low:.12g} && @.{path} < {high:.12g})')",
        f"COALESCE({found} <= {low:.12g} OR {found} >= {high:.12g},1)",
    )


def _none_but(path: str, condition: str) -> str:
    # Strict, so that a list in the place of a number is not unwrapped; silent, so that a missing value is NULL, which a
    # constraint accepts, rather than an error.
    where = f'strict $.{path} ? (!(@.type() == "null" || {condition}))'
    return f"(NOT jsonb_path_exists({COLUMN}, '{where}', '{{}}', true)) IS NOT FALSE"


def _each(path: str, longest: int, condition: str) -> str:
    """SQLite's constraints have no loops: each place of the list is written out."""
    places = [path.replace("[*]", f"[{n}]") for n in range(longest)]
    values = [f"json_extract({COLUMN}, '$.{place}')" for place in places]
    return " AND ".join(f"COALESCE({condition.format(value=value)},1)" for value in values)
