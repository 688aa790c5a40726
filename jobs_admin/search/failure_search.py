"""SQL that reads and counts the latest failures matching a search, in descending order of id, always through an index.

The cost of a page does not depend on the number of failures. The search determines the index that drives a statement:

- words, arguments, hosts …: the term index, which returns its rows in descending order; if the requested states have
  few failures, only among those;
- a short time range, a kind, a number of attempts, a policy … that few failures match: those failures;
- a few queues, groups, tenants, kinds …: one slice per value and state, from the index in that order;
- a time range: the rows that arrived within it, and the few matching rows that arrived before or after it;
- an OR that no single index can answer: one search per side, merged;
- text inside words: the latest LATEST_COMPARED failures that match all other terms, then the blocks of ids whose
  trigram filter contains the text (`substrings.py`). For text shorter than three characters, only the former.

Any other condition on a column is checked on the row, or against the ids of that column's own index where `_by_ids`
finds that cheaper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import product

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import connection
from django.db.models import Q, QuerySet, Sum

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.query import All, Any, Match, Numbers, Query, Term, Text
from jobs_admin.core.search_terms import Phrase
from jobs_admin.db.statements import fetch_number, fetch_rows
from jobs_admin.models import Attempt, Failure, FailureCount, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.terms import FAILURES
from jobs_admin.search import scope as scopes
from jobs_admin.search import substrings
from jobs_admin.search.slices import (
    SLICED,
    Arrivals,
    bounds,
    fields_of,
    find_arrived_by,
    is_sliced,
    is_timed,
    sliceable_values,
)
from jobs_admin.search.substrings import Compared, Matches, merge
from jobs_admin.search.term_index import (
    IndexQuery,
    InIndex,
    all_of,
    any_of,
    expression,
    key_column,
    match_condition,
    prefer_term_index,
)


def _is_text(term: Term, part: scopes.Part) -> bool:
    """Return whether the term searches text that the term index does not have."""
    return part.index_query is None and any(language.is_scanned(leaf) for leaf in language.leaves((term,)))


def _part_list(term: Term) -> Term:
    """Return the term, or an OR of its words and its text inside words, so that an index answers the words."""
    if not isinstance(term, Match) or term.negated:
        return term
    each = [replace(term, values=(value,)) for value in term.values]
    texts = tuple(one.values[0] for one in each if language.is_scanned(one))
    words = tuple(one.values[0] for one in each if not language.is_scanned(one))
    return Any((replace(term, values=texts), replace(term, values=words))) if texts and words else term


# Number of the latest failures matching all other terms whose text is compared before trigram filters are read; the
# only ones compared if filters cannot contain the text.
LATEST_COMPARED = 5_000
_FIRST_BLOCKS, _MOST_BLOCKS = 64, 4_096  # blocks of ids compared at once, increasing with each step
_COMPARED = 10_000  # failures compared before the total is estimated
_SURE = 1.5  # multiple of the largest exact count: above it an estimate is returned without counting
_MOST_MERGED = 100_000  # ids of one side read at once

_MOST_SLICES = 56
_MOST_SLICES_OF_DEPENDENCY = 28  # above this, the ids of all groups form one list
_FEW = 10_000  # rows that may be read one by one
_MOST_OTHERS = 5_000  # failures within a time range that arrived before or after it
_SOME = 200_000  # ids that may be kept in memory
_TRIED = 2_000  # latest rows searched for a complete page before a long list of ids is used

# Operations that take as long as reading one row: lookups of an id in an index, and entries read from an index.
_IDS_A_ROW, _ENTRIES_A_ROW = 10, 30

_WALKED, _FURTHEST = 20, 20_000  # latest rows scanned per requested row, and their limit

# Windows of ids that an estimate samples, and ids per window: many, because failures come in bursts.
_WINDOWS, _WIDTH = 2_000, 5

_TABLE = Failure._meta.db_table

_MOST_BRANCHES = 8
_ANY_STATE = Match("state", (language.Value("any"),))

_WORDS = Text("")  # marks a query of the term index that is not part of the search text

Statement = tuple[str, list[object]]


class FailureSearch:
    """A prepared search, which returns ids, a statement that selects them, or their count."""

    def __init__(self, viewer: Viewer, query: Query, *, is_side: bool = False) -> None:
        query = replace(query, terms=tuple(map(_part_list, query.terms)))
        self.viewer, self.query, self.is_side = viewer, query, is_side
        self.now = query.now or datetime.now(UTC)
        self.states = scopes.states_of(query)
        parts = scopes.build_parts(query, states=False)
        self.texts = [(term, part) for term, part in parts if term is not None and _is_text(term, part)]
        self.scanned = scopes.all_conditions(part.alone for _, part in self.texts) if self.texts else None
        self.required = substrings.required(All(tuple(term for term, _ in self.texts)))
        self.parts = [(term, part) for term, part in parts if term is not None and not _is_text(term, part)]

    def require(self, index_query: IndexQuery) -> None:
        """Add a query that the term index must also match."""
        self.parts.append((_WORDS, scopes.Part(Q(InIndex(index_query)), index_query)))

    # -- results ------------------------------------------------------------------------------------------------

    def ids(self, after: int | None, limit: int) -> list[int]:
        """Return the ids of the latest matches below `after`, highest first."""
        if self.scanned is not None:
            return self._ids_by_text(after, limit)
        if self.driver is not None and connection.vendor == "postgresql":
            return self._ids_on_postgresql(self.driver, after, limit)
        statement = self.statement(after, limit)
        return [] if statement is None else [row[0] for row in fetch_rows(*statement)]

    def _ids_on_postgresql(self, driver: IndexQuery, after: int | None, limit: int) -> list[int]:
        """Return the ids on PostgreSQL, whose index finds every hit before it returns the first.

        That is good for rare words; for common ones a short scan from the latest rows is enough. The planner estimates
        the frequency of a word badly, so the first steps of the scan measure it.
        """
        highest = fetch_number("SELECT COALESCE(MAX(id), 0) FROM " + FAILURES, [])
        after = highest + 1 if after is None else after
        found: list[int] = []
        far = min(_WALKED * limit, _FURTHEST)
        while far:
            near = self._driven(driver, after, limit - len(found), True, above=after - 1 - far)
            met = [] if near is None else [row[0] for row in fetch_rows(*near)]
            found += met
            if near is None or len(found) == limit:
                return found
            after -= far
            far = _further_rows(len(met) / far, limit - len(found), highest)
        statement = self._driven(driver, after, limit - len(found), True)
        with prefer_term_index(self._are_most_in_scope, ordered=True):
            return found if statement is None else [*found, *(row[0] for row in fetch_rows(*statement))]

    def count(self, most: int) -> int:
        """Return the number of matches, counted up to `most`."""
        if self.scanned is not None:
            return len(self._ids_by_text(None, most))
        if self.driver is None:
            return self._number_of(most)
        with prefer_term_index(self._are_most_in_scope, ordered=False):
            return self._number_of(most)

    def total(self, most: int) -> tuple[int, bool]:
        """Return the number of matches, and whether it is an estimate.

        It is exact up to `most`, and wherever an index alone can count; otherwise it is an estimate with two
        significant figures, from _WINDOWS windows of ids.
        """
        if self.scanned is not None:
            return self._total_by_text(most)
        if self._few is not None:
            return self.count(_FEW + 1), False
        if self.driver is not None and self._index_is_sure and (exact := self._number_of_hits(self.driver)) is not None:
            return exact, False
        estimate, is_estimate = None, True
        if self.driver is not None and connection.vendor == "sqlite":
            # Sampling finds the hits of its windows without the others; counting a common word would read all hits
            # first.
            estimate, is_estimate = self._sampled()
            if not is_estimate or estimate > 3 * most:
                return estimate, is_estimate
        if (count := self.count(most + 1)) <= most:
            return count, False
        if (exact := self._number_in_slices()) is not None:
            return exact, False
        if estimate is None:
            estimate, is_estimate = self._sampled()
        return max(estimate, count), is_estimate

    def _number_in_slices(self) -> int | None:
        """Return the number if slices of an index answer the whole search; otherwise None."""
        if self.driver is not None or self.branches:
            return None
        slices, sliced = self._slices()
        if any(term is not sliced for term, _ in self.parts):
            return None
        if self.viewer.sources() is not None and not all("source" in one for one in slices):
            return None  # the source of each row would have to be read
        visible = Failure.objects.filter(scopes.visible(self.viewer)).order_by()
        return sum(visible.filter(**one).count() for one in slices)

    def _number_of_hits(self, driver: IndexQuery) -> int | None:
        """Return the number of hits in the index, minus the few in other states; None if those are many."""
        in_scope, in_sight = self._count_known
        if in_sight - in_scope > _FEW:
            return None
        hits = f"SELECT COUNT(*) FROM {FAILURES} WHERE {match_condition()}"
        with prefer_term_index(self._are_most_in_scope, ordered=False):
            count = fetch_number(hits, [expression(driver)])
        where = self._where_counted([state for state in language.STATES if state not in self.states])
        if in_scope == in_sight or where is None:
            return count
        outside = f" AND +{key_column()} IN (SELECT id FROM {_TABLE} WHERE {where[0]})"
        return count - fetch_number(f"{hits}{outside}", [expression(driver), *where[1]])

    def _where_counted(self, states: Sequence[str]) -> Statement | None:
        """Return the condition for failures in these states, by the terms that counters can answer."""
        counted = [part.alone for term, part in self.parts if fields_of(term) <= scopes.COUNTED]
        return _where(Failure.objects.filter(scopes.visible(self.viewer), *counted, state__in=states))

    def _sampled(self) -> tuple[int, bool]:
        """Return the number estimated from samples of all ids, and whether it is an estimate.

        It is exact if the windows cover every id.
        """
        found = self._rest if self.driver is not None else self._rest.filter(*(part.alone for _, part in self.parts))
        if self.scanned is not None:
            found = found.filter(self.scanned)
        if (where := _where(found)) is None:
            return 0, False
        lowest, highest = _lowest_id() - 1, _highest_id()  # lower ids were pruned
        if self._arrivals is not None and not self._arrivals.others:
            lowest, highest = self._arrivals.above, self._arrivals.last
        step = max(_WIDTH, (highest - lowest) // _WINDOWS)
        if self.driver is not None:
            # One walk through the hits: with several, the prefix of a word would be looked up for each.
            row = key_column()
            statement = (
                f"SELECT COUNT(*) FROM {FAILURES} CROSS JOIN {_TABLE} WHERE {match_condition()} AND {_TABLE}.id = {row} "
                f"AND {row} > {lowest} AND {row} <= {highest} AND ({row} - {lowest + 1}) %% {step} < {_WIDTH} "
                f"AND {where[0]}"
            )
            met = fetch_number(statement, [expression(self.driver), *where[1]])
        else:
            # Read the rows of each window by primary key: any other index would be read completely for each window.
            by_key = "NOT INDEXED " if connection.vendor == "sqlite" else ""
            met = fetch_number(
                f"WITH RECURSIVE spans(low) AS (SELECT {lowest} UNION ALL SELECT low + {step} FROM spans "
                f"WHERE low + {step} < {highest}) SELECT COUNT(*) FROM spans CROSS JOIN {_TABLE} {by_key}"
                f"WHERE {_TABLE}.id > spans.low AND {_TABLE}.id <= spans.low + {_WIDTH} AND {_TABLE}.id <= {highest} "
                f"AND {where[0]}",
                where[1],
            )
        if step == _WIDTH:
            return met, False
        return int(float(f"{met * step // _WIDTH:.2g}")), True

    def newer(self, last: int, most: int) -> int:
        """Return the number of matches after the failure `last`, counted up to `most`. Older rows are not read."""
        statement = self.newer_statement(last, most)
        return 0 if statement is None else fetch_number(*statement)

    def newer_statement(self, last: int, most: int) -> Statement | None:
        """Return the statement of `newer`; None if nothing can match."""
        found = self._rest
        if self.driver is None:
            found = found.filter(*(part.alone for _, part in self.parts))
        if self.scanned is not None:
            found = found.filter(self.scanned)
        where = _where(found)
        if where is None:
            return None
        after, of, key_values = f"{_TABLE}.id > {int(last)}", _TABLE, []
        if self.driver is not None:
            # The term index starts at that row; a condition on the failure's primary key would make it return each hit
            # first.
            of = f"{FAILURES} CROSS JOIN {_TABLE}"
            after, key_values = (
                f"{_TABLE}.id = {key_column()} AND {match_condition()} AND {key_column()} > {int(last)}",
                [expression(self.driver)],
            )
        rows = f"SELECT 1 FROM {of} WHERE {after} AND {where[0]} LIMIT {int(most)}"
        return f"SELECT COUNT(*) FROM ({rows}) AS found", [*key_values, *where[1]]

    def _number_of(self, most: int) -> int:
        if self.driver is not None and self._index_is_sure:
            in_states, values = self._in_scope
            return fetch_number(
                f"SELECT COUNT(*) FROM (SELECT 1 FROM {FAILURES}{in_states} LIMIT {most}) AS found",
                [expression(self.driver), *values],
            )
        statement = self.statement(None, most, ordered=False)
        return 0 if statement is None else fetch_number(f"SELECT COUNT(*) FROM ({statement[0]}) AS found", statement[1])

    def statement(self, after: int | None, limit: int, *, ordered: bool = True) -> Statement | None:
        """Return the statement that selects the same ids as `ids`; None if nothing can match."""
        if self.scanned is None:
            return self._indexed(after, limit, ordered=ordered)
        ids = ", ".join(f"({pk})" for pk in self._ids_by_text(after, limit))
        return (f"SELECT column1 AS id FROM (VALUES {ids}) AS found ORDER BY 1 DESC", []) if ids else None

    # -- by text inside words ------------------------------------------------------------------------------------

    @cached_property
    def _is_bounded(self) -> bool:
        """Return whether no trigram filter can contain the text, so that only the latest failures are compared."""
        return self.required is None and any(substrings.is_unfiltered(term) for term, _ in self.texts)

    @cached_property
    def searched(self) -> int | None:
        """Number of the latest failures searched; None if all were."""
        if not self._is_bounded:
            return None
        base = self._indexed(None, LATEST_COMPARED + 1)
        matching = 0 if base is None else fetch_number(f"SELECT COUNT(*) FROM ({base[0]}) AS found", base[1])
        return LATEST_COMPARED if matching > LATEST_COMPARED else None

    def _ids_by_text(self, after: int | None, limit: int) -> list[int]:
        if after is None:
            return self._matches_from_top.read(limit)
        if self._is_bounded:  # `LATEST_COMPARED` counts from the latest, not from `after`
            return [pk for pk in self._matches_from_top.read(LATEST_COMPARED) if pk < after][:limit]
        return Matches(self._compare(after)).read(limit)

    def _total_by_text(self, most: int) -> tuple[int, bool]:
        """Return `total` for a text search: rare text is counted, common text is found early, the rest is sampled."""
        if self._is_bounded:
            return self._matches_from_top.count(LATEST_COMPARED), False
        count = self._matches_from_top.count(most + 1, compared=_COMPARED)
        if self._matches_from_top.is_complete:
            return count, False
        estimate, is_estimate = self._sampled()
        if not is_estimate or estimate > _SURE * most:
            return estimate, is_estimate
        count = self._matches_from_top.count(most + 1)
        return (count, False) if count <= most else (max(estimate, count), True)

    @cached_property
    def _matches_from_top(self) -> Matches:
        """Matches shared by page and count, so that they are read once."""
        return Matches(self._compare(None))

    def _compare(self, after: int | None) -> Iterator[Compared]:
        """Yield the matches below `after`, highest first, one part at a time as failures are compared."""
        if self.branches and not self._is_bounded:
            yield from merge([one._descend(after) for one in self.branches])
            return
        latest = max(LATEST_COMPARED, 0 if self.branches or self._few is None else self._few.count + 1)
        found, lowest, number = self._compare_latest(after, latest)
        yield Compared(found, number)
        if lowest is None or number < latest or self._is_bounded:
            return
        blocks, at_once = substrings.find_blocks(self.required, lowest), _FIRST_BLOCKS
        while window := substrings.take_blocks(blocks, at_once):
            yield Compared(self._compare_blocks(window, lowest), len(window) * substrings.BLOCK)
            at_once = min(at_once * 4, _MOST_BLOCKS)

    def _descend(self, after: int | None) -> Iterator[Compared]:
        """Yield the matches below `after` of a search with or without text."""
        if self.scanned is not None:
            yield from self._compare(after)
            return
        limit = _TRIED
        while found := self.ids(after, limit):
            yield Compared(found, len(found))
            after, limit = found[-1], min(limit * 4, _MOST_MERGED)

    def _compare_latest(self, after: int | None, latest: int) -> tuple[list[int], int | None, int]:
        """Return the matches among the latest failures of all other terms, the lowest id of those, and their number."""
        base, where = self._indexed(after, latest), _where(Failure.objects.filter(self.scanned))
        if base is None or where is None:
            return [], None, 0
        with prefer_term_index(self._are_most_in_scope, ordered=True) if self.driver is not None else nullcontext():
            rows = fetch_rows(
                f"SELECT {_TABLE}.id, CASE WHEN {where[0]} THEN 1 ELSE 0 END FROM ({base[0]}) AS compared "
                f"CROSS JOIN {_TABLE} WHERE {_TABLE}.id = compared.id ORDER BY compared.id DESC",
                [*where[1], *base[1]],
            )
        return [int(pk) for pk, matches in rows if matches], int(rows[-1][0]) if rows else None, len(rows)

    def _compare_blocks(self, window: list[int], below: int) -> list[int]:
        """Return the matches below `below` in these blocks of ids."""
        if self.driver is not None:
            highest, lowest = (window[0] + 1) * substrings.BLOCK, window[-1] * substrings.BLOCK
            most = len(window) * substrings.BLOCK
            statement = self._driven(self.driver, min(highest, below), most, True, above=lowest - 1, within=window)
        else:
            statement = self._in_ranges(substrings.join_blocks(window), below)
        with prefer_term_index(self._are_most_in_scope, ordered=self.driver is not None):
            return [] if statement is None else [row[0] for row in fetch_rows(*statement)]

    def _in_ranges(self, ranges: list[tuple[int, int]], below: int) -> Statement | None:
        found = Failure.objects.filter(scopes.visible(self.viewer), *(part.alone for _, part in self.parts))
        found = found if len(self.states) == len(language.STATES) else found.filter(state__in=self.states)
        if (where := _where(found.filter(self.scanned))) is None:
            return None
        # By primary key: any other index would be read completely for each range.
        by_key = "NOT INDEXED " if connection.vendor == "sqlite" else ""
        return (
            f"SELECT {_TABLE}.id FROM {_RANGES[connection.vendor]} CROSS JOIN {_TABLE} {by_key}"
            f"WHERE {_TABLE}.id BETWEEN low "
            f"AND high AND {_TABLE}.id < {int(below)} AND {where[0]} ORDER BY {_TABLE}.id DESC",
            [*(_list([one[end] for one in ranges]) for end in (0, 1)), *where[1]],
        )

    # -- choice of the index --------------------------------------------------------------------------------------

    @cached_property
    def branches(self) -> list[FailureSearch]:
        """One search per side of the first OR that no single index can answer, so that each side uses its own index.

        Further ORs within a side are conditions on rows: searching them separately would multiply the number of
        searches.
        """
        if self.is_side:
            return []
        # Trigram filters answer an OR of text as a whole, so it is not split.
        texts = [] if self.scanned is None or self._is_bounded else self.texts
        pairs = [*texts, *self.parts]
        for place, (term, part) in enumerate(pairs):
            is_answered = part.index_query is not None or (place < len(texts) and substrings.required(term) is not None)
            if isinstance(term, Any) and not is_answered and len(term.of) <= _MOST_BRANCHES:
                others = [one for n, (one, _) in enumerate(pairs) if n != place and one is not _WORDS]
                sides = [[*others, *(side.of if isinstance(side, All) else [side])] for side in term.of]
                found = [FailureSearch(self.viewer, self._query_of(terms), is_side=True) for terms in sides]
                for one in found:
                    one.parts += [(words, required) for words, required in self.parts if words is _WORDS]
                return found
        return []

    def _query_of(self, terms: Sequence[Term]) -> Query:
        """Return the search for these terms in the same states."""
        states = [term for term in self.query.terms if scopes.is_state(term)]
        found = Query((*terms, *states), now=self.now)
        is_any = self.query.names_state and not found.names_state
        return replace(found, terms=(*found.terms, _ANY_STATE)) if is_any else found

    def _indexed(self, after: int | None, limit: int, *, ordered: bool = True) -> Statement | None:
        if self.branches:
            return self._united(after, limit)
        if self.driver is not None:
            return self._driven(self.driver, after, limit, ordered)
        if self._few is not None:
            return self._of_few(self._few, after, limit)
        return self._sliced(after, limit, ordered)

    def _united(self, after: int | None, limit: int) -> Statement | None:
        found = [found for one in self.branches if (found := one._indexed(after, limit)) is not None]
        if not found:
            return None
        sides = " UNION ".join(f"SELECT id FROM ({sql}) AS side_{n}" for n, (sql, _) in enumerate(found))
        return f"{sides} ORDER BY id DESC LIMIT {int(limit)}", [value for _, values in found for value in values]

    @cached_property
    def driver(self) -> IndexQuery | None:
        """Query of the term index; None if it would not help."""
        if self.branches:
            return None
        known = [(term, part) for term, part in self.parts if part.index_query is not None or part.but is not None]
        if all(is_sliced(term) for term, _ in known):
            return None
        queries = [part.index_query for _, part in known if part.index_query is not None]
        sources = self.viewer.sources()
        if sources is None and not queries:  # exclusions alone need a set to exclude from
            sources = list(FailureCount.objects.values_list("source", flat=True).distinct())
        if sources is not None:
            queries.append(any_of(Phrase((search_terms.name("source", source),)) for source in sources))
        return all_of(queries, [part.but for _, part in known if part.but is not None])

    def _by_ids(
        self, terms: Sequence[Term], has: Callable[[int], bool], are_near: Callable[[], bool]
    ) -> dict[Term, Statement]:
        """Return term -> statement of its ids, where reading these from an index is cheaper than checking each row.

        `has(n)` returns whether at least n rows would be scanned; `are_near()` whether the latest of them include all
        requested rows.
        """
        found: dict[Term, Statement] = {}
        for term in terms:
            sliceable = sliceable_values(term)
            if sliceable is None or not sliceable[1] or not self.states:
                continue
            column, named = sliceable
            marks, states = (", ".join(["%s"] * len(these)) for these in (named, self.states))
            ids = f"SELECT id FROM {_TABLE} WHERE {column} IN ({marks}) AND state IN ({states})"
            values = [*named, *self.states]
            count = fetch_number(f"SELECT COUNT(*) FROM ({ids} LIMIT {_SOME + 1}) AS found", values)
            if count <= _SOME and has(count // _IDS_A_ROW) and (count <= _FEW or not are_near()):
                found[term] = ids, values
        return found

    def _are_near(self, walked: Sequence[Statement], rest: QuerySet[Failure], limit: int) -> bool:
        """Return whether at least `limit` of the _TRIED latest rows match the rest."""
        if limit > _TRIED or not walked or (where := _where(rest)) is None:
            return False
        latest = " UNION ALL ".join(
            f"SELECT id FROM ({sql} ORDER BY id DESC LIMIT {_TRIED // min(2, len(walked))}) AS latest_{n}"
            for n, (sql, _) in enumerate(walked)
        )
        values = [value for _, of_one in walked for value in of_one]
        met = f"SELECT 1 FROM ({latest}) AS latest CROSS JOIN {_TABLE} WHERE {_TABLE}.id = latest.id AND {where[0]}"
        return fetch_number(f"SELECT COUNT(*) FROM ({met} LIMIT {limit}) AS met", [*values, *where[1]]) == limit

    @cached_property
    def _rest(self) -> QuerySet[Failure]:
        """Conditions on the rows that the term index returns."""
        return self._rest_without(())

    def _rest_without(self, terms: Collection[Term]) -> QuerySet[Failure]:
        found = Failure.objects.filter(scopes.visible(self.viewer))
        for term, part in self.parts:
            if part.index_query is not None:
                found = found if part.rest is None else found.filter(part.rest)
            elif part.but is None and term not in terms:
                found = found.filter(part.alone)
        return found if len(self.states) == len(language.STATES) else found.filter(state__in=self.states)

    @cached_property
    def _index_is_sure(self) -> bool:
        """Return whether the term index returns exactly the matches, in any state."""
        return all(part.but is not None or (part.index_query is not None and part.is_sure) for _, part in self.parts)

    @property
    def _in_scope(self) -> Statement:
        """Condition that selects the rows of the term index in the requested states, without reading a failure."""
        in_scope, in_sight = self._count_known
        if in_scope == in_sight:
            return f" WHERE {match_condition()}", []
        if not self.states:  # `state:` with an unknown state
            return f" WHERE {match_condition()} AND 1 = 0", []
        states = ", ".join(["%s"] * len(self.states))
        if connection.vendor != "sqlite":
            row = f"SELECT 1 FROM {_TABLE} WHERE id = {key_column()} AND state IN ({states})"
            return f" WHERE {match_condition()} AND EXISTS ({row})", list(self.states)
        among, ids = self._among(self.driver) if self.driver is not None else ("", [])
        # The index by state contains the ids ten times more densely than the table.
        return (
            f" CROSS JOIN {_TABLE} AS held INDEXED BY failure_by_state "
            f"WHERE {match_condition()}{among} AND held.state IN ({states}) AND held.id = {key_column()}",
            [*ids, *self.states],
        )

    @cached_property
    def _count_known(self) -> tuple[int, int]:
        """Number of failures, from counters, in the requested states, and in all states."""
        known = [term for term, _ in self.parts if fields_of(term) <= scopes.COUNTED]
        anywhere = Match("state", (language.Value("*", glob=True),))
        counters = scopes.matching_counts(self.viewer, Query((*known, anywhere), now=self.now)).order_by()
        found = counters.aggregate(in_scope=Sum("count", filter=Q(state__in=self.states)), in_sight=Sum("count"))
        return found["in_scope"] or 0, found["in_sight"] or 0

    @property
    def _are_most_in_scope(self) -> bool:
        in_scope, in_sight = self._count_known
        return in_scope * 10 > in_sight

    def _driven(
        self,
        driver: IndexQuery,
        after: int | None,
        limit: int,
        ordered: bool,
        *,
        above: int | None = None,
        within: list[int] | None = None,
    ) -> Statement | None:
        if self._few is not None and not self._few.count:
            return None
        row = key_column()
        below = "" if after is None else f" AND {row} < {int(after)}"
        below += "" if above is None else f" AND {row} > {int(above)}"
        among, ids, by_ids = "", list[object](), dict[Term, Statement]()
        if connection.vendor == "sqlite":
            hits = f"SELECT COUNT(*) FROM (SELECT 1 FROM {FAILURES} WHERE {match_condition()} LIMIT %s) AS found"
            terms = [term for term, part in self.parts if part.index_query is None]
            by_ids = self._by_ids(
                terms,
                lambda n: fetch_number(hits, [expression(driver), n]) == n,
                lambda: self._are_near(
                    [(f"SELECT {row} AS id FROM {FAILURES} WHERE {match_condition()}{below}", [expression(driver)])],
                    self._rest,
                    limit,
                ),
            )
            among, ids = self._among(driver)
        rest = self._rest_without(by_ids)
        if within is not None:
            among, ids = f" AND {row} / {substrings.BLOCK} {_AMONG[connection.vendor]}{among}", [_list(within), *ids]
            rest = rest.filter(self.scanned)
        where = _where(rest)
        if where is None:
            return None
        for sql, values in by_ids.values():
            among, ids = f"{among} AND +{row} IN ({sql})", [*ids, *values]
        order = f"ORDER BY {row} DESC " if ordered else ""
        # CROSS: SQLite joins the tables in this order, and the index returns its rows in descending order.
        return (
            f"SELECT {_TABLE}.id AS id FROM {FAILURES} CROSS JOIN {_TABLE} "
            f"WHERE {_TABLE}.id = {row} AND {match_condition()}{below}{among} AND {where[0]} {order}LIMIT {int(limit)}",
            [expression(driver), *ids, *where[1]],
        )

    def _among(self, driver: IndexQuery) -> Statement:
        """Return a condition for the few rows that can match: looking up each of a million hits would be in vain."""
        row = key_column()
        if self._few is not None:
            within = f" AND {row} BETWEEN {self._few.lowest} AND {self._few.highest}"
            return f" AND +{row} IN ({self._few.sql}){within}", self._few.values
        in_scope, in_sight = self._count_known
        are_few_in_scope = in_scope <= _SOME and in_scope * 10 <= in_sight
        if not are_few_in_scope and not self._timed:
            return "", []
        some = f"SELECT COUNT(*) FROM (SELECT 1 FROM {FAILURES} WHERE {match_condition()} LIMIT {_FEW + 1}) AS found"
        if fetch_number(some, [expression(driver)]) <= _FEW:
            return "", []
        if not are_few_in_scope:
            return ("", []) if self._arrivals is None else (self._arrivals.condition(row), [])
        where = self._where_counted(self.states)
        if where is None:
            return " AND 1 = 0", []
        return f" AND +{row} IN (SELECT id FROM {_TABLE} WHERE {where[0]})", where[1]

    # -- by slices of tables -------------------------------------------------------------------------------------

    def _sliced(self, after: int | None, limit: int, ordered: bool) -> Statement | None:
        """Return one SELECT per slice, joined by UNION ALL; None if nothing can match.

        `state IN (…) ORDER BY id DESC` has no index for both: where most rows have recovered, it would scan all of
        them, or sort every dead one. One slice per state (and queue, task …) follows its index and stops at `limit`.
        """
        slices, sliced = self._slices()
        # Written by hand: the ORM would take as long for each slice as the whole statement takes to run.
        conditions = [
            (" AND ".join(f"{_TABLE}.{column} = %s" for column in one) or "1 = 1", list(one.values())) for one in slices
        ]
        if not conditions:
            return None
        by_ids: dict[Term, Statement] = {}
        if connection.vendor == "sqlite":
            below = "" if after is None else f" AND id < {int(after)}"
            walked = " UNION ALL ".join(f"SELECT id FROM {_TABLE} WHERE {sql}" for sql, _ in conditions)
            named = [value for _, values in conditions for value in values]
            of_slices = f"SELECT COUNT(*) FROM (SELECT 1 FROM ({walked}) AS walked LIMIT %s) AS found"
            terms = [term for term, _ in self.parts if term is not sliced]
            by_ids = self._by_ids(
                terms,
                lambda n: fetch_number(of_slices, [*named, n]) == n,
                lambda: self._are_near(
                    [(f"SELECT id FROM {_TABLE} WHERE {sql}{below}", values) for sql, values in conditions],
                    Failure.objects.filter(scopes.visible(self.viewer), *(part.alone for _, part in self.parts)),
                    limit,
                ),
            )
        rest = [part.alone for term, part in self.parts if term is not sliced and term not in by_ids]
        found = Failure.objects.filter(scopes.visible(self.viewer), *rest)
        where = _where(found if after is None else found.filter(pk__lt=after))
        if where is None:
            return None
        for ids, values in by_ids.values():
            where = f"{where[0]} AND +{_TABLE}.id IN ({ids})", [*where[1], *values]
        # From a start time until now, a scan from the latest row is as short without this.
        if bounds(self._timed, self.now, is_start=False) and (arrivals := self._arrivals) is not None:
            within = f"{_TABLE}.id > {arrivals.above} AND {_TABLE}.id <= {arrivals.last}"
            conditions = [(f"{sql} AND {within}", values) for sql, values in conditions]
            if arrivals.others:
                every_part = scopes.all_conditions(part.alone for _, part in self.parts)
                others = _where(Failure.objects.filter(every_part, pk__in=arrivals.others, state__in=self.states))
                conditions += [] if others is None else [others]
        order = "ORDER BY id DESC " if ordered else ""
        statements: list[str] = []
        parameters: list[object] = []
        for n, (sql, values) in enumerate(conditions):
            page = f"SELECT id FROM {_TABLE} WHERE {where[0]} AND {sql} {order}LIMIT {int(limit)}"
            statements.append(f"SELECT id FROM ({page}) AS slice_{n}")
            parameters += [*where[1], *values]
        return f"{' UNION ALL '.join(statements)} {order}LIMIT {int(limit)}", parameters

    def _slices(self) -> tuple[list[dict[str, object]], Term | None]:
        """Return the slices as column -> value, disjoint and each along one index, and the term that they answer."""
        term = self._term_to_slice()
        if term is not None and (sliceable := sliceable_values(term)) is not None:
            name, values = sliceable
            return [{name: value, "state": state} for value, state in product(values, self.states)], term
        sources = self.viewer.sources()
        if sources is not None and len(sources) * len(self.states) <= _MOST_SLICES:
            # If another source has all the rows, a slice by state alone would scan them in vain.
            return [{"source": source, "state": state} for source, state in product(sources, self.states)], None
        if len(self.states) == len(language.STATES):
            return [{}], None  # every state: the primary key already has the order
        return [{"state": state} for state in self.states], None

    def _term_to_slice(self) -> Term | None:
        """Return the most selective term that has an index; None if no term lists a few plain values."""
        # Slices also scan the rows out of the viewer's sight, so a term that matches most rows does not pay.
        terms = [
            t for t, _ in self.parts if self.viewer.sources() is None or not isinstance(t, Numbers) or not t.negated
        ]
        values = [(t, sliceable_values(t)) for t in terms]
        most = {
            t: _MOST_SLICES_OF_DEPENDENCY if t.field == "dependency" else _MOST_SLICES
            for t, _ in values
            if hasattr(t, "field")
        }
        few = [t for t, found in values if found is not None and len(found[1]) * len(self.states) <= most[t]]
        return min(few, key=lambda t: SLICED.index(t.field), default=None)

    # -- small sets ------------------------------------------------------------------------------------------------

    @cached_property
    def _few(self) -> _Few | None:
        """The smallest set of failures selected by a term with its own index; None if each selects more than _FEW."""
        found = [_measure_few(*statement) for statement in self._narrowing()]
        return min((few for few in found if few.count <= _FEW), key=lambda few: few.count, default=None)

    def _narrowing(self) -> Iterator[Statement]:
        """Yield statements that select the ids of a term's failures from an index, in no order."""
        timed = [part.alone for term, part in self.parts if is_timed(term)]
        if timed and (where := _where(Failure.objects.filter(*timed))) is not None:
            yield f"SELECT id FROM {_TABLE} WHERE {where[0]}", where[1]
        for term, part in self.parts:
            if not isinstance(term, Match | Numbers) or term.negated:
                continue
            if term.field in ("kind", "attempts", "priority"):
                if (where := _where(Failure.objects.filter(part.alone))) is not None:
                    yield f"SELECT id FROM {_TABLE} WHERE {where[0]}", where[1]
            elif isinstance(term, Match) and term.field == "dependency" and self._term_to_slice() is not term:
                of_groups = Failure.objects.filter(group_id__in=scopes.parts_named(term).values("group_id"))
                if (where := _where(of_groups)) is not None:
                    yield f"SELECT id FROM {_TABLE} WHERE {where[0]}", where[1]
            elif isinstance(term, Match) and term.field == "policy":
                yield from _failures_of(Attempt.objects.filter(policy__in=scopes.policies_named(term), policy__gt=""))
            elif term.field == "replay":
                yield from _failures_of(ReplayItem.objects.filter(scopes.range_condition(term, "replay_id")))

    @property
    def _timed(self) -> list[Term]:
        return [term for term, _ in self.parts if is_timed(term)]

    @cached_property
    def _arrivals(self) -> Arrivals | None:
        """Return the range of ids that arrived in the time range of the search, and the matching ids outside of it.

        None if a scan from the latest row is as good, or more than _MOST_OTHERS arrived before or after that time.
        """
        where = _where(Failure.objects.filter(*(part.alone for term, part in self.parts if is_timed(term))))
        if not self._timed or where is None:
            return None
        starts, ends = (bounds(self._timed, self.now, is_start=is_start) for is_start in (True, False))
        highest = _highest_id()
        above = find_arrived_by(max(starts), highest) if starts else 0
        last = max(above, find_arrived_by(min(ends), highest)) if ends else highest
        # The others cost a read of the time index; without it, a scan reads the rows before and after the time range.
        read = last - above
        if above + highest - last <= max(_FEW, read // _ENTRIES_A_ROW) or (not ends and read > _SOME):
            return None
        index = "INDEXED BY failure_by_time" if connection.vendor == "sqlite" else ""
        others = (
            f"SELECT id FROM {_TABLE} {index} WHERE {where[0]} AND (+id <= {above} OR +id > {last}) "
            f"LIMIT {_MOST_OTHERS + 1}"
        )
        ids = [int(row[0]) for row in fetch_rows(others, where[1])]
        return Arrivals(above, last, ids) if len(ids) <= _MOST_OTHERS else None

    def _of_few(self, few: _Few, after: int | None, limit: int) -> Statement | None:
        where = _where(self._rest)
        if where is None:
            return None
        below = "" if after is None else f"{_TABLE}.id < {int(after)} AND "
        return (
            f"SELECT {_TABLE}.id AS id FROM ({few.sql}) AS few CROSS JOIN {_TABLE} "
            f"WHERE {_TABLE}.id = few.id AND {below}{where[0]} ORDER BY {_TABLE}.id DESC LIMIT {int(limit)}",
            [*few.values, *where[1]],
        )


def _further_rows(share: float, wanted: int, hits: int) -> int:
    """Return how many rows to scan further if that is cheaper than fetching every hit, otherwise 0.

    A row costs the same in both cases.
    """
    if not share:
        return 0
    further = int(1.5 * wanted / share)
    return further if further < min(share * hits, _FURTHEST) else 0


# SQL for a list of numbers, and for a list of ranges given as two lists.
_AMONG = {"sqlite": "IN (SELECT value FROM json_each(%s))", "postgresql": "= ANY(%s::bigint[])"}
_RANGES = {
    "sqlite": "(SELECT lows.value AS low, highs.value AS high FROM json_each(%s) AS lows "
    "JOIN json_each(%s) AS highs ON highs.key = lows.key) AS ranges",
    "postgresql": "unnest(%s::bigint[], %s::bigint[]) AS ranges(low, high)",
}


def _list(numbers: list[int]) -> object:
    return json.dumps(numbers) if connection.vendor == "sqlite" else numbers


@dataclass(frozen=True, slots=True)
class _Few:
    """A small set of ids, as the statement that selects it."""

    sql: str
    values: list[object]
    count: int  # at most _FEW + 1
    lowest: int
    highest: int


def _measure_few(sql: str, values: Sequence[object]) -> _Few:
    [(count, lowest, highest)] = fetch_rows(
        f"SELECT COUNT(*), MIN(id), MAX(id) FROM (SELECT id FROM ({sql}) AS every_one LIMIT {_FEW + 1}) AS found",
        values,
    )
    return _Few(sql, list(values), count, lowest or 0, highest or 0)


def _failures_of(rows: QuerySet[Attempt] | QuerySet[ReplayItem]) -> Iterator[Statement]:
    """Yield the statement that selects the failures of these rows; nothing if nothing can match."""
    if (where := _where(rows)) is not None:
        yield f"SELECT DISTINCT failure_id AS id FROM {rows.model._meta.db_table} WHERE {where[0]}", where[1]


def _where(found: QuerySet[Failure]) -> Statement | None:
    """Return the SQL condition of a queryset over failures alone; None if nothing can match."""
    if not found.query.where:
        return "1 = 1", []
    try:
        sql, values = found.query.get_compiler(connection=connection).compile(found.query.where)
    except EmptyResultSet:
        return None
    except FullResultSet:
        return "1 = 1", []
    return sql, list(values)


def _lowest_id() -> int:
    return fetch_number(f"SELECT COALESCE(MIN(id), 1) FROM {_TABLE}", [])


def _highest_id() -> int:
    return fetch_number(f"SELECT COALESCE(MAX(id), 0) FROM {_TABLE}", [])
