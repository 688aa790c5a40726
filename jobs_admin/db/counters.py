"""Numbers that count up: what failed, was sent and came back in each step of time, of groups and of queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from django.db.models import F

from jobs_admin.db import statements
from jobs_admin.db.counting import in_steps
from jobs_admin.models import Group, GroupCounter, QueueCounter
from jobs_admin.models.counter import STEPS_OF_GROUPS, STEPS_OF_QUEUES


def count_groups(counts: dict[tuple[int, datetime], list[int]]) -> None:
    """Add [failed, retried] to the steps of groups around each moment: {(group, moment): …}."""
    columns = ("group_id", "step", "at", "failed", "retried")
    rows = [(group, step, at, *n) for group, step, at, n in in_steps(counts, STEPS_OF_GROUPS)]
    conflict = statements.add(GroupCounter, columns, key=columns[:3])
    statements.insert(GroupCounter, columns, rows, conflict=conflict)


def count_queues(counts: dict[tuple[str, str, datetime], dict[str, float]]) -> None:
    """Add numbers to the steps of queues around each moment: {(source, queue, moment): {column: number}}."""
    columns = (
        "source",
        "queue",
        "step",
        "at",
        "started",
        "succeeded",
        "failed",
        "retried",
        "recovered",
        "sent",
        "busy_s",
    )
    moments = {(key[:2], key[2]): [n.get(column, 0) for column in columns[4:]] for key, n in counts.items()}
    rows = [(*queue, step, at, *n) for queue, step, at, n in in_steps(moments, STEPS_OF_QUEUES)]
    conflict = statements.add(QueueCounter, columns, key=columns[:4])
    statements.insert(QueueCounter, columns, rows, conflict=conflict)


def count_lost(lost: Iterable[tuple[int | None, str, str]], now: datetime) -> None:
    """Count attempts that never reported: (group, source, queue) of each."""
    minute = now.replace(second=0, microsecond=0)
    groups: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    queues: dict[tuple[str, str, datetime], dict[str, float]] = defaultdict(lambda: {"failed": 0})
    for group, source, queue in lost:
        queues[source, queue, minute]["failed"] += 1
        if group is not None:
            groups[group, minute][0] += 1
    count_groups(groups)
    count_queues(queues)
    for (group, _), (failed, _) in sorted(groups.items()):
        Group.objects.filter(pk=group).update(count=F("count") + failed)
