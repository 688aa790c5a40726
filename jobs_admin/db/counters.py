"""Numbers that count up: what failed, was sent and came back in each step of time, of groups and of queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime, timedelta

from django.db.models import F, Func, IntegerField, Value

from jobs_admin.db import statements
from jobs_admin.models import Group, GroupCounter, QueueCounter
from jobs_admin.models.counter import STEPS_OF_GROUPS, STEPS_OF_QUEUES


def step_start(at: datetime, step: int) -> datetime:
    """The start of the step of `step` seconds in which `at` lies; a day is a whole number of steps."""
    since_midnight = at.hour * 3600 + at.minute * 60 + at.second
    return at.replace(microsecond=0) - timedelta(seconds=since_midnight % step)


def spread_over_steps(
    counts: Mapping[tuple[Hashable, datetime], list[float]], steps: Iterable[int]
) -> list[tuple[Hashable, int, datetime, list[float]]]:
    """(key, step, start, numbers) of every step, sorted: what is counted in a moment is counted in all around it."""
    found: dict[tuple[Hashable, int, datetime], list[float]] = {}
    for (key, at), numbers in counts.items():
        for step in steps:
            place = key, step, step_start(at, step)
            before = found.get(place)
            found[place] = [a + b for a, b in zip(before, numbers, strict=True)] if before else numbers
    return [(*place, numbers) for place, numbers in sorted(found.items())]


class StepNumber(Func):
    """The number of the step of `seconds` in which a moment lies, counted from 1970."""

    output_field = IntegerField()

    def __init__(self, name: str, seconds: int, **more) -> None:
        super().__init__(F(name), Value(int(seconds), output_field=IntegerField()), **more)

    def as_sqlite(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"CAST(strftime('%%s', {sql}) AS INTEGER) / {int(seconds.value)}", parameters

    def as_postgresql(self, compiler, connection, **more):
        name, seconds = self.get_source_expressions()
        sql, parameters = compiler.compile(name)
        return f"(EXTRACT(EPOCH FROM {sql})::bigint / {int(seconds.value)})", parameters


def add_group_counts(counts: dict[tuple[int, datetime], list[int]]) -> None:
    """Add [failed, retried] to the steps of groups around each moment: {(group, moment): …}."""
    columns = ("group_id", "step", "at", "failed", "retried")
    rows = [(group, step, at, *n) for group, step, at, n in spread_over_steps(counts, STEPS_OF_GROUPS)]
    conflict = statements.add(GroupCounter, columns, key=columns[:3])
    statements.insert(GroupCounter, columns, rows, conflict=conflict)


def add_queue_counts(counts: dict[tuple[str, str, datetime], dict[str, float]]) -> None:
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
    rows = [(*queue, step, at, *n) for queue, step, at, n in spread_over_steps(moments, STEPS_OF_QUEUES)]
    conflict = statements.add(QueueCounter, columns, key=columns[:4])
    statements.insert(QueueCounter, columns, rows, conflict=conflict)


def add_lost_counts(lost: Iterable[tuple[int | None, str, str]], now: datetime) -> None:
    """Count attempts that never reported: (group, source, queue) of each."""
    minute = now.replace(second=0, microsecond=0)
    groups: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    queues: dict[tuple[str, str, datetime], dict[str, float]] = defaultdict(lambda: {"failed": 0})
    for group, source, queue in lost:
        queues[source, queue, minute]["failed"] += 1
        if group is not None:
            groups[group, minute][0] += 1
    add_group_counts(groups)
    add_queue_counts(queues)
    for (group, _), (failed, _) in sorted(groups.items()):
        Group.objects.filter(pk=group).update(count=F("count") + failed)
