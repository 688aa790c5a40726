"""The workers in which a pause is in force, by their heartbeats, and those in which it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.fleet import heartbeats
from jobs_admin.models import Pause
from jobs_admin.models.access import VIEWER, Viewer

QUEUE, TASK = "queue", "task"
_WHY = {
    "older": "its guard is of a version without pauses",
    "off": "its guard is switched off",
    "drain": "workers are being drained: the guard holds nothing back",
    "unable": "its guard cannot pause here: its store user may not read pauses, or its pool hands out jobs ahead",
    "capture": "a task can only be paused where policies may act (REDRIVE_MODE; a pool that forks)",
    "temporary": "the broker would delete the queue without a consumer (auto-delete, exclusive or expires)",
    "late": "it has not confirmed yet, which takes up to 5 s",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """`missing`: guarded workers in which it is not in force, each with the reason. `unguarded`: workers without the guard."""

    obeying: int
    missing: Sequence[tuple[str, str]] = ()
    unguarded: int | None = 0  # None: unknown
    is_known: bool = True  # False: the store does not answer
    is_unknown_task: bool = False  # no live worker has such a task

    @property
    def workers(self) -> int:
        return self.obeying + len(self.missing) + (self.unguarded or 0)

    @property
    def sentence(self) -> str:
        if not self.is_known:
            return "Not known whether in force: the store does not answer."
        if not self.workers:
            return "No live worker consumes it."
        if self.is_unknown_task:
            return "No live worker has a task of this name: check the spelling."
        some = f"In force in {self.obeying} of {self.workers}"
        s = "" if self.workers == 1 else "s"
        return f"{some} worker{s}." if self.unguarded is not None else f"{some} guarded worker{s}; others are unknown."


def reach(viewer: Viewer, found: Iterable[Pause], now: datetime | None = None) -> dict[int, Reach]:
    """Number of a pause -> where it is in force."""
    found = list(found)
    if not found:
        return {}
    try:
        with_tasks = any(one.task for one in found)
        reports = heartbeats.worker_reports(now, with_tasks=with_tasks, sources={one.source for one in found})
        switch = config.store().get(keys.switch())
    except (redis.RedisError, config.BadConfiguration):
        return {one.pk: Reach(0, is_known=False) for one in found}
    reports = [one for one in reports if viewer.may(VIEWER, one.source)]
    unguarded = {source: heartbeats.unguarded_workers(source, now) for source in {one.source for one in found}}
    return {one.pk: _reach(one, reports, unguarded[one.source], is_draining=switch == b"drain") for one in found}


def _reach(
    pause: Pause, reports: Iterable[heartbeats.WorkerReport], others: dict[str, int | None], *, is_draining: bool
) -> Reach:
    obeying, missing = 0, []
    tasks: list[frozenset[str] | None] = []
    for one in reports:
        if one.source != pause.source or (pause.queue and one.queues and pause.queue not in one.queues):
            continue
        tasks.append(one.tasks)
        named = pause.queue in one.paused_queues if pause.queue else pause.task in one.paused_tasks
        if named:
            obeying += 1
        else:
            missing.append((one.name, _WHY["drain" if is_draining else _missing_why(pause, one)]))
    counts = [count for queue, count in others.items() if not pause.queue or queue == pause.queue]
    unguarded = None if None in counts else max((count or 0 for count in counts), default=None)
    is_unknown = bool(pause.task and tasks) and not unguarded and None not in tasks
    return Reach(
        obeying, missing, unguarded, is_unknown_task=is_unknown and not any(pause.task in one for one in tasks if one)
    )


def _missing_why(pause: Pause, worker: heartbeats.WorkerReport) -> str:
    if worker.pauses is None:
        return "older"
    if worker.mode == "off":
        return "off"
    if QUEUE not in worker.pauses:
        return "unable"
    if pause.queue in worker.unpausable:
        return "temporary"
    if pause.task and TASK not in worker.pauses:
        return "capture"
    return "late"
