"""Readiness of a target: which jobs can be replayed now, how many, and why others cannot.

Preview and start use the same statement.

The cost depends on the result, not on a target's size, which may be a million. If a search uses only counted columns
and no single job has an obstacle, no failure is read; otherwise one statement scans an index and excludes by it.
Exceptions are looked up rather than the rule: a failure's row is kilobytes long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import connection
from django.db.models import BooleanField, Count, Q, QuerySet, Sum
from django.db.models.expressions import RawSQL
from django.utils import timezone

from jobs_admin.core import query as language
from jobs_admin.core.query import Match, Query, Term, Time
from jobs_admin.db import statements
from jobs_admin.models import Failure, FailureCount, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.replays import obstacles
from jobs_admin.replays.obstacles import OPEN, TABLE, WHY_NOT, Obstacle
from jobs_admin.replays.options import Options
from jobs_admin.replays.target import Target
from jobs_admin.search import scope as scopes
from jobs_admin.search.failure_search import FailureSearch

# Indexes that begin with one column and the state: queries for no other column read no rows.
_SLICED = ("queue", "task", "group", "tenant", "source", "kind", "attempts")
_LISTED = ("queue", "task", "group", "source", "kind")
_AT_ONCE = 2_000  # rows per fetch
_FEW = 20_000  # failures of a state that are read individually
UNBOUNDED = 2**62  # as `max_id`: no limit, for numbers that are only displayed

Statement = tuple[str, list[Any]]


class Readiness:
    """Readiness of one target as of now, for a viewer who may act on it. Computed once and cached."""

    def __init__(
        self,
        viewer: Viewer,
        scope: Target,
        *,
        max_id: int,
        options: Options = Options(),  # noqa: B008 (frozen)
        now: datetime | None = None,
        known_obstacles: list[Obstacle] | None = None,
    ) -> None:
        self._known_obstacles = known_obstacles
        self.now = now or timezone.now()
        self.viewer, self.scope, self.max_id, self.options = viewer, scope, max_id, options
        self.query = None if scope.selection else language.parse(scope.query, self.now)
        self.states = language.STATES if self.query is None else scopes.states_of(self.query)
        self._latest_dead: dict[int, list[int]] = {}

    def exclude_groups(self, groups: tuple[int, ...]) -> Readiness:
        """Return the readiness of the same target without these groups. Other obstacles are not read again."""
        options = replace(self.options, without_groups=groups)
        found = [one for one in self._obstacles if one.code != obstacles.LEFT_OUT]
        found += obstacles.find_excluded_groups(options)
        return Readiness(
            self.viewer, self.scope, max_id=self.max_id, options=options, now=self.now, known_obstacles=found
        )

    # -- results ------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of replayable jobs."""
        return self._by_reason[""]

    def has_more_than(self, most: int) -> bool:
        """Return whether more than `most` jobs can be replayed.

        If no job is blocked, the latest dead jobs show it, which takes less time than counting them all.
        """
        is_free = self.query is not None and not self._obstacles and not language.unfit_for_acts(self.query)
        if is_free and self.reads_rows and len(self.latest_dead(most + 1)) > most:
            return True
        return self.count > most

    @property
    def matched(self) -> int:
        return self._by_reason.total()

    @cached_property
    def blocked(self) -> list[dict[str, Any]]:
        """Blocked jobs: {"code", "reason", "count"}, most frequent first.

        "accept" is the option that includes them nevertheless; "replay" is the replay that has them.
        """
        found: list[dict[str, Any]] = []
        known = {f"{n}": one for n, one in enumerate(self._obstacles)}
        for name, n in self._by_reason.items():
            if name == OPEN:
                found += self._count_open(n)
            elif name in known:
                one = known[name]
                if same := next((row for row in found if row["reason"] == one.reason), None):
                    same["count"] += n
                    continue
                found.append({"code": one.code, "reason": one.reason, "count": n})
                if one.accept:
                    found[-1]["accept"] = one.accept
            elif name:
                found.append({"code": name, "reason": WHY_NOT[FailureState(name)], "count": n})
        return sorted(found, key=lambda row: -row["count"])

    @cached_property
    def sources(self) -> list[str]:
        """Sources that the jobs would be sent to."""
        if not self.count:
            return []
        if self.is_counted and not self._of_rows:
            ready = self._counters.filter(state=FailureState.DEAD).exclude(self._away)
            return sorted(set(ready.values_list("source", flat=True)))
        dead = FailureCount.objects.filter(scopes.visible(self.viewer, OPERATOR), state=FailureState.DEAD, count__gt=0)
        named = sorted(set(dead.values_list("source", flat=True)))
        return named if len(named) == 1 else [name for name in named if self.rows().filter(source=name).exists()]

    def owned(self) -> Iterator[tuple[int, str, str]]:
        """Yield (id, tenant, source) of the replayable jobs, lowest id first."""
        found = self._ready
        if found is None:
            return iter(())
        if connection.vendor == "postgresql":
            return self.rows().order_by("pk").values_list("pk", "tenant", "source").iterator(_AT_ONCE)
        # All three columns are in this index. Without the hint, SQLite reads rows of kilobytes for them.
        by_state, (within, values) = f"{TABLE} INDEXED BY failure_by_state WHERE ", found
        if not within.startswith(by_state):
            within = f"{by_state}state = '{FailureState.DEAD}' AND {TABLE}.id IN (SELECT {TABLE}.id FROM {within})"
        return _stream((f"SELECT {TABLE}.id, tenant, source FROM {within} ORDER BY {TABLE}.id", values))

    @property
    def _ids_of_ready(self) -> Statement | None:
        found = self._ready
        return found and (f"SELECT {TABLE}.id FROM {found[0]}", found[1])

    @cached_property
    def _ready(self) -> Statement | None:
        """The SQL after FROM for replayable jobs; None if nothing can match."""
        where = self._where(FailureState.DEAD)
        if where is None:
            return None
        left_out = "".join(f" AND NOT {one.sql}" for one in self._obstacles)
        return where[0] + left_out, [*where[1], *(value for one in self._obstacles for value in one.values)]

    def latest(self, most: int) -> list[int]:
        """Return the ids of the latest replayable jobs, highest first.

        These are among the latest `most` dead ones, unless more than half of those are blocked: then `most` of all.
        """
        if self.query is None:
            return sorted(self.rows().values_list("pk", flat=True), reverse=True)[:most]
        sample = self.latest_dead(most + 1)[:most]  # as `has_more_than` reads them
        if not self._obstacles or not sample:
            return sample
        among, values = statements.one_of("id", sample)
        for one in self._obstacles:
            among, values = f"{among} AND NOT {one.sql}", [*values, *one.values]
        able = f"SELECT id FROM {TABLE} WHERE state = '{FailureState.DEAD}' {among} ORDER BY id DESC"
        found = [pk for (pk,) in statements.fetch_rows(able, values)]
        # Obstacles are frequent among the latest jobs, so these alone would not represent the rest.
        return found if 2 * len(found) >= min(most, self.count) else self._latest_of_all(most)

    def _latest_of_all(self, most: int) -> list[int]:
        if connection.vendor == "postgresql":
            return list(self.rows().order_by("-pk").values_list("pk", flat=True)[:most])
        found = self._ids_of_ready
        return sorted((row[0] for row in _fetch(found)), reverse=True)[:most] if found else []

    def rows(self) -> QuerySet[Failure]:
        """Return the failures that can be replayed."""
        found = self._ids_of_ready
        if found is None:
            return Failure.objects.none()
        if connection.vendor == "postgresql":
            return self._able(self.scope.within(self.viewer, self.now).filter(pk__lte=self.max_id)).order_by()
        # By ids: otherwise SQLite chooses an index with which it reads every dead failure.
        return Failure.objects.filter(RawSQL(f"{TABLE}.id IN ({found[0]})", found[1], output_field=BooleanField()))  # noqa: S611

    def arrived_since(self, most: int) -> int:
        """Return the number of later matching jobs, counted up to `most`."""
        if self.max_id >= UNBOUNDED or not Failure.objects.filter(pk__gt=self.max_id).exists():
            return 0
        later = self.scope.within(self.viewer, self.now).filter(pk__gt=self.max_id)
        return later.order_by()[:most].count()

    @cached_property
    def is_counted(self) -> bool:
        """Return whether counters suffice: the search uses only counted columns, and no failure arrived meanwhile."""
        return self.query is not None and scopes.is_counted(self.query) and not self.arrived_since(1)

    @property
    def reads_rows(self) -> bool:
        """Return whether the count requires reading failures."""
        return not self.is_counted or bool(self._of_rows)

    def count_dead(self, most: int) -> int:
        """Return the number of matching dead jobs before obstacles, counted up to `most` if counters do not have it."""
        if self.is_counted:
            return self._counted_by_state.get(FailureState.DEAD, 0)
        dead = self.scope.within(self.viewer, self.now).filter(state=FailureState.DEAD)
        return dead.order_by()[:most].count()

    def spread(self, column: str, most: int) -> list[tuple[Any, int]] | None:
        """Return the spread of replayable jobs over source, queue, task or group_id; None if rows must be read."""
        if not self.is_counted or self._of_rows:
            return None
        ready = self._counters.filter(state=FailureState.DEAD).exclude(self._away).order_by()
        return list(ready.values_list(column).annotate(n=Sum("count")).order_by("-n", column)[:most])

    @property
    def unguarded(self) -> list[Obstacle]:
        """Queues with an unguarded worker, accepted or not."""
        return [
            one
            for one in obstacles.find_obstacles(Options(to_queue=self.options.to_queue), self.now)
            if one.code == "unguarded"
        ]

    # -- counts -------------------------------------------------------------------------------------------------

    @cached_property
    def _obstacles(self) -> list[Obstacle]:
        found = self._known_obstacles
        return obstacles.find_obstacles(self.options, self.now) if found is None else found

    @property
    def _of_rows(self) -> list[Obstacle]:
        """Obstacles that counters do not include."""
        return [one for one in self._obstacles if one.place is None]

    @property
    def _away(self) -> Q:
        found = Q(pk__in=[])
        for one in self._obstacles:
            found |= one.place or Q(pk__in=[])
        return found

    @cached_property
    def _counters(self) -> QuerySet[FailureCount]:
        return scopes.matching_counts(self.viewer, self.query or Query(), OPERATOR)

    @cached_property
    def _counted_by_state(self) -> dict[str, int]:
        return dict(self._counters.values_list("state").annotate(n=Sum("count")).order_by())

    @cached_property
    def _by_reason(self) -> Counter[str]:
        """Number of jobs by obstacle: "" for none, OPEN, the index of an obstacle, or a state."""
        if self.is_counted and not self._of_rows:
            return self._by_counters()
        found: Counter[str] = Counter()
        others = [state for state in self.states if state != FailureState.DEAD]
        if FailureState.DEAD in self.states:
            found += self._dead_by_reason()
        if self.is_counted:
            found += Counter({state: n for state, n in self._counted_by_state.items() if state in others})
            others = others if self._is_any_open else []
            for state, _, n in self._by_state(others, only_open=True):
                found[OPEN] += n
                found[state] -= n
            return +found
        for state, is_open, n in self._by_state(others):
            found[OPEN if is_open else state] += n
        return +found

    @property
    def _is_any_open(self) -> bool:
        return any(one.code == OPEN for one in self._obstacles)

    def _by_counters(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for state, n in self._counted_by_state.items():
            found["" if state == FailureState.DEAD else state] += n
        dead = self._counters.filter(state=FailureState.DEAD)
        for n, one in enumerate(self._obstacles):
            assert one.place is not None
            found[str(n)] = dead.filter(one.place).aggregate(n=Sum("count"))["n"] or 0
            found[""] -= found[str(n)]
            dead = dead.exclude(one.place)
        return +found

    def _dead_by_reason(self) -> Counter[str]:
        where = self._where(FailureState.DEAD)
        if where is None:
            return Counter()
        if not self._obstacles:
            return Counter({"": _fetch((f"SELECT COUNT(*) FROM {where[0]}", where[1]))[0][0]})
        cases = " ".join(f"WHEN {one.sql} THEN {n}" for n, one in enumerate(self._obstacles))
        sums = ", ".join(f"COUNT(*) FILTER (WHERE why = {n})" for n in range(-1, len(self._obstacles)))
        values = [value for one in self._obstacles for value in one.values]
        # The limit excludes nothing: it keeps SQLite from evaluating the subquery again for each sum.
        reasons = f"SELECT CASE {cases} ELSE -1 END AS why FROM {where[0]} LIMIT {2**62}"
        free, *blocked = _fetch((f"SELECT {sums} FROM ({reasons}) AS told", [*values, *where[1]]))[0]
        named = [OPEN if one.code == OPEN else str(n) for n, one in enumerate(self._obstacles)]
        return +Counter({"": free, **dict(zip(named, blocked, strict=True))})

    def _by_state(self, states: list[str], *, only_open: bool = False) -> list[tuple[str, bool, int]]:
        """Return (state, whether an open replay has them, number) of the jobs that are not dead."""
        totals = dict(
            FailureCount.objects.filter(state__in=states, count__gt=0).values_list("state").annotate(n=Sum("count"))
        )
        open_sql = "".join(one.sql for one in self._obstacles if one.code == OPEN) or "1 = 0"
        found: list[tuple[str, bool, int]] = []
        for state, total in sorted(totals.items()):
            # A gone job was sent by a replay that receives no report about it.
            is_open = "1 = 0" if state == FailureState.GONE else open_sql
            where = self._where(state, of_few=total <= _FEW)
            if where is not None:
                only = f" AND {is_open}" if only_open else ""
                counted = f"SELECT {is_open} AS held, COUNT(*) FROM {where[0]}{only} GROUP BY 1"
                found += [(state, bool(has_open), n) for has_open, n in _fetch((counted, where[1]))]
        return found

    def _count_open(self, n: int) -> list[dict[str, Any]]:
        """Return the rows of jobs that other replays have, by replay."""
        running = Replay.objects.filter(Q(planned__gt=0) | Q(sent__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0))
        actors = dict(running.values_list("pk", "actor"))
        by_replay = Counter(dict.fromkeys(actors, n))
        if len(actors) != 1:
            inside = self.scope.within(self.viewer, self.now).filter(pk__lte=self.max_id).order_by()
            items = ReplayItem.objects.filter(failure__in=inside.values("pk"), state__in=OPEN_ITEM).order_by()
            rows = list(items.values_list("replay", "replay__actor").annotate(n=Count("pk")))
            actors, by_replay = {r: actor for r, actor, _ in rows}, Counter({r: n for r, _, n in rows})
        return [
            {"code": OPEN, "reason": f"already in replay #{pk} of {actors[pk]}", "count": count, "replay": pk}
            for pk, count in by_replay.items()
        ]

    # -- choice of an index -------------------------------------------------------------------------------------

    def _where(self, state: str, *, of_few: bool = False) -> Statement | None:
        """Return the SQL after FROM for jobs of one state up to `max_id`; None if nothing can match."""
        if state not in self.states:
            return None
        base = Q(state=state, pk__lte=self.max_id) & scopes.visible(self.viewer, OPERATOR)
        if self.query is None:
            return _compile(base & Q(pk__in=self.scope.selection), "")
        if language.unfit_for_acts(self.query):
            return None
        if connection.vendor == "postgresql":
            return _compile(base & scopes.build_condition(self.query, states=False), "")
        if of_few:
            return _compile(base & scopes.build_condition(self.query, states=False), "failure_by_state")
        return self._along_ids(base)

    def _along_ids(self, base: Q) -> Statement | None:
        """Return the statement that scans an index of ids.

        For words and times, SQLite uses the first suitable index and then reads each row for its state. With the index
        given, it finds the ids alone and looks up each in that index, which includes the state.
        """
        assert self.query is not None
        sliced, times, rest = _split_terms(self.query.terms)
        if times:
            inner = Query(tuple(times), now=self.query.now)
            base &= Q(pk__in=Failure.objects.filter(scopes.build_condition(inner, states=False)).values("pk"))
        others = Query((*sliced, *rest), now=self.query.now)
        if others.terms:
            base &= scopes.build_condition(others, states=False)
        by = f"failure_by_{sliced[0].field}" if sliced else "failure_by_state"
        is_plain = not times and not rest and (len(sliced) == 1 or not sliced)
        return _compile(base, "" if is_plain else by)

    def _able(self, found: QuerySet[Failure]) -> QuerySet[Failure]:
        for one in self._obstacles:
            found = found.exclude(RawSQL(one.sql, one.values, output_field=BooleanField()))  # noqa: S611
        return found.filter(state=FailureState.DEAD)

    def latest_dead(self, most: int) -> list[int]:
        assert self.query is not None
        if most in self._latest_dead:
            return self._latest_dead[most]
        sources = self.viewer.sources(OPERATOR)
        acting = Viewer(self.viewer.name, dict.fromkeys(["*"] if sources is None else sources, OPERATOR))
        latest = FailureSearch(acting, self.query)
        latest.states = tuple(state for state in latest.states if state == FailureState.DEAD)
        before = None if self.max_id >= UNBOUNDED else self.max_id + 1
        self._latest_dead[most] = latest.ids(before, most) if latest.states else []
        return self._latest_dead[most]


def _split_terms(terms: tuple[Term, ...]) -> tuple[list[Match], list[Term], list[Term]]:
    """Split terms into those of one indexed column, times, and all others. States are handled elsewhere."""
    sliced: list[Match] = []
    times: list[Term] = []
    rest: list[Term] = []
    for term in terms:
        if scopes.is_state(term):
            continue
        if isinstance(term, Match) and term.field in _SLICED and not term.negated and _is_listed(term):
            sliced.append(term)
        elif isinstance(term, Time | language.Age):
            times.append(term)
        else:
            rest.append(term)
    return sliced, times, rest


def _is_listed(term: Match) -> bool:
    """Return whether the patterns are looked up in a list of names, because an index cannot match patterns."""
    return term.field in _LISTED or not any(value.glob for value in term.values)


def _compile(condition: Q, index: str) -> Statement | None:
    by = f" INDEXED BY {index}" if index else ""
    query = Failure.objects.filter(condition).query
    try:
        sql, values = query.get_compiler(connection=connection).compile(query.where)
    except EmptyResultSet:
        return None
    except FullResultSet:
        return f"{TABLE}{by} WHERE 1 = 1", []
    return f"{TABLE}{by} WHERE {sql}", list(values)


def _fetch(statement: Statement) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        return cursor.fetchall()


def _stream(statement: Statement) -> Iterator[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        while rows := cursor.fetchmany(_AT_ONCE):
            yield from rows
