"""Slices of the table of failures, by time of arrival or column value, read instead of the complete table.

Ids increase in order of arrival. The index of a column is (column, state, id), so a slice of one value and one state is
ordered by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import connection

from jobs_admin.core import query as language
from jobs_admin.core.envelope import KINDS
from jobs_admin.core.query import Age, Match, Numbers, Term, Time
from jobs_admin.db.statements import fetch_number
from jobs_admin.models import Failure
from jobs_admin.search import scope as scopes

# Fields whose index is (field, state, id).
SLICED = ("group", "dependency", "queue", "task", "tenant", "source", "kind", "attempts", "priority")
_MOST_NUMBERS = 8  # distinct values of a number


def is_timed(term: Term) -> bool:
    return isinstance(term, Age | Time)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Ids that arrived within a time range: all after `above` up to `last`, and `others` outside of these."""

    above: int
    last: int
    others: list[int]

    def condition(self, row: str) -> str:
        """Return the condition on an id of the index, to be appended with AND."""
        if not self.others:
            return f" AND {row} > {self.above} AND {row} <= {self.last}"
        lowest, highest = min(self.above + 1, *self.others), max(self.last, *self.others)
        ids = ", ".join(map(str, self.others))
        return (
            f" AND {row} BETWEEN {lowest} AND {highest} "
            f"AND ((+{row} > {self.above} AND +{row} <= {self.last}) OR +{row} IN ({ids}))"
        )


def bounds(terms: Sequence[Term], now: datetime, *, is_start: bool) -> list[datetime]:
    """Return the lower bounds (`is_start`) or the upper bounds of the terms of time."""
    found = []
    for term in terms:
        if isinstance(term, Age | Time):
            is_after, moment = scopes.named_time(term, now)
            if (is_after != term.negated) == is_start:
                found.append(moment)
    return found


def find_arrived_by(moment: datetime, highest: int) -> int:
    """Return about the highest id that had arrived by then: ids increase with time unless the clock was set back."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        found = Failure.objects.filter(pk__lte=middle).order_by("-pk").values_list("received_at", flat=True)[:1]
        if all(at <= moment for at in found):
            low = middle
        else:
            high = middle - 1
    return low


def fields_of(term: Term) -> set[str]:
    return {language.field_of(leaf) for leaf in language.leaves((term,))}


def is_sliced(term: Term) -> bool:
    """Return whether slices answer the term.

    Many tenants can share a prefix, and all may be out of the viewer's sight: a scan would then read every row.
    """
    begins = any(_is_pattern(leaf, "tenant") for leaf in language.leaves((term,)))
    return fields_of(term) <= {*SLICED, "state"} and not begins


def _is_pattern(leaf: Term, field: str) -> bool:
    return isinstance(leaf, Match) and leaf.field == field and any(value.glob for value in leaf.values)


def sliceable_values(term: Term) -> tuple[str, list[object]] | None:
    """Return the column by which the term can be sliced and its matching values; None if it cannot be sliced."""
    if isinstance(term, Numbers) and term.field in SLICED and (not term.negated or term.field == "attempts"):
        numbers = _numbers_in_ranges(_complement(term) if term.negated else term)
        return None if numbers is None else (term.field, numbers)
    if not isinstance(term, Match) or term.field not in SLICED or term.field == "priority":
        return None  # the numbers of a priority level depend on the source
    if term.field == "kind":
        named = scopes.kinds_named(term)
        return "kind", [kind for kind in KINDS if (kind in named) != term.negated]
    if term.field == "dependency":
        groups = None if term.negated else scopes.groups_of_dependency(term)
        return None if groups is None else ("group_id", list(groups))
    if term.negated or any(v.glob for v in term.values):
        return None
    if term.field == "group":
        return "group_id", [row["pk"] for row in scopes.groups_named(term)]
    return term.field, sorted({v.text for v in term.values})


def _complement(term: Numbers) -> Numbers:
    """Return the ranges of integers outside of these ranges."""
    left, low = list[tuple[int | None, int | None]](), 0
    for first, last in sorted(((first or 0), last) for first, last in term.ranges):
        if first > low:
            left.append((low, first - 1))
        if last is None:
            return replace(term, ranges=tuple(left))
        low = max(low, last + 1)
    return replace(term, ranges=(*left, (low, None)))


def _numbers_in_ranges(term: Numbers) -> list[object] | None:
    """Return the values of a column within these ranges, with one index step per value; None if there are too many."""
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
