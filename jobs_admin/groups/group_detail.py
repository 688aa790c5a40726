"""One group in detail: numbers from counters, and the spread of its latest failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connection

from jobs_admin.core import query as language
from jobs_admin.core.refused import NotFound
from jobs_admin.db import statements
from jobs_admin.groups import dependencies, group_numbers
from jobs_admin.models import Failure, Group, Release
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import TAKEN_IN
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

SAMPLE = 500  # latest open failures of a group, over which tenants, releases and hosts are counted


@dataclass(frozen=True, slots=True)
class GroupDetail:
    group: Group
    count: int
    is_partial: bool
    dead: int
    jobs_by_state: dict[str, int]
    share_of_dead: float  # 0 to 1, of all dead jobs that the viewer may see
    per_minute: float | None
    trend: list[int]  # failed attempts in each of the last 24 hours, oldest first; empty if it is partial
    is_open: bool  # has jobs in the default states: then only these are counted below, else those in every state
    queues: list[tuple[str, int]]  # value and jobs, by size
    tasks: list[tuple[str, int]]
    sources: list[tuple[str, int]]
    tenants: list[tuple[str, int]]  # these three: counted over `counted_over` jobs unless that is None
    releases: list[tuple[str, int]]  # in the order of their first report
    hosts: list[tuple[str, int]]
    counted_over: int | None
    representative: Failure | None
    older: int | None  # the failures before and after the representative, by arrival
    newer: int | None
    dependencies: list[dependencies.Named]


def group_named(viewer: Viewer, fingerprint: str) -> Group:
    """Return the group with this present or former fingerprint. Raises NotFound, also if it is hidden."""
    found = _find_group(fingerprint)
    if found is None or not group_numbers.counters(viewer, [found.pk]):
        raise NotFound("Group not found, or not visible to you.")
    group_sight.restrict(viewer, [found])
    return found


def _find_group(fingerprint: str) -> Group | None:
    if "\0" in fingerprint:
        return None
    fingerprint = fingerprint.removeprefix(TAKEN_IN)
    found = statements.fetch_instances(Group.objects.filter(fingerprint=fingerprint)[:1])
    return found[0] if found else Group.objects.filter(aliases__fingerprint=fingerprint).first()


def group(viewer: Viewer, fingerprint: str, *, example: int | None = None, now: datetime | None = None) -> GroupDetail:
    """Return the details of one group. Raises NotFound, also if the viewer may not see it.

    `example`: the failure to represent it, if the viewer may see that failure.
    """
    now = now or datetime.now(UTC)
    found = _find_group(fingerprint)
    counters = group_numbers.counters(viewer, [found.pk]) if found else []
    if found is None or not counters:
        raise NotFound("Group not found, or not visible to you.")
    by_state = group_numbers.totals(counters, "state")
    all_dead = group_numbers.all_dead(viewer)
    open_ = [c for c in counters if c.state in language.DEFAULT_STATES]
    states = [
        state for state in language.STATES if by_state.get(state) and (not open_ or state in language.DEFAULT_STATES)
    ]
    sampled, spread = _spread(viewer, found, states)
    sources = group_numbers.ranked(group_numbers.totals(open_ or counters, "source"))
    is_partial = bool(group_sight.restrict(viewer, [found]))
    shown = _representative(viewer, found, example, states)
    per_minute, trends = group_numbers.over_time([found.pk], now)
    older, newer = _neighbours(viewer, found, shown.pk, states) if shown else (None, None)
    return GroupDetail(
        group=found,
        count=sum(by_state.values()) if is_partial else found.count,
        is_partial=is_partial,
        dead=by_state.get("dead", 0),
        jobs_by_state=by_state,
        share_of_dead=by_state.get("dead", 0) / all_dead if all_dead else 0.0,
        per_minute=None if is_partial else per_minute[found.pk],
        trend=[] if is_partial else trends[found.pk],
        is_open=bool(open_),
        queues=group_numbers.ranked(group_numbers.totals(open_ or counters, "queue")),
        tasks=group_numbers.ranked(group_numbers.totals(open_ or counters, "task")),
        sources=sources,
        tenants=group_numbers.ranked(spread["tenant"]),
        releases=_by_appearance(spread["release"], [source for source, _ in sources]),
        hosts=group_numbers.ranked(spread["host"]),
        counted_over=SAMPLE if sampled > SAMPLE else None,
        representative=shown,
        older=older,
        newer=newer,
        dependencies=dependencies.of_groups(viewer, [found.pk]).get(found.pk, []),
    )


def count(viewer: Viewer, found: Group) -> tuple[int, bool]:
    """Return how often it failed; for a partial group, the number of its visible jobs, and that it is partial."""
    if not group_sight.is_partial(viewer, found):
        return found.count, False
    return sum(group_numbers.totals(group_numbers.counters(viewer, [found.pk]), "state").values()), True


def _spread(viewer: Viewer, found: Group, states: Sequence[str]) -> tuple[int, dict[str, dict[str, int]]]:
    """Return the number of latest failures read, at most SAMPLE + 1, and field -> value -> count."""
    names = ("tenant", "release", "host")
    spread: dict[str, dict[str, int]] = {name: {} for name in names}
    latest = _union(viewer, found, states, limit=SAMPLE + 1)
    if latest is None:
        return 0, spread
    sql, values = latest
    table = connection.ops.quote_name(Failure._meta.db_table)
    arms = [f"SELECT '{name}', {name}, COUNT(*) FROM seen WHERE {name} <> '' GROUP BY 2" for name in names]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH newest AS ({sql}), seen AS (SELECT tenant, release, host FROM {table} WHERE id IN "
            f"(SELECT id FROM newest ORDER BY id DESC LIMIT {SAMPLE})) {' UNION ALL '.join(arms)} "
            "UNION ALL SELECT '', '', COUNT(*) FROM newest",
            values,
        )
        sampled = 0
        for name, value, n in cursor.fetchall():
            if name:
                spread[name][value] = n
            else:
                sampled = n
    return sampled, spread


def _union(
    viewer: Viewer, found: Group, states: Sequence[str], *, limit: int, beyond: str = "", than: int = 0
) -> tuple[str, list[object]] | None:
    """Return the statement for ids of failures of the group, latest first: one slice per state, each from its index.

    `beyond`: `<` for those that arrived before the failure `than`, `>` for those after it, the nearest first.
    """
    sources = viewer.sources()
    if not states or sources == []:
        return None
    seen = group_numbers.of_sources(sources)
    near = f"AND id {beyond} %s" if beyond else ""
    order = f"ORDER BY id {'ASC' if beyond == '>' else 'DESC'} LIMIT {int(limit)}"
    one = f"SELECT id FROM {Failure._meta.db_table} WHERE group_id = %s AND state = %s {near} {seen} {order}"
    slices = [f"SELECT id FROM ({one}) AS slice_{n}" for n in range(len(states))]
    values: list[object] = []
    for state in states:
        values += [found.pk, state, *([than] if beyond else ()), *(sources or ())]
    return f"{' UNION ALL '.join(slices)} {order}", values


def _first(statement: tuple[str, list[object]] | None) -> int | None:
    if statement is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        row = cursor.fetchone()
    return row[0] if row else None


def _neighbours(viewer: Viewer, found: Group, pk: int, states: Sequence[str]) -> tuple[int | None, int | None]:
    older, newer = (_union(viewer, found, states, limit=1, beyond=side, than=pk) for side in "<>")
    if older is None or newer is None:
        return None, None
    sql, values = f"SELECT ({older[0]}), ({newer[0]})", [*older[1], *newer[1]]
    return statements.fetch_rows(sql, values)[0]


def _representative(viewer: Viewer, found: Group, example: int | None, states: Sequence[str]) -> Failure | None:
    seen = Failure.objects.filter(scopes.visible(viewer)).select_related("traceback")
    if example is not None and 0 < example < 2**63:
        chosen = seen.filter(pk=example, group=found).first()
        if chosen is not None:
            return chosen
    chosen = seen.filter(pk=found.representative_id).first() if found.representative_id else None
    if chosen is None:
        latest = _first(_union(viewer, found, states, limit=1))
        chosen = seen.filter(pk=latest).first() if latest else None
    return chosen


def _by_appearance(counted: dict[str, int], sources: Sequence[str]) -> list[tuple[str, int]]:
    """Return releases in the order of their first report."""
    known = Release.objects.filter(version__in=list(counted), source__in=sources) if counted else ()
    first: dict[str, datetime] = {}
    for release in known:
        first[release.version] = min(release.at, first.get(release.version, release.at))
    unknown = datetime.max.replace(tzinfo=UTC)
    return sorted(counted.items(), key=lambda pair: (first.get(pair[0], unknown), pair[0]))
