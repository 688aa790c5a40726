"""Failures: search, page, a single failure, facets, and the selection for acts.

A page has the same cost for any number of failures: rows are read by key, latest first, in slices that each follow an
index, and counts come from counters where these suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet, Sum
from django.db.models.functions import Left

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.query import Match, Query, Text, parse
from jobs_admin.core.search_terms import Phrase
from jobs_admin.core.secret_fields import is_secret_name
from jobs_admin.core.text import whole_number
from jobs_admin.db import statements
from jobs_admin.groups import GroupPage, GroupRow, groups, is_group_cursor
from jobs_admin.groups.group_detail import GroupDetail, group, group_named
from jobs_admin.groups.group_detail import count as group_count
from jobs_admin.models import Attempt, Failure, FailureCount, Group, GroupSource
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.search import scope as scopes
from jobs_admin.search.failure_search import FailureSearch

__all__ = [
    "Facets",
    "GroupDetail",
    "GroupPage",
    "GroupRow",
    "Page",
    "attempts",
    "count",
    "count_exactly",
    "facets",
    "find_matching",
    "get",
    "group",
    "group_count",
    "group_named",
    "groups",
    "is_group_cursor",
    "search",
]

PAGE = 50
LARGEST_PAGE = 500
EXACT = 10_000  # counts are exact up to this number, and wherever a counter or an index suffices
FACETED = 1_000  # latest matches, over which facets are counted without a counter: some 2 ms
MESSAGE_SHOWN = 300  # characters of the message shown in a list row

# Columns of a list row. Arguments, headers and the full message are not loaded.
_LIGHT = (
    "source", "queue", "first_job_id", "job_id", "run", "state", "task", "error_type", "kind", "reason", "attempts",
    "max_attempts", "due_at", "first_failed_at", "failed_at", "received_at", "worker", "host", "release", "tenant",
    "priority", "labels",
)  # fmt: skip
_ROW = ("id", "group_id", *_LIGHT, "message")
_TIMES = tuple(name for name in _LIGHT if name.endswith("_at"))
_GROUP = ("id", "fingerprint", "error_type", "state")


@dataclass(frozen=True, slots=True)
class Count:
    """Number of failures that match a search."""

    number: int
    is_estimate: bool = False  # extrapolated from a sample, to two significant figures
    is_capped: bool = False  # of the latest only: there may be more

    @property
    def text(self) -> str:
        return f"{'about ' if self.is_estimate else ''}{self.number:,}{'+' if self.is_capped else ''}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of matching failures, latest first, with counts and hints."""

    rows: list[Failure]
    next: str | None  # pass it to `search` as `after`; None on the last page
    count: Count
    query: Query
    reading: str
    hints: tuple[str, ...]
    searched: int | None = None  # only this many failures, the latest in scope, were searched; None: all
    why_empty: str = ""
    meant: str = ""  # suggested search, if the text looks like the syntax of another tool

    @property
    def hint_sentences(self) -> tuple[str, ...]:
        """The hints and the suggested search, as plain sentences."""
        return (*self.hints, f"Did you mean {self.meant}?") if self.meant else self.hints


def search(
    viewer: Viewer, text: str = "", *, after: str | None = None, limit: int = PAGE, now: datetime | None = None
) -> Page:
    """Return a page of the failures that match `text`. An invalid `after` returns the first page."""
    query = parse(text, now or datetime.now(UTC))
    limit = max(1, min(limit, LARGEST_PAGE))
    searcher = FailureSearch(viewer, query)
    below = whole_number(after)
    found = searcher.ids(below, limit + 1)
    # A first page that is not full is complete: a search with few matches needs no second query to count them.
    is_all = below is None and len(found) <= limit and searcher.scanned is None
    rows = _rows(found[:limit])
    return Page(
        rows=rows,
        next=str(found[limit - 1]) if len(found) > limit else None,
        count=Count(len(found)) if is_all else _count_matches(viewer, query, searcher),
        query=query,
        reading=language.reading(query),
        hints=(*query.hints, *_hidden(viewer, query, is_empty=not rows)),
        searched=searcher.searched,
        why_empty="" if rows else _why_empty(viewer, query),
        meant=language.rewritten(text),
    )


def get(viewer: Viewer, pk: int) -> Failure:
    """Return one failure with its group and stack. Raises Failure.DoesNotExist, also if the viewer may not see it."""
    if not -(2**63) <= int(pk) < 2**63:
        raise Failure.DoesNotExist
    # A stack's text is long and the page uses its stored HTML, so the text is deferred.
    found = Failure.objects.select_related("group", "traceback").defer("traceback__text")
    return found.get(scopes.visible(viewer), pk=pk)


def attempts(failure: Failure) -> list[Attempt]:
    """Return every attempt of every run, oldest first."""
    found = failure.attempt_set.select_related("group", "item__replay")
    return list(found.order_by("run", "attempt", "ended_at", "id"))


def find_matching(viewer: Viewer, query: Query, *, role: str = VIEWER) -> QuerySet[Failure]:
    """Return all failures that match the query and for which the viewer has `role`: for acts and exports.

    For acts, a query that is `unfit_for_acts` matches nothing.
    """
    if language.unfit_for_acts(query) and role != VIEWER:
        return Failure.objects.none()
    return Failure.objects.filter(scopes.visible(viewer, role), scopes.build_condition(query))


def count(viewer: Viewer, query: Query) -> Count:
    """Return the number of matches: exact up to EXACT and where counters or an index suffice, otherwise an estimate.

    If a page searches only the latest failures, the number of matches among those.
    """
    return _count_matches(viewer, query, FailureSearch(viewer, query))


def count_exactly(viewer: Viewer, query: Query, most: int) -> int:
    """Return the number of matches, counted up to `most` without a counter: for comparisons and for pages."""
    if scopes.is_counted(query):
        return scopes.matching_counts(viewer, query).aggregate(n=Sum("count"))["n"] or 0
    return FailureSearch(viewer, query).count(most)


def _count_matches(viewer: Viewer, query: Query, searcher: FailureSearch) -> Count:
    if scopes.is_counted(query):
        return Count(scopes.matching_counts(viewer, query).aggregate(n=Sum("count"))["n"] or 0)
    return Count(*searcher.total(EXACT), is_capped=searcher.searched is not None)


class Facets(dict[str, list[tuple[str, int]]]):
    """Field -> its most frequent values with their counts. `counted_over` is None if every match was counted."""

    counted_over: dict[str, int | None]


def facets(viewer: Viewer, text: str = "", *, now: datetime | None = None, limit: int = 12) -> Facets:
    """Return the spread of matching failures over source, queue, task, state, error, dependency, tenant and release.

    In some searches, counters suffice for all but tenant and release; the rest is counted over the latest FACETED
    matches.
    """
    query = parse(text, now or datetime.now(UTC))
    is_counted = scopes.is_counted(query)
    columns = (
        ("tenant", "release") if is_counted else ("source", "queue", "task", "state", "error_type", "tenant", "release")
    )
    sampled, found = _spread_of_latest(viewer, query, columns, limit)
    found.counted_over = dict.fromkeys(found, FACETED if sampled > FACETED else None)
    if is_counted:
        counted = _spread_of_counters(viewer, query, limit)
        found |= counted
        found.counted_over |= dict.fromkeys(counted)
    return found


def _spread_of_counters(viewer: Viewer, query: Query, limit: int) -> dict[str, list[tuple[str, int]]]:
    names = ("source", "queue", "task", "state", "error")
    counters = (
        scopes.matching_counts(viewer, query).order_by().values("source", "queue", "task", "state", "group_id", "count")
    )
    try:
        sql, values = counters.query.sql_with_params()
    except EmptyResultSet:
        return {name: [] for name in names}
    table, of_source = (connection.ops.quote_name(model._meta.db_table) for model in (Group, GroupSource))
    parts = [(name, name, 'SUM(held."count")', "held") for name in names[:4]]
    column, joined = "grp.error_type", f"held JOIN {table} AS grp ON grp.id = held.group_id"
    sources = viewer.sources()
    if sources is not None:  # the group's own text may come from a source that the viewer may not see
        joined += f" LEFT JOIN {of_source} AS part ON part.group_id = grp.id AND part.source = held.source"
        joined += f" WHERE part.id IS NOT NULL OR NOT EXISTS (SELECT 1 FROM {FailureCount._meta.db_table} AS other"
        joined += f" WHERE other.group_id = grp.id AND other.source NOT IN ({', '.join(['%s'] * len(sources))}))"
        column, values = "COALESCE(part.error_type, grp.error_type)", [*values, *sources]
    parts.append(("error", column, 'SUM(held."count")', joined))
    parts.append(("dependency", "part.dependency", 'SUM(held."count")', f"held{_named_parts('held')}"))
    return _most_frequent(f"WITH held AS ({sql})", values, parts, limit)


def _named_parts(rows: str) -> str:
    """Return SQL that joins the dependencies of these rows of group and source."""
    table = connection.ops.quote_name(GroupSource._meta.db_table)
    same = f"part.group_id = {rows}.group_id AND part.source = {rows}.source"
    return f" JOIN {table} AS part ON {same} WHERE part.dependency > ''"


def _spread_of_latest(viewer: Viewer, query: Query, columns: Sequence[str], limit: int) -> tuple[int, Facets]:
    """Return the number of failures read, at most FACETED + 1, and the spread over the latest FACETED."""
    names = {column: "error" if column == "error_type" else column for column in columns}
    found_so_far = FailureSearch(viewer, query)
    if connection.vendor == "postgresql":
        sql, values = "SELECT unnest(%s::bigint[]) AS id", [found_so_far.ids(None, FACETED + 1)]
    else:
        latest = found_so_far.statement(None, FACETED + 1)
        if latest is None:
            return 0, Facets({name: [] for name in names.values()})
        sql, values = latest
    table = connection.ops.quote_name(Failure._meta.db_table)
    head = (
        f"WITH newest AS ({sql}), seen AS (SELECT {', '.join(dict.fromkeys((*columns, 'group_id', 'source')))} FROM {table} "
        f"WHERE id IN (SELECT id FROM newest ORDER BY id DESC LIMIT {FACETED}))"
    )
    parts = [(names[column], column, "COUNT(*)", f"seen WHERE {column} <> ''") for column in columns]
    if "source" in columns:  # if counters do not have it
        parts.append(("dependency", "part.dependency", "COUNT(*)", f"seen{_named_parts('seen')}"))
        names["dependency"] = "dependency"
    parts.append(("", "'all'", "COUNT(*)", "newest"))
    found = _most_frequent(head, values, parts, limit)
    return sum(n for _, n in found.pop("")), Facets(found)


def _most_frequent(
    head: str, values: Sequence[object], parts: Sequence[tuple[str, str, str, str]], limit: int
) -> dict[str, list[tuple[str, int]]]:
    """Return name -> (value, n), most frequent first, for each part (name, column, sum, rows), in one statement."""
    arms = [
        f"SELECT * FROM (SELECT '{name}' AS name, {column} AS value, {total} AS n FROM {rows} "
        f"GROUP BY 2 ORDER BY 3 DESC, 2 LIMIT {int(limit)}) AS part_{place}"
        for place, (name, column, total, rows) in enumerate(parts)
    ]
    found: dict[str, list[tuple[str, int]]] = {name: [] for name, *_ in parts}
    with connection.cursor() as cursor:
        cursor.execute(f"{head} {' UNION ALL '.join(arms)}", values)
        for name, value, n in cursor.fetchall():
            found[name].append((value, int(n)))
    return {name: sorted(pairs, key=lambda pair: (-pair[1], pair[0])) for name, pairs in found.items()}


def latest_ids(viewer: Viewer, query: Query, after: int | None, limit: int) -> list[int]:
    """Return the ids of the latest matches below `after`, highest first."""
    return FailureSearch(viewer, query).ids(after, limit)


def _rows(ids: list[int]) -> list[Failure]:
    """Return the light rows of these ids, highest first."""
    if not ids:
        return []
    sql, values = _light_rows()
    table = Failure._meta.db_table
    ordered = f"{sql} WHERE {table}.id IN ({', '.join(map(str, ids))}) ORDER BY {table}.id DESC"
    rows = []
    for read in statements.fetch_rows(ordered, values):
        row = statements.build_instance(Failure, _ROW, read[: len(_ROW)], _TIMES)
        group = statements.build_instance(Group, _GROUP, read[len(_ROW) :]) if row.group_id else None
        row._state.fields_cache["group"] = group
        rows.append(row)
    return rows


@cache
def _light_rows() -> tuple[str, tuple[object, ...]]:
    """Return the statement that reads all of them."""
    columns = ("id", "group_id", *_LIGHT, "message_head", *(f"group__{name}" for name in _GROUP))
    found = Failure.objects.annotate(message_head=Left("message", MESSAGE_SHOWN)).order_by().values_list(*columns)
    return found.query.sql_with_params()


def _hidden(viewer: Viewer, query: Query, *, is_empty: bool) -> list[str]:
    """Return hints about searches inside redacted values."""
    hints = []
    for place, term in enumerate(query.terms):
        if isinstance(term, Match) and language.is_argument(term.field):
            others = (*query.terms[:place], *query.terms[place + 1 :])
            n, more = _hidden_among(viewer, replace(query, terms=others), search_terms.hidden_argument(term.field))
            if n:
                many = f"{'More than ' if more else ''}{n:,} of these jobs {'have' if more or n > 1 else 'has'}"
                hints.append(f"{many} {term.field} redacted and cannot be found by this argument.")
            elif is_secret_name(term.field.rpartition(".")[2]):
                hints.append(f"Values of {term.field} are redacted and cannot be searched.")
    if is_empty and any(isinstance(term, Text) for term in language.leaves(query.terms)):
        others = tuple(term for term in query.terms if not scopes.is_only_text_search(term))
        n, more = _hidden_among(viewer, replace(query, terms=others), Phrase((search_terms.HIDDEN_TEXT,)))
        if n:
            many = f"{'More than ' if more else ''}{n:,} message{'s are' if more or n > 1 else ' is'}"
            hints.append(f"{many} partly redacted; redacted words cannot be searched.")
    return hints


def _hidden_among(viewer: Viewer, query: Query, hidden: Phrase) -> tuple[int, bool]:
    searcher = FailureSearch(viewer, query)
    searcher.require(hidden)
    found = searcher.count(_HIDDEN + 1)
    return min(found, _HIDDEN), found > _HIDDEN


_HIDDEN = 1_000  # jobs with redacted values that are counted for a hint


def _why_empty(viewer: Viewer, query: Query) -> str:
    if viewer.sources() == []:
        return "You have no role on any source. Ask an administrator for one."
    everything = FailureCount.objects.filter(scopes.visible(viewer), count__gt=0)
    if not everything.exists():
        return "No failures yet."
    if not query.names_state and scopes.is_counted(query):
        elsewhere = Match(
            "state", tuple(language.Value(s) for s in language.STATES if s not in language.DEFAULT_STATES)
        )
        wider = Query((*query.terms, elsewhere), now=query.now)
        by_state = dict(
            scopes.matching_counts(viewer, wider).values_list("state").annotate(n=Sum("count")).order_by("-n")
        )
        if by_state:
            return "No open failures. Others: " + ", ".join(f"{n:,} {state}" for state, n in by_state.items()) + "."
        if not query.terms:
            return "No open failures: no job is dead, retrying, replaying or quarantined."
    return f"No matches: {language.reading(query)}."
