"""Ids by their time of arrival: they rise in that order, so a search in a time reads only what arrived in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs_admin.core.query import Age, Term, Time
from jobs_admin.models import Failure
from jobs_admin.search import scope as scopes


def is_timed(term: Term) -> bool:
    return isinstance(term, Age | Time)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Ids of what arrived in a time: those `above` up to `last`, and the `others` of that time."""

    above: int
    last: int
    others: list[int]

    def condition(self, row: str) -> str:
        """The condition on an id of the index, for an AND."""
        if not self.others:
            return f" AND {row} > {self.above} AND {row} <= {self.last}"
        lowest, highest = min(self.above + 1, *self.others), max(self.last, *self.others)
        ids = ", ".join(map(str, self.others))
        return (
            f" AND {row} BETWEEN {lowest} AND {highest} "
            f"AND ((+{row} > {self.above} AND +{row} <= {self.last}) OR +{row} IN ({ids}))"
        )


def bounds(terms: Sequence[Term], now: datetime, *, is_start: bool) -> list[datetime]:
    """The moments from which (`is_start`), or up to which, terms of time match."""
    found = []
    for term in terms:
        if isinstance(term, Age | Time):
            is_after, moment = scopes.named_time(term, now)
            if (is_after != term.negated) == is_start:
                found.append(moment)
    return found


def find_arrived_by(moment: datetime, highest: int) -> int:
    """About the highest id that had arrived by then: ids rise in order of arrival, unless the clock was set back."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        found = Failure.objects.filter(pk__lte=middle).order_by("-pk").values_list("received_at", flat=True)[:1]
        if all(at <= moment for at in found):
            low = middle
        else:
            high = middle - 1
    return low
