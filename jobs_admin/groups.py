"""Groups of failures that are the same thing: the list, and one group. Read from counters, never by scanning failures.

What is counted are only the sources that the viewer may see, and a group without any of those is not shown. Attempts
are counted per group, not per source: of a group that also has failures of sources out of sight (`is_partial`) its jobs
are counted instead, and rate and trend are not told. When it was first and last seen, and its state, are of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db.models import BigIntegerField, Exists, F, OuterRef, Q, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from jobs_admin import scope as scopes
from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, parse
from jobs_admin.counting import StepOf
from jobs_admin.models import Failure, FailureCount, Group, GroupCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE
from jobs_admin.models.group import GroupState

PAGE = 50
LARGEST_PAGE = 500
ORDERS = ("last_seen", "first_seen", "count", "dead")
SAMPLE = 1_000  # the newest failures of a group that tenants, releases and hosts are counted over
RATE_OVER_MIN = 5


class NoSuchGroup(LookupError):
    """No group has this fingerprint, or none that the viewer may see."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    group: Group
    count: int  # failed attempts ever seen; jobs where it is partial
    is_partial: bool  # only some of its sources may be seen
    dead: int
    jobs_by_state: dict[str, int]
    per_minute: float | None  # failed attempts, over the last five minutes; None where it is partial
    trend: list[int]  # failed attempts in each of the last 24 hours, the oldest first; empty where it is partial
    queues: list[str]  # the fullest first
    tasks: list[str]
    sources: list[str]


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


@dataclass(frozen=True, slots=True)
class GroupDetail:
    group: Group
    count: int
    is_partial: bool
    dead: int
    jobs_by_state: dict[str, int]
    share_of_dead: float  # 0 to 1, of all dead that the viewer may see
    per_minute: float | None
    trend: list[int]
    queues: list[tuple[str, int]]  # value and jobs in the default states, the fullest first
    tasks: list[tuple[str, int]]
    sources: list[tuple[str, int]]
    tenants: list[tuple[str, int]]  # these three: counted over `counted_over` jobs where that is not None
    releases: list[tuple[str, int]]
    hosts: list[tuple[str, int]]
    counted_over: int | None
    representative: Failure | None


def groups(
    viewer: Viewer,
    text: str = "",
    *,
    order: str = "last_seen",
    after: str | None = None,
    limit: int = PAGE,
    now: datetime | None = None,
) -> GroupPage:
    """A page of groups. Words search the title and the representative failure; `state:` takes states of groups too."""
    now = now or datetime.now(UTC)
    query = parse(text, now)
    order = order if order in ORDERS else "last_seen"
    limit = max(1, min(limit, LARGEST_PAGE))
    where, hints = _condition(viewer, query)
    found = Group.objects.filter(where)
    total = found.count()
    column = order
    if order == "dead":
        found, column = found.annotate(jobs=_jobs(viewer, state="dead")), "jobs"
    elif order == "count" and viewer.sources() is not None:
        found, column = found.annotate(jobs=_jobs(viewer)), "jobs"  # the count of all would tell of other sources
    found = found.filter(_below(order, column, after)).order_by(F(column).desc(), F("pk").desc())
    page = list(found.select_related("assignee")[: limit + 1])
    rows = _rows(viewer, page[:limit], now)
    last = page[limit - 1] if len(page) > limit else None
    return GroupPage(
        rows=rows,
        next=_cursor_of(last, column) if last else None,
        count=total,
        count_is_capped=False,
        query=query,
        reading=_reading(query),
        hints=hints,
        why_empty="" if rows else _why_empty(viewer, query),
    )


def group_named(viewer: Viewer, fingerprint: str) -> Group:
    """The group of a fingerprint, or of one that it used to have. Raises NoSuchGroup, also for one out of sight."""
    named = scopes.groups_named(Match("group", (language.Value(fingerprint),)))
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    clean = "\0" not in fingerprint
    found = (
        Group.objects.filter(Exists(seen), pk__in=named).select_related("assignee", "representative").first()
        if clean
        else None
    )
    if found is None:
        raise NoSuchGroup(fingerprint)
    return found


def group(viewer: Viewer, fingerprint: str, *, now: datetime | None = None) -> GroupDetail:
    """All about one group. Raises NoSuchGroup, also for one that the viewer may not see."""
    now = now or datetime.now(UTC)
    found = group_named(viewer, fingerprint)
    counters = _counters(viewer, [found.pk])
    by_state = _totals(counters, "state")
    all_dead = FailureCount.objects.filter(scopes.visible(viewer), state="dead").aggregate(n=Sum("count"))["n"] or 0
    open_ = [c for c in counters if c.state in language.DEFAULT_STATES] or counters
    newest, is_all = _newest(viewer, found)
    is_partial = bool(_partial(viewer, [found.pk]))
    return GroupDetail(
        group=found,
        count=sum(by_state.values()) if is_partial else found.count,
        is_partial=is_partial,
        dead=by_state.get("dead", 0),
        jobs_by_state=by_state,
        share_of_dead=by_state.get("dead", 0) / all_dead if all_dead else 0.0,
        per_minute=None if is_partial else _rates([found.pk], now)[found.pk],
        trend=[] if is_partial else _trends([found.pk], now)[found.pk],
        queues=_ranked(_totals(open_, "queue")),
        tasks=_ranked(_totals(open_, "task")),
        sources=_ranked(_totals(open_, "source")),
        tenants=_ranked(Counter(f["tenant"] for f in newest if f["tenant"])),
        releases=_ranked(Counter(f["release"] for f in newest if f["release"])),
        hosts=_ranked(Counter(f["host"] for f in newest if f["host"])),
        counted_over=None if is_all else SAMPLE,
        representative=_representative(viewer, found, newest),
    )


def _condition(viewer: Viewer, query: Query) -> tuple[Q, tuple[str, ...]]:
    """Which groups match, and hints with what could not be asked of a group."""
    counted, where, ignored = [], Q(), []
    for term in query.terms:
        if isinstance(term, Match) and term.field == "state" and _group_states(term):
            one = Q(state__in=_group_states(term))
            where &= ~one if term.negated else one
        elif all(scopes.asks_text(leaf) for leaf in language.leaves((term,))):
            where &= _titled(viewer, term)
        elif all(getattr(leaf, "field", "text") in scopes.COUNTED for leaf in language.leaves((term,))):
            counted.append(term)
        else:
            ignored.append(language.format_term(term))
    named = Query((*counted, *(() if any(_names_state(t) for t in counted) else (_ANY_STATE,))), now=query.now)
    seen = scopes.counts(viewer, named).filter(group_id=OuterRef("pk"))
    hints = query.hints + tuple(f"Groups are not searched by {text}: see the failures." for text in ignored[:3])
    return where & Q(Exists(seen)), hints


_ANY_STATE = Match("state", (language.Value("*", glob=True),))


def _names_state(term: language.Term) -> bool:
    return any(isinstance(leaf, Match) and leaf.field == "state" for leaf in language.leaves((term,)))


def _group_states(term: Match) -> list[str]:
    return [v.text for v in term.values if v.text in GroupState.values]


def _titled(viewer: Viewer, term: language.Term) -> Q:
    """The group's title holds it, or the failure that stands for the group does: its message has the real values."""
    title = scopes.text_condition(term)
    seen = Failure.objects.filter(scopes.visible(viewer), pk=OuterRef("representative_id"))
    own = seen.filter(scopes.text_condition(term))
    return title | Q(Exists(own))


def _reading(query: Query) -> str:
    return " · ".join(language.in_words(term, jobs=False) for term in query.terms) or "every group"


def _partial(viewer: Viewer, pks: list[int]) -> set[int]:
    """Those groups that have, or had, failures of sources out of sight."""
    if viewer.sources() is None or not pks:
        return set()
    elsewhere = FailureCount.objects.filter(~scopes.visible(viewer), group_id__in=pks)
    return set(elsewhere.values_list("group_id", flat=True).distinct())


def _jobs(viewer: Viewer, **which: str):
    counted = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), **which)
    total = counted.order_by().values("group_id").annotate(n=Sum("count")).values("n")
    return Coalesce(Subquery(total, output_field=BigIntegerField()), Value(0), output_field=BigIntegerField())


def _cursor_of(row: Group, column: str) -> str:
    value = getattr(row, column)
    return f"{value.isoformat() if isinstance(value, datetime) else value}~{row.pk}"


def _below(order: str, column: str, after: str | None) -> Q:
    """What comes after the cursor; everything where it is none."""
    place = _place(order, after)
    if place is None:
        return Q()
    value, pk = place
    return Q(**{f"{column}__lt": value}) | Q(**{column: value, "pk__lt": pk})


def is_group_cursor(order: str, after: str) -> bool:
    """Whether `groups` would go on after it, rather than begin."""
    return _place(order, after) is not None


def _place(order: str, after: str | None) -> tuple[object, int] | None:
    value, _, pk = (after or "").rpartition("~")
    try:
        if order.endswith("_seen"):
            at = datetime.fromisoformat(value)
            # The calendar has an end, and another time zone may be beyond it.
            return (at.astimezone(UTC), int(pk)) if at.tzinfo and len(pk) < 19 else None
        return (int(value), int(pk)) if len(value) < 19 and len(pk) < 19 else None
    except (ValueError, OverflowError):
        return None


def _rows(viewer: Viewer, page: list[Group], now: datetime) -> list[GroupRow]:
    pks = [g.pk for g in page]
    counters: dict[int, list[_Counter]] = defaultdict(list)
    for counter in _counters(viewer, pks) if pks else ():
        counters[counter.group_id].append(counter)
    rates, trends, partial = _rates(pks, now), _trends(pks, now), _partial(viewer, pks)
    rows = []
    for found in page:
        own = counters[found.pk]
        by_state = _totals(own, "state")
        is_partial = found.pk in partial
        rows.append(
            GroupRow(
                group=found,
                count=sum(by_state.values()) if is_partial else found.count,
                is_partial=is_partial,
                dead=by_state.get("dead", 0),
                jobs_by_state=by_state,
                per_minute=None if is_partial else rates[found.pk],
                trend=[] if is_partial else trends[found.pk],
                queues=[value for value, _ in _ranked(_totals(own, "queue"))],
                tasks=[value for value, _ in _ranked(_totals(own, "task"))],
                sources=[value for value, _ in _ranked(_totals(own, "source"))],
            )
        )
    return rows


class _Counter(NamedTuple):
    group_id: int
    source: str
    queue: str
    task: str
    state: str
    count: int


def _counters(viewer: Viewer, pks: list[int]) -> list[_Counter]:
    held = FailureCount.objects.filter(scopes.visible(viewer), group_id__in=pks, count__gt=0)
    return [_Counter(*row) for row in held.values_list(*_Counter._fields)]


def _totals(counters: Iterable[_Counter], name: str) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for counter in counters:
        totals[getattr(counter, name)] += counter.count
    return dict(totals)


def _ranked(totals: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))


def _rates(pks: list[int], now: datetime) -> dict[int, float]:
    """Failed attempts per minute, over the last whole minutes and the one that runs."""
    since = (now - timedelta(minutes=RATE_OVER_MIN)).replace(second=0, microsecond=0)
    rows = _counted(pks, MINUTE, since).values_list("group_id").annotate(n=Sum(F("failed") + F("retried")))
    minutes = (now - since).total_seconds() / 60
    return dict.fromkeys(pks, 0.0) | {pk: n / minutes for pk, n in rows}


def _trends(pks: list[int], now: datetime) -> dict[int, list[int]]:
    """Failed attempts in each of the last 24 hours, the oldest first; the last is the hour that runs."""
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=23)
    trends = {pk: [0] * 24 for pk in pks}
    rows = _counted(pks, HOUR, first).annotate(hour=StepOf("at", HOUR)).values_list("group_id", "hour")
    for pk, hour, n in rows.annotate(n=Sum(F("failed") + F("retried"))):
        place = hour - int(first.timestamp()) // 3600
        if 0 <= place < 24:
            trends[pk][place] += n
    return trends


def _counted(pks: list[int], step: int, since: datetime):
    return GroupCounter.objects.filter(group_id__in=pks, step=step, at__gte=since)


def _newest(viewer: Viewer, found: Group) -> tuple[list[dict[str, object]], bool]:
    """The newest open failures of the group, bounded, and whether that is all; closed ones where none is open."""
    newest: list[dict[str, object]] = []
    for state in (*language.DEFAULT_STATES, "recovered", "discarded", "gone"):
        if newest and state not in language.DEFAULT_STATES:
            break
        room = SAMPLE + 1 - len(newest)
        if room <= 0:
            break
        some = Failure.objects.filter(scopes.visible(viewer), group=found, state=state).order_by("-pk")
        newest += some.values("pk", "tenant", "release", "host")[:room]
    return newest[:SAMPLE], len(newest) <= SAMPLE


def _representative(viewer: Viewer, found: Group, newest: list[dict[str, object]]) -> Failure | None:
    chosen = found.representative
    if chosen is not None and viewer.role_on(chosen.source) is None:
        chosen = None
    pk = chosen.pk if chosen is not None else (newest[0]["pk"] if newest else None)
    if pk is None:
        return None
    return Failure.objects.select_related("traceback", "group").filter(pk=pk).first()


def _why_empty(viewer: Viewer, query: Query) -> str:
    if viewer.sources() == []:
        return "You have no role on any source yet. An administrator can give you one."
    if not query.terms:
        return "No job has failed yet."
    return f"No group matches: {_reading(query)}."
