"""Dependencies of failures, for the sources that a viewer sees: of groups, all of them, and one over time.

Jobs are counted per source; attempts only per group, so those of groups with hidden sources are omitted.

The step `regroup` derives the dependencies of known groups, a few at a time, from the rules of `core/dependency.py`,
the policies in force and operators' settings. After an upgrade it does so for all groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction
from django.db.models import F, Q, Sum

from jobs_admin.core import query as language
from jobs_admin.core.dependency import OTHER, SEVERAL, Dependency
from jobs_admin.core.refused import NotFound
from jobs_admin.db.counters import StepNumber
from jobs_admin.db.turns import turn
from jobs_admin.groups import group_numbers
from jobs_admin.ingest import dependencies as attributing
from jobs_admin.models import Failure, FailureCount, Group, GroupCounter, GroupSource, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE
from jobs_admin.queues import rates
from jobs_admin.search import scope as scopes

MOST = 200  # rows of a list, the worst
MOST_OF_GROUP = 3  # names of a group with different dependencies at its sources
_COUNTS, _PARTS = FailureCount._meta.db_table, GroupSource._meta.db_table

_MOST_TRENDS = 5_000  # groups added up in a chart
_MOST_QUEUES = 200
_AT_ONCE = 20  # group parts
_SAMPLE = 200  # latest failures of each state
_READ, _OF_A_TASK = 20, 3  # failures of a part, and of each task, whose errors are read
NONE = "none"  # set by an operator: these failures have no dependency


@dataclass(frozen=True, slots=True)
class Named:
    name: str
    reason: str
    by: str = ""  # the operator who set it; "" if derived


def of_groups(viewer: Viewer, pks: Collection[int]) -> dict[int, list[Named]]:
    """Return group -> its dependencies at the sources that the viewer sees; groups without one are absent."""
    found: dict[int, list[Named]] = defaultdict(list)
    parts = GroupSource.objects.filter(scopes.visible(viewer), group__in=list(pks), dependency__gt="").order_by("pk")
    for pk, *values in parts.values_list("group_id", "dependency", "dependency_reason", "dependency_by"):
        named = Named(*values)
        if len(found[pk]) < MOST_OF_GROUP and named.name not in {one.name for one in found[pk]}:
            found[pk].append(named)
    return dict(found)


def of_failure(failure: Failure) -> Named | None:
    """Return the dependency of a failure's group at its source."""
    if failure.group_id is None:
        return None
    part = GroupSource.objects.filter(group=failure.group_id, source=failure.source, dependency__gt="")
    found = part.values_list("dependency", "dependency_reason", "dependency_by").first()
    return Named(*found) if found else None


@dataclass(slots=True)
class DependencyRow:
    name: str
    dead: int
    open: int  # jobs in the default states
    jobs: int
    queues: int
    tasks: int
    groups: int
    per_minute: float = 0.0  # failed attempts
    trend: list[int] = field(default_factory=list)  # failed attempts in each of the last 24 hours, oldest first


def listing(viewer: Viewer, now: datetime, *, name: str = "", most: int = MOST) -> tuple[list[DependencyRow], int]:
    """Return the dependencies, highest failure rate first, and the number omitted. `name`: only this one."""
    sources = viewer.sources()
    if sources == []:
        return [], 0
    states = ", ".join(f"'{state}'" for state in language.DEFAULT_STATES)
    where, values = _visible("held", sources)
    only, of_name = (" AND part.dependency = %s", [name]) if name else ("", [])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.dependency, SUM(CASE WHEN state = 'dead' THEN held.\"count\" ELSE 0 END), "
            f'SUM(CASE WHEN state IN ({states}) THEN held."count" ELSE 0 END), SUM(held."count"), '
            "COUNT(DISTINCT held.queue), COUNT(DISTINCT held.task), COUNT(DISTINCT held.group_id) "
            f"FROM {_PARTS} AS part JOIN {_COUNTS} AS held ON held.group_id = part.group_id AND held.source = part.source "
            f"WHERE part.dependency > '' AND held.\"count\" > 0{where}{only} GROUP BY part.dependency",
            [*values, *of_name],
        )
        rows = [DependencyRow(found, *map(int, numbers)) for found, *numbers in cursor.fetchall()]
    by_name = {row.name: row for row in rows}
    for found, n in _attempts(viewer, MINUTE, rates.window_start(now), name):
        if found in by_name:
            by_name[found].per_minute = n / rates.window_minutes(now)
    rows.sort(key=lambda row: (row.name in (SEVERAL, OTHER), -row.per_minute, -row.dead, -row.open, row.name))
    shown = rows[:most]
    _add_trends(viewer, shown, now, name)
    return shown, len(rows) - len(shown)


def _visible(alias: str, sources: Sequence[str] | None) -> tuple[str, list[str]]:
    if sources is None:
        return "", []
    return f" AND {alias}.source IN ({group_numbers.marks(sources)})", list(sources)


def _of_groups(viewer: Viewer, name: str) -> tuple[str, list[str]]:
    """Return SQL of group and dependency, each pair once; without groups that have hidden sources."""
    sources = viewer.sources()
    where, values = _visible("part", sources)
    if name:
        where, values = f"{where} AND part.dependency = %s", [*values, name]
    if sources is not None:
        where += (
            f" AND NOT EXISTS (SELECT 1 FROM {_PARTS} AS other WHERE other.group_id = part.group_id "
            f"AND other.source NOT IN ({group_numbers.marks(sources)}))"
        )
        values = [*values, *sources]
    return (
        f"SELECT DISTINCT part.group_id, part.dependency FROM {_PARTS} AS part WHERE part.dependency > ''{where}",
        values,
    )


def _attempts(viewer: Viewer, step: int, since: datetime, name: str) -> list[tuple[str, int]]:
    """Return the failed attempts of each dependency since then."""
    named, values = _of_groups(viewer, name)
    at = connection.ops.adapt_datetimefield_value(since) if connection.vendor == "sqlite" else since
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT named.dependency, SUM(counted.failed + counted.retried) FROM ({named}) AS named "
            f"JOIN {GroupCounter._meta.db_table} AS counted ON counted.group_id = named.group_id "
            "WHERE counted.step = %s AND counted.at >= %s GROUP BY named.dependency",
            [*values, step, at],
        )
        return [(found, int(n)) for found, n in cursor.fetchall()]


def _add_trends(viewer: Viewer, rows: Sequence[DependencyRow], now: datetime, name: str) -> None:
    groups = _group_names(viewer, name)
    _, trends = group_numbers.over_time(sorted(groups), now) if len(groups) <= _MOST_TRENDS else ({}, {})
    by_name = {row.name: row for row in rows}
    for row in rows:
        row.trend = [0] * 24 if trends else []
    for pk, counts in trends.items():
        for found in groups[pk]:
            if (row := by_name.get(found)) is not None:
                row.trend = [one + other for one, other in zip(row.trend, counts, strict=True)]


def _group_names(viewer: Viewer, name: str) -> dict[int, list[str]]:
    named, values = _of_groups(viewer, name)
    found: dict[int, list[str]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(f"{named} LIMIT {_MOST_TRENDS + 1}", values)
        for pk, dependency in cursor.fetchall():
            found[pk].append(dependency)
    return found


@dataclass(frozen=True, slots=True)
class DependencyDetail:
    row: DependencyRow
    reasons: list[tuple[str, int]]  # with the number of groups, most frequent first
    queues: list[tuple[str, str]]  # source and queue
    hidden_groups: int  # with hidden sources: their attempts are omitted
    failed: list[int]  # attempts in each step, oldest first
    ended: list[int]  # attempts of all jobs in its queues


def detail(viewer: Viewer, name: str, now: datetime, *, days: bool = False) -> DependencyDetail:
    """Return one dependency over 24 hours, or 30 days (UTC). Raises NotFound, also if it is hidden."""
    rows, _ = listing(viewer, now, name=name)
    if not rows:
        raise NotFound("Dependency not found, or not visible to you.")
    step, steps = (86_400, 30) if days else (HOUR, 24)
    first = int(now.timestamp()) // step - steps + 1
    since = datetime.fromtimestamp(first * step, now.tzinfo)
    parts = GroupSource.objects.filter(scopes.visible(viewer), dependency=name)
    reasons: dict[str, int] = defaultdict(int)
    for reason in parts.values_list("dependency_reason", flat=True)[:10_000]:
        reasons[reason] += 1
    groups = set(_group_names(viewer, name))
    term, anywhere = (
        language.Match("dependency", (language.Value(name),)),
        language.Match("state", (language.Value("any"),)),
    )
    counts = scopes.matching_counts(viewer, language.Query((term, anywhere), now=now))
    queues = sorted(set(counts.order_by().values_list("source", "queue").distinct()[:_MOST_QUEUES]))
    failed, ended = [0] * steps, [0] * steps
    of_groups = GroupCounter.objects.filter(group__in=groups, step=HOUR, at__gte=since)
    for place, n in _by_step(of_groups, step, F("failed") + F("retried")):
        if 0 <= place - first < steps:
            failed[place - first] += n
    places = scopes.any_condition(
        Q(source=source, queue__in=[queue for one, queue in queues if one == source])
        for source in {one for one, _ in queues}
    )
    of_queues = QueueCounter.objects.filter(places, step=HOUR, at__gte=since)
    for place, n in _by_step(of_queues, step, F("failed") + F("retried") + F("succeeded")):
        if 0 <= place - first < steps:
            ended[place - first] += n
    hidden = len(set(parts.values_list("group_id", flat=True)) - groups) if viewer.sources() is not None else 0
    return DependencyDetail(rows[0], group_numbers.ranked(reasons), queues, hidden, failed, ended)


def _by_step(found, step: int, what):
    return found.annotate(place=StepNumber("at", step)).order_by().values_list("place").annotate(n=Sum(what))


def names(viewer: Viewer) -> dict[str, int]:
    """Return dependency -> jobs in the default states, for the sources that the viewer sees."""
    sources = viewer.sources()
    if sources == []:
        return {}
    where, values = _visible("held", sources)
    states = ", ".join(f"'{state}'" for state in language.DEFAULT_STATES)
    with connection.cursor() as cursor:
        cursor.execute(
            f'SELECT part.dependency, SUM(CASE WHEN state IN ({states}) THEN held."count" ELSE 0 END) '
            f"FROM {_PARTS} AS part JOIN {_COUNTS} AS held ON held.group_id = part.group_id AND held.source = part.source "
            f"WHERE part.dependency > '' AND held.\"count\" > 0{where} GROUP BY part.dependency",
            values,
        )
        return {name: int(n) for name, n in cursor.fetchall()}


def derive() -> bool:
    """Derive the dependencies of the next parts. Return True while there may be more. Idempotent."""
    stamp = attributing.declared().stamp
    stale = list(GroupSource.objects.filter(attributing.stale(stamp)).order_by("pk")[:_AT_ONCE])
    made = [(part, None if part.dependency_by else derived(part)) for part in stale]
    if not made:
        return False
    with turn(), transaction.atomic():
        for part, found in made:
            known = part.dependency_stamp
            rows = GroupSource.objects.filter(pk=part.pk, dependency_by=part.dependency_by)
            rows = rows.filter(dependency_stamp=known) if known is not None else rows.filter(dependency_stamp=None)
            if found is None:
                rows.update(dependency_stamp=stamp)
                continue
            bounded = attributing.within_bounds(part.source, found)
            rows.update(dependency=bounded.name, dependency_reason=bounded.reason, dependency_stamp=stamp)
    return True


def apply_set(groups: Sequence[Group], by: str) -> None:
    """Set the dependency of each group's parts to the operator's, or derive it again. In the caller's transaction.

    Only at sources that the group has now: an operator's text is not shown to viewers of others.
    """
    stamp = attributing.declared().stamp
    for part in GroupSource.objects.filter(group__in=groups).select_related("group"):
        name, was_set = part.group.dependency, bool(part.dependency_by)
        if name:
            found = Dependency("" if name == NONE else name, f"Set by {by}")
            if was_set and part.dependency == found.name:
                continue
        elif was_set:
            found = attributing.within_bounds(part.source, derived(part))
        else:
            continue
        part.dependency, part.dependency_reason = found.name, found.reason
        part.dependency_by, part.dependency_stamp = (by if name else ""), stamp
        part.save(update_fields=["dependency", "dependency_reason", "dependency_by", "dependency_stamp"])


def derived(part: GroupSource) -> Dependency:
    """Return the dependency from the latest failures of a group at a source; without any, from the group's title."""
    found = [
        attributing.of_error(
            one.source, one.queue, one.task, one.error_type, one.message, one.traceback.text if one.traceback else ""
        )
        for one in _latest(part)
    ]
    return attributing.combine(found or [attributing.of_error(part.source, "", "", part.error_type, part.message, "")])


def _latest(part: GroupSource) -> Iterator[Failure]:
    """Yield the latest failures of each task. If the group has several sources, only among the latest of each state."""
    counts = FailureCount.objects.filter(group_id=part.group_id, source=part.source, count__gt=0)
    states = counts.order_by().values_list("state", flat=True).distinct()
    ids: list[int] = []
    for state in states:
        rows = Failure.objects.filter(group=part.group_id, state=state).order_by("-pk")[:_SAMPLE]
        ids += [pk for pk, source in rows.values_list("pk", "source") if source == part.source]
    tasks: Counter[str] = Counter()
    chosen: list[int] = []
    for pk, task in Failure.objects.filter(pk__in=ids).order_by("-pk").values_list("pk", "task"):
        tasks[task] += 1
        if tasks[task] <= _OF_A_TASK and len(chosen) < _READ:
            chosen.append(pk)
    yield from Failure.objects.filter(pk__in=chosen).select_related("traceback").order_by("-pk")
