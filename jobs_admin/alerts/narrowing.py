"""Failures of some tasks or groups, for the metrics that count them: read once per round, filtered here for each rule.

With a query per rule, five hundred rules took over a second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from django.db import connection

from jobs_admin.core.alert_metrics import Metric
from jobs_admin.core.matching import matches
from jobs_admin.models import Failure, FailureCount, Group, GroupAlias
from jobs_admin.models.failure import FailureState

# Combinations of source, queue, task and group that are read for all rules; if there are more, each rule has its own
# query.
MOST_KINDS = 20_000
_AT_ONCE = 500

Kind = tuple[str, str, str, int, int]  # source, queue, task, group (0: none), jobs


class Kinds:
    """Counts of a metric, filtered by task and group for each rule."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._by_task: dict[str, list[Kind]] = defaultdict(list)
        self._by_group: dict[int, list[Kind]] = defaultdict(list)
        for kind in kinds:
            self._by_task[kind[2]].append(kind)
            self._by_group[kind[3]].append(kind)
        self._tasks: dict[str, set[str]] = {}
        self._groups: dict[str, set[int]] = {}
        self._named: dict[str, set[int]] | None = None

    def count(self, task: str, group: str) -> dict[tuple[str, str], float]:
        """Return (source, queue) -> jobs."""
        found: Counter[tuple[str, str]] = Counter()
        tasks = self._fitting_tasks(task)
        if group == "*":
            for name in tasks:
                for source, queue, _, _, n in self._by_task[name]:
                    found[source, queue] += n
        else:
            for pk in self._fitting_groups(group):
                for source, queue, name, _, n in self._by_group[pk]:
                    if name in tasks:
                        found[source, queue] += n
        return {key: float(n) for key, n in found.items() if n > 0}

    def _fitting_tasks(self, glob: str) -> set[str]:
        if glob not in self._tasks:
            self._tasks[glob] = (
                {name for name in self._by_task if matches(glob, name)}
                if "*" in glob
                else {glob} & self._by_task.keys()
            )
        return self._tasks[glob]

    def _fitting_groups(self, glob: str) -> set[int]:
        if glob not in self._groups:
            if self._named is None:
                self._named = self._fingerprints()
            fitting = [glob] if "*" not in glob else [one for one in self._named if matches(glob, one)]
            self._groups[glob] = set().union(*(self._named.get(one, set()) for one in fitting))
        return self._groups[glob]

    def _fingerprints(self) -> dict[str, set[int]]:
        """Return the fingerprints of the counted groups, including groups that were merged into them."""
        found: dict[str, set[int]] = defaultdict(set)
        groups = list(self._by_group.keys() - {0})
        for start in range(0, len(groups), _AT_ONCE):
            some = groups[start : start + _AT_ONCE]
            for fingerprint, pk in Group.objects.filter(pk__in=some).values_list("fingerprint", "pk"):
                found[fingerprint].add(pk)
            for fingerprint, pk in GroupAlias.objects.filter(group__in=some).values_list("fingerprint", "group_id"):
                found[fingerprint].add(pk)
        return found


def read(metric: Metric) -> Kinds | None:
    """Count the failures of a metric; None if there are too many combinations."""
    counted, job = FailureCount._meta.db_table, Failure._meta.db_table
    place = "source, queue, task, group_id"
    states = ", ".join(["%s"] * len(metric.states))
    which, given = f"SELECT {place}, count AS n FROM {counted} WHERE state IN ({states})", list(metric.states)
    if metric.retrying_replays:
        # One statement gives a consistent snapshot (jobs_admin/queues/rates.py).
        which += f"""
            UNION ALL
            SELECT source, queue, task, COALESCE(group_id, 0), 1 FROM {job} WHERE state = %s AND run > 1"""
        given.append(FailureState.RETRYING)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {place}, SUM(n) FROM ({which}) AS one GROUP BY {place} HAVING SUM(n) > 0 LIMIT %s",
            [*given, MOST_KINDS + 1],
        )
        rows = cursor.fetchall()
    if len(rows) > MOST_KINDS:
        return None
    return Kinds((source, queue, task, int(group), int(n)) for source, queue, task, group, n in rows)
