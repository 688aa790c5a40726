"""Terms that slices of the table of failures serve: their column, and each value of it that they match.

The index of such a column is (column, state, id): a slice of one value and one state is in order of its ids.
"""

from __future__ import annotations

from dataclasses import replace

from django.db import connection

from jobs_admin.core import query as language
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.query import Match, Numbers, Term
from jobs_admin.db.statements import fetch_number
from jobs_admin.models import Failure
from jobs_admin.search import scope as scopes

# Fields whose index is (field, state, id).
SLICED = ("group", "queue", "task", "tenant", "source", "kind", "attempts", "priority")
_MOST_NUMBERS = 8  # values of a number that are told apart


def fields_of(term: Term) -> set[str]:
    return {language.field_of(leaf) for leaf in language.leaves((term,))}


def is_sliced(term: Term) -> bool:
    """Return whether slices serve the term. Tenants with a common beginning are many, and none may be in sight: walking
    would read every row.
    """
    begins = any(_is_pattern(leaf, "tenant") for leaf in language.leaves((term,)))
    return fields_of(term) <= {*SLICED, "state"} and not begins


def _is_pattern(leaf: Term, field: str) -> bool:
    return isinstance(leaf, Match) and leaf.field == field and any(value.glob for value in leaf.values)


def sliceable_values(term: Term) -> tuple[str, list[object]] | None:
    """The column by which a term can be sliced, and every value of it that the term matches; None where it cannot."""
    if isinstance(term, Numbers) and term.field in SLICED and (not term.negated or term.field == "attempts"):
        numbers = _numbers_in_ranges(_complement(term) if term.negated else term)
        return None if numbers is None else (term.field, numbers)
    if not isinstance(term, Match) or term.field not in SLICED or term.field == "priority":
        return None  # which numbers a level of priority has depends on the source
    if term.field == "kind":
        named = scopes.kinds_named(term)
        return "kind", [kind for kind in KINDS if (kind in named) != term.negated]
    if term.negated or any(v.glob for v in term.values):
        return None
    if term.field == "group":
        return "group_id", [row["pk"] for row in scopes.groups_named(term)]
    return term.field, sorted({v.text for v in term.values})


def _complement(term: Numbers) -> Numbers:
    """The ranges of whole numbers that these leave out."""
    left, low = list[tuple[int | None, int | None]](), 0
    for first, last in sorted(((first or 0), last) for first, last in term.ranges):
        if first > low:
            left.append((low, first - 1))
        if last is None:
            return replace(term, ranges=tuple(left))
        low = max(low, last + 1)
    return replace(term, ranges=(*left, (low, None)))


def _numbers_in_ranges(term: Numbers) -> list[object] | None:
    """The values that a column has in these ranges, one step of its index for each; None where they are too many."""
    found: set[int] = set()
    column = connection.ops.quote_name(term.field)
    for low, high in term.ranges:
        upper = "" if high is None else f" AND {column} <= {int(high)}"
        above = f"{column} IS NOT NULL" if low is None else f"{column} >= {int(low)}"
        while True:
            value = fetch_number(f"SELECT MIN({column}) FROM {Failure._meta.db_table} WHERE {above}{upper}")
            if value is None:
                break
            found.add(value)
            if len(found) > _MOST_NUMBERS:
                return None
            above = f"{column} > {int(value)}"
    return sorted(found)
