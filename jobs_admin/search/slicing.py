"""Which terms of a search are served by slices of the failures' table: one value and one state, in order from one index."""

from __future__ import annotations

from django.db import connection

from jobs_admin.core import query as language
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.query import Age, Match, Numbers, Term, Time
from jobs_admin.models import Failure
from jobs_admin.search import scope as scopes

# Fields whose index is (field, state, id).
SLICED = ("group", "queue", "task", "tenant", "source", "kind", "attempts", "priority")
_MOST_NUMBERS = 8  # values of a number that are told apart


def is_timed(term: Term) -> bool:
    return isinstance(term, Age | Time) and not term.negated


def is_scanned(term: Term) -> bool:
    return any(language.is_scanned(leaf) for leaf in language.leaves((term,)))


def fields(term: Term) -> set[str]:
    return {language.field_of(leaf) for leaf in language.leaves((term,))}


def is_sliced(term: Term) -> bool:
    """Whether slices serve it. Tenants that begin so are many, and none may be in sight: walking would read every row."""
    begins = any(_is_pattern(leaf, "tenant") for leaf in language.leaves((term,)))
    return fields(term) <= {*SLICED, "state"} and not begins


def _is_pattern(leaf: Term, field: str) -> bool:
    return isinstance(leaf, Match) and leaf.field == field and any(value.glob for value in leaf.values)


def values(term: Term) -> tuple[str, list[object]] | None:
    """The column by which a term can be sliced, and every value of it that the term matches; None where it cannot."""
    if isinstance(term, Numbers) and term.field in SLICED and not term.negated:
        numbers = _numbers_in(term)
        return None if numbers is None else (term.field, numbers)
    if not isinstance(term, Match) or term.field not in SLICED:
        return None
    if term.field == "kind":
        named = scopes.kinds_named(term)
        return "kind", [kind for kind in KINDS if (kind in named) != term.negated]
    if term.negated or any(v.glob for v in term.values):
        return None
    if term.field == "group":
        return "group_id", [row["pk"] for row in scopes.groups_named(term)]
    return term.field, sorted({v.text for v in term.values})


def _numbers_in(term: Numbers) -> list[object] | None:
    """The values that a column has in these ranges, one step of its index for each; None where they are too many."""
    found: set[int] = set()
    column = connection.ops.quote_name(term.field)
    for low, high in term.ranges:
        upper = "" if high is None else f" AND {column} <= {int(high)}"
        above = f"{column} IS NOT NULL" if low is None else f"{column} >= {int(low)}"
        while True:
            value = _least(column, above + upper)
            if value is None:
                break
            found.add(value)
            if len(found) > _MOST_NUMBERS:
                return None
            above = f"{column} > {int(value)}"
    return sorted(found)


def _least(column: str, condition: str) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MIN({column}) FROM {Failure._meta.db_table} WHERE {condition}")
        found: int | None = cursor.fetchone()[0]
    return found
