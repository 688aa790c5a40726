"""List of groups of failures with the same cause. Read from counters, never by scanning failures.

Only sources that the viewer may see are counted, and a group without any of those is not shown. Attempts are counted
per group, not per source: for a group that also has failures of hidden sources (`is_partial`), its jobs are counted
instead, and rate and trend are not shown. Its texts are those of `group_sight`; its state is that for all sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, TypeGuard

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import BigIntegerField, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, parse
from jobs_admin.db import statements
from jobs_admin.groups import dependencies, group_numbers
from jobs_admin.models import Failure, FailureCount, Group
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN, TAKEN_IN, GroupState
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes
from jobs_admin.search.failure_search import FailureSearch

PAGE = 50

LARGEST_PAGE = 500

ORDERS = ("last_seen", "first_seen", "count", "dead")

OPEN = (GroupState.NEW, GroupState.ONGOING, GroupState.REGRESSED)  # states that need an operator

MATCHED = 5_000  # latest matching failures, from which groups are found if the groups' own columns do not suffice


@dataclass(frozen=True, slots=True)
class GroupRow:
    group: Group
    count: int  # failed attempts, ever; jobs if it is partial
    is_partial: bool  # some of its sources are hidden
    dead: int
    jobs_by_state: dict[str, int]
    per_minute: float | None  # failed attempts, over the last five minutes; None if it is partial
    trend: list[int]  # failed attempts in each of the last 24 hours, oldest first; empty if it is partial
    queues: list[str]  # by size
    tasks: list[str]
    sources: list[str]
    dependencies: list[dependencies.Named] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupPage:
    rows: list[GroupRow]
    next: str | None
    count: int
    count_is_capped: bool
    query: Query
    reading: str
    hints: tuple[str, ...]
    why_empty: str = ""
    states: tuple[str, ...] = ()  # of groups that are shown; empty for all
    by_state: dict[str, int] = field(default_factory=dict)  # matches, also in states that are not shown
    mine: int = 0  # of the shown groups, for any assignee
    unassigned: int = 0
    all_dead: int = 0  # jobs, of all that the viewer may see


def groups(
    viewer: Viewer,
    text: str = "",
    *,
    order: str = "last_seen",
    after: str | None = None,
    limit: int = PAGE,
    states: Sequence[str] = (),
    assignee: str | None = None,
    now: datetime | None = None,
) -> GroupPage:
    """Return a page of groups.

    Words search the title and the representative failure; `state:` also accepts states of groups.

    With a qualifier that only failures have, a group matches if it contains one of the latest MATCHED matching
    failures.

    `states` of groups to show; all if it is empty or the search itself names some. `assignee`: a user's name, "" for
    unassigned groups, None for all.
    """
    now = now or datetime.now(UTC)
    query = _parsed(text, now)
    order = order if order in ORDERS else "last_seen"
    limit = max(1, min(limit, LARGEST_PAGE))
    found_by = _condition(viewer, query) if query.terms else _Condition(_counted_for(viewer), query.hints)
    where = found_by.where
    shown = () if _names_group_state(query) else tuple(state for state in GroupState.values if state in states)
    tally = _tally(viewer, where, assignee) if query.terms or assignee is not None else _tally_of_all(viewer)
    found = Group.objects.filter(where, Q(state__in=shown) if shown else Q(), _assignee_condition(viewer, assignee))
    found, column = _sort(viewer, found, order)
    found = found.filter(_below(order, column, after))
    page = statements.fetch_instances(found[: limit + 1])
    cursor = _cursor_of(page[limit - 1], column) if len(page) > limit else None
    of_shown = [numbers for state, numbers in tally.items() if not shown or state in shown]
    return GroupPage(
        rows=_rows(viewer, page[:limit], now),
        next=cursor,
        count=sum(numbers.theirs for numbers in of_shown),
        count_is_capped=found_by.is_capped,
        query=query,
        reading=_reading(query),
        hints=found_by.hints,
        why_empty="" if page else _why_empty(viewer, query),
        states=shown,
        by_state={state: numbers.theirs for state, numbers in tally.items()},
        mine=sum(numbers.mine for numbers in of_shown),
        unassigned=sum(numbers.unassigned for numbers in of_shown),
        all_dead=group_numbers.all_dead(viewer),
    )


def top_groups(viewer: Viewer, order: str, limit: int, now: datetime) -> list[GroupRow]:
    """Return the first rows of `groups` without a search, reading only these rows."""
    found, _ = _sort(viewer, Group.objects.filter(_counted_for(viewer)), order)
    return _rows(viewer, statements.fetch_instances(found[:limit]), now)


def _sort(viewer: Viewer, found: QuerySet[Group], order: str) -> tuple[QuerySet[Group], str]:
    """Sort groups by values that the viewer may see. Also return the column."""
    column = order
    if order == "dead":
        found, column = found.annotate(jobs=_jobs(viewer, state="dead")), "jobs"
    elif order == "count" and viewer.sources() is not None:
        found, column = found.annotate(jobs=_jobs(viewer)), "jobs"  # the total count would disclose other sources
    elif order.endswith("_seen") and viewer.sources() is not None:
        found, column = found.annotate(seen_at=group_sight.seen_at(viewer, order)), "seen_at"
    return found.order_by(F(column).desc(), F("pk").desc()), column


def matching(viewer: Viewer, text: str, now: datetime | None = None) -> QuerySet[Group]:
    """Return all groups that `groups` would list, unordered."""
    return Group.objects.filter(_condition(viewer, _parsed(text, now or datetime.now(UTC))).where)


def _name_assignees(page: Iterable[Group]) -> None:
    """Read the assignees in one query, or in none if no group has one: a join would create a user per row."""
    ids = {found.assignee_id for found in page if found.assignee_id}
    users = get_user_model()._default_manager.in_bulk(ids) if ids else {}
    for found in page:
        if found.assignee_id:
            found.assignee = users.get(found.assignee_id)


class _Tally(NamedTuple):
    theirs: int  # of the requested assignee; all if none was requested
    mine: int
    unassigned: int


def _tally(viewer: Viewer, where: Q, assignee: str | None) -> dict[str, _Tally]:
    """Return how many groups of each state match, by assignee."""
    rows = Group.objects.filter(where).order_by().values_list("state")
    counted = rows.annotate(
        theirs=Count("pk", filter=_assignee_condition(viewer, assignee)) if assignee is not None else Count("pk"),
        mine=Count("pk", filter=Q(assignee_id=viewer.user_id or 0)),
        unassigned=Count("pk", filter=Q(assignee__isnull=True)),
    )
    return {state: _Tally(*numbers) for state, *numbers in counted}


def _tally_of_all(viewer: Viewer) -> dict[str, _Tally]:
    sources = viewer.sources()
    if sources == []:
        return {}
    me = Group._meta.get_field("assignee").get_db_prep_value(viewer.user_id, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, COUNT(*), COUNT(CASE WHEN assignee_id = %s THEN 1 END), COUNT(*) - COUNT(assignee_id) "
            f"FROM {Group._meta.db_table} AS one WHERE fingerprint NOT LIKE '{TAKEN_IN}%%' AND EXISTS "
            f"(SELECT 1 FROM {group_numbers.COUNTS} WHERE group_id = one.id AND count > 0 "
            f"{group_numbers.of_sources(sources)}) GROUP BY state",
            [me, *(sources or ())],
        )
        return {state: _Tally(*numbers) for state, *numbers in cursor.fetchall()}


def _assignee_condition(viewer: Viewer, assignee: str | None) -> Q:
    return Q() if assignee is None else group_sight.assigned(viewer, assignee)


def _parsed(text: str, now: datetime) -> Query:
    """Return the parsed search, without the hint that a term's group state is not a state of failures."""
    query = parse(text, now)
    own = {state for term in query.terms if _is_group_state(term) for state in _group_states(term)}
    return replace(query, hints=tuple(h for h in query.hints if not any(h.startswith(f"“{s}” is no") for s in own)))


class _Condition(NamedTuple):
    where: Q
    hints: tuple[str, ...]
    is_capped: bool = False  # more groups may match than `where` finds


def _condition(viewer: Viewer, query: Query) -> _Condition:
    """Return the condition of matching groups."""
    # A group that is being merged into another is shown as that one.
    where, others_terms = ~IS_TAKEN_IN, []
    for term in query.terms:
        if _is_group_state(term):
            one = Q(state__in=_group_states(term))
            if others := tuple(value for value in term.values if value.text not in GroupState.values):
                counters = scopes.matching_counts(viewer, Query((Match("state", others),), now=query.now))
                one |= Q(Exists(counters.filter(group_id=OuterRef("pk"))))
            where &= ~one if term.negated else one
        else:
            others_terms.append(term)
    if _needs_failures(query):
        return _match_latest(viewer, replace(query, terms=tuple(others_terms)), where)
    for term in others_terms:
        if scopes.is_only_text_search(term):
            where &= _titled(viewer, term)
    counted = Query(tuple(term for term in others_terms if not scopes.is_only_text_search(term)), now=query.now)
    seen = scopes.matching_counts(viewer, _in_any_state(counted)).filter(group_id=OuterRef("pk"))
    return _Condition(where & Q(Exists(seen)), query.hints)


def _needs_failures(query: Query) -> bool:
    """Return whether a term needs data that neither a group nor its counters have: a tenant, a host, arguments, …"""
    return any(
        not scopes.is_only_text_search(term)
        and {language.field_of(leaf) for leaf in language.leaves((term,))} - scopes.COUNTED
        for term in query.terms
    )


def _match_latest(viewer: Viewer, query: Query, where: Q) -> _Condition:
    """Return the groups of the latest MATCHED matching failures."""
    searcher = FailureSearch(viewer, _in_any_state(query))
    ids = searcher.ids(None, MATCHED + 1)
    within = where & Q(pk__in=groups_of(ids[:MATCHED]))
    if len(ids) > MATCHED:
        searched_hint = f"Searched the latest {MATCHED:,} matching failures only"
    elif searcher.searched is not None:
        searched_hint = f"Searched the latest {searcher.searched:,} failures only: this search cannot use the index"
    else:
        states = "" if query.names_state else " in any state"
        hint = f"Groups with at least one failure{states} that matches the whole search."
        return _Condition(within, (*query.hints, hint))
    hint = f"{searched_hint}. Earlier failures may be in more groups."
    return _Condition(within, (*query.hints, hint), is_capped=True)


def groups_of(ids: Sequence[int]) -> list[int]:
    """Return the groups of these failures."""
    if not ids:
        return []
    listed = ", ".join(str(int(pk)) for pk in ids)  # inlined, because databases limit the number of parameters
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT group_id FROM {Failure._meta.db_table} WHERE id IN ({listed}) AND group_id IS NOT NULL"
        )
        return sorted(row[0] for row in cursor.fetchall())


def _counted_for(viewer: Viewer) -> Q:
    """Return the condition of groups that have, or had, failures visible to the viewer."""
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    return ~IS_TAKEN_IN & Q(Exists(seen))


_ANY_STATE = Match("state", (language.Value("*", glob=True),))


def _in_any_state(query: Query) -> Query:
    """Return the same search over all states of failures, unless states are named."""
    return query if query.names_state else replace(query, terms=(*query.terms, _ANY_STATE))


def _names_group_state(query: Query) -> bool:
    return any(_is_group_state(term) for term in query.terms)


def _is_group_state(term: language.Term) -> TypeGuard[Match]:
    return isinstance(term, Match) and term.field == "state" and bool(_group_states(term))


def _group_states(term: Match) -> list[str]:
    return [v.text for v in term.values if v.text in GroupState.values]


def _titled(viewer: Viewer, term: language.Term) -> Q:
    """Return the condition that the group's title, or its representative failure, contains the term.

    The representative's message has the real values.
    """
    title = group_sight.reads(viewer, scopes.text_condition(term))
    seen = Failure.objects.filter(scopes.visible(viewer), pk=OuterRef("representative_id"))
    own = seen.filter(scopes.text_condition(term))
    return title | Q(Exists(own))


def _reading(query: Query) -> str:
    jobs = _needs_failures(query)
    parts = [language.in_words(term, jobs=jobs) for term in query.terms]
    if not jobs and any(scopes.is_only_text_search(term) for term in query.terms):
        # In failures, only complete words match; groups are few, so parts of words match too.
        parts.append("in the title or the example failure, also inside longer words")
    return " · ".join(parts) or "all groups"


def _jobs(viewer: Viewer, **which: str):
    counted = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), **which)
    total = counted.order_by().values("group_id").annotate(n=Sum("count")).values("n")
    return Coalesce(Subquery(total, output_field=BigIntegerField()), Value(0), output_field=BigIntegerField())


def _cursor_of(row: Group, column: str) -> str:
    value = getattr(row, column)
    return f"{value.isoformat() if isinstance(value, datetime) else value}~{row.pk}"


def _below(order: str, column: str, after: str | None) -> Q:
    """Return the condition of rows after the cursor; of all rows without one."""
    place = _place(order, after)
    if place is None:
        return Q()
    value, pk = place
    return Q(**{f"{column}__lt": value}) | Q(**{column: value, "pk__lt": pk})


def is_group_cursor(order: str, after: str) -> bool:
    """Return whether `groups` accepts it as a cursor, rather than starting at the first page."""
    return _place(order, after) is not None


def _place(order: str, after: str | None) -> tuple[object, int] | None:
    value, _, pk = (after or "").rpartition("~")
    try:
        if order.endswith("_seen"):
            at = datetime.fromisoformat(value)
            # A time near the end of the calendar may exceed it in another time zone.
            return (at.astimezone(UTC), int(pk)) if at.tzinfo and len(pk) < 19 else None
        return (int(value), int(pk)) if len(value) < 19 and len(pk) < 19 else None
    except (ValueError, OverflowError):
        return None


def _rows(viewer: Viewer, page: list[Group], now: datetime) -> list[GroupRow]:
    pks = [g.pk for g in page]
    counters: dict[int, list[group_numbers.Counted]] = defaultdict(list)
    for counter in group_numbers.counters(viewer, pks) if pks else ():
        counters[counter.group_id].append(counter)
    (per_minute, trends), partial = group_numbers.over_time(pks, now), group_sight.restrict(viewer, page)
    _name_assignees(page)
    named = dependencies.of_groups(viewer, pks) if pks else {}
    rows = []
    for found in page:
        own = counters[found.pk]
        by_state = group_numbers.totals(own, "state")
        is_partial = found.pk in partial
        rows.append(
            GroupRow(
                group=found,
                count=sum(by_state.values()) if is_partial else found.count,
                is_partial=is_partial,
                dead=by_state.get("dead", 0),
                jobs_by_state=by_state,
                per_minute=None if is_partial else per_minute[found.pk],
                trend=[] if is_partial else trends[found.pk],
                queues=[value for value, _ in group_numbers.ranked(group_numbers.totals(own, "queue"))],
                tasks=[value for value, _ in group_numbers.ranked(group_numbers.totals(own, "task"))],
                sources=[value for value, _ in group_numbers.ranked(group_numbers.totals(own, "source"))],
                dependencies=named.get(found.pk, []),
            )
        )
    return rows


def _why_empty(viewer: Viewer, query: Query) -> str:
    if viewer.sources() == []:
        return "You have no role on any source. Ask an administrator for one."
    if not query.terms:
        return "No failures yet."
    return f"No matching groups: {_reading(query)}."
