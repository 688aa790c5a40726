"""Dead jobs that can be replayed now, so that no button offers to replay a job that would be refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Q, Sum

from jobs_admin.models import FailureCount
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.replays import target
from jobs_admin.replays.obstacles import TABLE, Obstacle
from jobs_admin.replays.readiness import UNBOUNDED, Readiness
from jobs_admin.search import scope as scopes

MOST_READ = 20_000  # index entries, for all groups together


@dataclass(frozen=True, slots=True)
class ReadyJobs:
    """Number of dead jobs that can be replayed, and why others cannot."""

    count: int
    is_exact: bool = True  # otherwise `count` is an upper bound
    reason: str = ""  # of most of the blocked jobs; "": none is blocked, or not read


def read_ready(viewer: Viewer, query: str, now: datetime) -> ReadyJobs:
    """Return the replayable jobs of a search."""
    ready = Readiness(viewer, target.build_target(query, (), now), max_id=UNBOUNDED, now=now)
    if ready.reads_rows and (dead := ready.count_dead(MOST_READ + 1)) > MOST_READ:
        return ReadyJobs(dead if ready.is_counted else MOST_READ, is_exact=False)
    return ReadyJobs(ready.count, reason=ready.blocked[0]["reason"] if ready.blocked else "")


def count_by_group(viewer: Viewer, groups: Collection[int], found: list[Obstacle]) -> dict[int, ReadyJobs]:
    """Return the replayable jobs of each group, without reasons. `found`: the current obstacles."""
    away = Q(pk__in=[])
    for one in found:
        away |= one.place or Q(pk__in=[])
    dead = FailureCount.objects.filter(
        scopes.visible(viewer, OPERATOR), state=FailureState.DEAD, group_id__in=groups, count__gt=0
    )
    ready = dict(dead.exclude(away).order_by().values_list("group_id").annotate(n=Sum("count")))
    if not any(one.place is None for one in found):
        return {group: ReadyJobs(n) for group, n in ready.items()}
    is_few = sum(ready.values()) <= MOST_READ
    if is_few and ready:
        ready = _count_rows(viewer, list(ready), found)
    return {group: ReadyJobs(n, is_exact=is_few) for group, n in ready.items()}


def _count_rows(viewer: Viewer, groups: list[int], found: list[Obstacle]) -> dict[int, int]:
    """Return the number of jobs of each group without an obstacle, counted from rows."""
    allowed = viewer.sources(OPERATOR)
    condition = "" if allowed is None else f" AND {TABLE}.source IN ({', '.join(['%s'] * len(allowed))})"
    values: list[object] = [*groups, *(allowed or ())]
    for one in found:
        condition += f" AND NOT {one.sql}"
        values += one.values
    by = "" if connection.vendor == "postgresql" else " INDEXED BY failure_by_group"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT group_id, COUNT(*) FROM {TABLE}{by} WHERE group_id IN ({', '.join(['%s'] * len(groups))}) "
            f"AND state = 'dead'{condition} GROUP BY group_id",
            values,
        )
        return dict(cursor.fetchall())
