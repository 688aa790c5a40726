"""Find failures: search, page, one failure, facets, and the scope of acts.

A page costs the same however many failures there are: rows come by key, newest first, in slices that each follow
an index, and counts come from counters wherever they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Left

from jobs_admin import scope as scopes
from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, parse
from jobs_admin.groups import GroupDetail, GroupPage, GroupRow, NoSuchGroup, group, group_named, groups, is_group_cursor
from jobs_admin.models import Attempt, Failure, FailureCount, Group, Payload
from jobs_admin.models.access import VIEWER, Viewer

__all__ = [
    "Facets",
    "GroupDetail",
    "GroupPage",
    "GroupRow",
    "NoSuchGroup",
    "Page",
    "attempts",
    "count",
    "facets",
    "get",
    "group",
    "group_named",
    "groups",
    "is_group_cursor",
    "payload_of",
    "scope",
    "search",
]

PAGE = 50
LARGEST_PAGE = 500
CAP = 10_000  # counts are exact up to here, and where a counter knows
FACETED = 1_000  # matches, the newest, that facets are counted over where no counter knows: some 2 ms
MESSAGE_SHOWN = 300  # characters of the message in a row of a list

# What a row of a list shows. Arguments, headers and the whole message stay in the table.
_LIGHT = (
    "source", "queue", "first_job_id", "job_id", "run", "state", "task", "error_type", "kind", "reason", "attempts",
    "max_attempts", "due_at", "first_failed_at", "failed_at", "received_at", "worker", "host", "release", "tenant",
    "priority", "labels", "group__fingerprint", "group__error_type", "group__state",
)  # fmt: skip

# Fields whose index is (field, state, id): a slice of one value and one state comes sorted from it.
_SLICED = ("group", "queue", "task", "tenant", "source")
_MOST_SLICES = 32


@dataclass(frozen=True, slots=True)
class Page:
    """Some failures that match, newest first, and what is known of the rest."""

    rows: list[Failure]
    next: str | None  # hand it to `search` as `after`; None on the last page
    count: int
    count_is_capped: bool  # there are more than `count`
    query: Query
    reading: str
    hints: tuple[str, ...]
    why_empty: str = ""


def search(
    viewer: Viewer, text: str = "", *, after: str | None = None, limit: int = PAGE, now: datetime | None = None
) -> Page:
    """A page of the failures that match `text`. An `after` that is no cursor gives the first page."""
    query = parse(text, now or datetime.now(UTC))
    limit = max(1, min(limit, LARGEST_PAGE))
    found = newest_ids(viewer, query, _cursor(after), limit + 1)
    total, capped = count(viewer, query)
    rows = _rows(found[:limit])
    return Page(
        rows=rows,
        next=str(found[limit - 1]) if len(found) > limit else None,
        count=total,
        count_is_capped=capped,
        query=query,
        reading=query.reading,
        hints=query.hints,
        why_empty="" if rows else _why_empty(viewer, query),
    )


def get(viewer: Viewer, pk: int) -> Failure:
    """One failure with its group and stack. Raises Failure.DoesNotExist, also for what the viewer may not see."""
    if not -(2**63) <= int(pk) < 2**63:
        raise Failure.DoesNotExist
    return Failure.objects.select_related("group", "traceback").get(scopes.visible(viewer), pk=pk)


def attempts(failure: Failure) -> list[Attempt]:
    """Every attempt of every run, oldest first."""
    found = failure.attempt_set.select_related("group", "item__replay")
    return list(found.order_by("run", "attempt", "ended_at", "id"))


def payload_of(failure: Failure) -> Payload | None:
    """The raw message that a replay would send: the latest run's; None where none was kept."""
    return failure.payloads.order_by("-run").first()


def scope(viewer: Viewer, query: Query, *, role: str = VIEWER) -> QuerySet[Failure]:
    """Everything that the query matches where the viewer holds `role`: for acts and exports.

    A query that had to be cut short matches more than was asked. As a scope of acts it matches nothing.
    """
    if query.is_cut and role != VIEWER:
        return Failure.objects.none()
    return Failure.objects.filter(scopes.visible(viewer, role), scopes.compiled(query))


def count(viewer: Viewer, query: Query) -> tuple[int, bool]:
    """How many match, and whether there are more: exact where counters know, else exact up to CAP."""
    if scopes.is_counted(query):
        return scopes.counts(viewer, query).aggregate(n=Sum("count"))["n"] or 0, False
    found = scope(viewer, query).order_by().values("pk")[: CAP + 1].count()
    return min(found, CAP), found > CAP


class Facets(dict[str, list[tuple[str, int]]]):
    """Field -> its most frequent values with their counts. `counted_over` is None where every match was counted."""

    counted_over: dict[str, int | None]


def facets(viewer: Viewer, text: str = "", *, now: datetime | None = None, limit: int = 12) -> Facets:
    """How what matches is spread over queue, task, state, error and tenant.

    Counters answer for all but the tenant where they know; the rest is counted over the newest FACETED that match.
    """
    query = parse(text, now or datetime.now(UTC))
    is_counted = scopes.is_counted(query)
    columns = ("tenant",) if is_counted else ("queue", "task", "state", "error_type", "tenant")
    looked_at, found = _spread_of_newest(viewer, query, columns, limit)
    found.counted_over = dict.fromkeys(found, FACETED if looked_at > FACETED else None)
    if is_counted:
        counted = _spread_of_counters(viewer, query, limit)
        found |= counted
        found.counted_over |= dict.fromkeys(counted)
    return found


def _spread_of_counters(viewer: Viewer, query: Query, limit: int) -> dict[str, list[tuple[str, int]]]:
    names = ("queue", "task", "state", "error")
    held = scopes.counts(viewer, query).order_by().values("queue", "task", "state", "group_id", "count")
    try:
        sql, values = held.query.sql_with_params()
    except EmptyResultSet:
        return {name: [] for name in names}
    table = connection.ops.quote_name(Group._meta.db_table)
    parts = [(name, name, 'SUM(held."count")', "held") for name in names[:3]]
    parts.append(("error", "error_type", 'SUM(held."count")', f"held JOIN {table} AS grp ON grp.id = held.group_id"))
    return _most_frequent(f"WITH held AS ({sql})", values, parts, limit)


def _spread_of_newest(viewer: Viewer, query: Query, columns: Sequence[str], limit: int) -> tuple[int, Facets]:
    """How many were looked at, one more than FACETED where there are more, and the spread over the newest FACETED."""
    names = {column: "error" if column == "error_type" else column for column in columns}
    newest = _newest(viewer, query, None, FACETED + 1)
    if newest is None:
        return 0, Facets({name: [] for name in names.values()})
    sql, values = newest
    table = connection.ops.quote_name(Failure._meta.db_table)
    head = (
        f"WITH newest AS ({sql}), seen AS (SELECT {', '.join(columns)} FROM {table} "
        f"WHERE id IN (SELECT id FROM newest ORDER BY id DESC LIMIT {FACETED}))"
    )
    parts = [(names[column], column, "COUNT(*)", f"seen WHERE {column} <> ''") for column in columns]
    parts.append(("", "'all'", "COUNT(*)", "newest"))
    found = _most_frequent(head, values, parts, limit)
    return sum(n for _, n in found.pop("")), Facets(found)


def _most_frequent(
    head: str, values: Sequence[object], parts: Sequence[tuple[str, str, str, str]], limit: int
) -> dict[str, list[tuple[str, int]]]:
    """name -> (value, n), the most frequent first, for each part (name, column, sum, rows): in one statement."""
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


def _cursor(after: str | None) -> int | None:
    return int(after) if after and after.isascii() and after.isdigit() and len(after) < 19 else None


def newest_ids(viewer: Viewer, query: Query, after: int | None, limit: int) -> list[int]:
    """The ids of the newest that match, below `after`, highest first."""
    newest = _newest(viewer, query, after, limit)
    if newest is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(*newest)
        return [row[0] for row in cursor.fetchall()]


def _newest(viewer: Viewer, query: Query, after: int | None, limit: int) -> tuple[str, list[object]] | None:
    """The statement that gives `newest_ids`; None where nothing can match.

    `state IN (…) ORDER BY id DESC` has no index that serves both: where most rows have recovered it would walk all of
    them, or sort every dead one. One slice per state (and queue, task …) follows its index and stops at `limit`.
    """
    slices, rest = _slices(viewer, query)
    found = Failure.objects.filter(scopes.visible(viewer), scopes.compiled(rest, states=False))
    if after is not None:
        found = found.filter(pk__lt=after)
    statements: list[str] = []
    parameters: list[object] = []
    for one in slices:
        page = found.filter(one).order_by("-id").values("id")[:limit]
        try:
            sql, values = page.query.sql_with_params()
        except EmptyResultSet:  # it contradicts itself, or the viewer has no role anywhere
            continue
        statements.append(f"SELECT id FROM ({sql}) AS slice_{len(statements)}")
        parameters += values
    if not statements:
        return None
    return f"{' UNION ALL '.join(statements)} ORDER BY id DESC LIMIT {int(limit)}", parameters


def _slices(viewer: Viewer, query: Query) -> tuple[list[Q], Query]:
    """Conditions that do not overlap and each follow one index, and what of the query they leave to be asked.

    Together they hold all that the query can match.
    """
    states = scopes.states_of(query)
    term = _term_to_slice(query, len(states))
    if term is not None:
        rest = replace(query, terms=tuple(t for t in query.terms if t is not term))
        name, values = _values(term)
        return [Q(**{name: value, "state": state}) for value, state in product(values, states)], rest
    sources = viewer.sources()
    if sources is not None and len(sources) * len(states) <= _MOST_SLICES:
        # Where another source holds all the rows, a slice by state alone would walk them for nothing.
        return [Q(source=source, state=state) for source, state in product(sources, states)], query
    if len(states) == len(language.STATES):
        return [Q()], query  # every state: the primary key itself is in order
    return [Q(state=state) for state in states], query


def _term_to_slice(query: Query, states: int) -> Match | None:
    """The term that narrows the most and has an index; None where no term names a few plain values."""
    terms = [t for t in query.terms if isinstance(t, Match) and not t.negated and not any(v.glob for v in t.values)]
    few = [t for t in terms if t.field in _SLICED and len(set(t.values)) * states <= _MOST_SLICES]
    return min(few, key=lambda t: _SLICED.index(t.field), default=None)


def _values(term: Match) -> tuple[str, list[object]]:
    if term.field == "group":
        return "group_id", [row["pk"] for row in scopes.groups_named(term)]
    return term.field, sorted({v.text for v in term.values})


def _rows(ids: list[int]) -> list[Failure]:
    """The light rows of these ids, highest first."""
    if not ids:
        return []
    found = Failure.objects.filter(pk__in=ids).select_related("group").only(*_LIGHT)
    rows = list(found.annotate(message_head=Left("message", MESSAGE_SHOWN)).order_by("-pk"))
    for row in rows:
        row.message = row.message_head  # in place of the deferred one, which would cost a query a row
    return rows


def _why_empty(viewer: Viewer, query: Query) -> str:
    if viewer.sources() == []:
        return "You have no role on any source yet. An administrator can give you one."
    everything = FailureCount.objects.filter(scopes.visible(viewer), count__gt=0)
    if not everything.exists():
        return "No job has failed yet."
    if not query.names_state and scopes.is_counted(query):
        elsewhere = Match(
            "state", tuple(language.Value(s) for s in language.STATES if s not in language.DEFAULT_STATES)
        )
        wider = Query((*query.terms, elsewhere), now=query.now)
        by_state = dict(scopes.counts(viewer, wider).values_list("state").annotate(n=Sum("count")).order_by("-n"))
        if by_state:
            return "None here: " + ", ".join(f"{n:,} {state}" for state, n in by_state.items()) + "."
        if not query.terms:
            return "Nothing waits here: no job is dead, retrying, replaying or quarantined."
    return f"Nothing matches: {query.reading}."
