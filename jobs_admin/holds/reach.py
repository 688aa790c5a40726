"""Reach of a pause: the workers in which it is in force, by their heartbeats, and the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.matching import matches
from jobs_admin.fleet import heartbeats
from jobs_admin.models import DepthSample, FailureCount, Pause
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.policies import active

QUEUE = "queue"
_WHY = {
    "older": "its guard is a version without pauses",
    "off": "its guard is switched off",
    "drain": "the fleet is draining, so guards hold no jobs",
    "unable": "its guard cannot pause here: its store user may not read pauses, or its pool hands out jobs ahead",
    "capture": "a task, tenant or dependency can only be paused where policies may act (REDRIVE_MODE; a pool that forks)",
    "kind": "its guard cannot pause this: the guard is too old, or install() has no tenant",
    "temporary": "the broker would delete the queue without a consumer (auto-delete, exclusive or expires)",
    "unnamed": "no policy in force has a breaker of this name",
    "late": "it has not confirmed yet, which takes up to 5 s",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach of a pause. `missing`: guarded workers in which it is not in force, with the reason.

    `unguarded`: number of workers without the guard.
    """

    obeying: int
    missing: Sequence[tuple[str, str]] = ()
    unguarded: int | None = 0  # None: unknown
    is_known: bool = True  # False: the store does not answer
    is_unknown_task: bool = False  # no live worker has registered such a task
    is_unknown_queue: bool = False  # no live worker consumes such a queue, and none was ever recorded
    is_unknown_dependency: bool = False  # no policy in force has a breaker of this name

    @property
    def workers(self) -> int:
        return self.obeying + len(self.missing) + (self.unguarded or 0)

    @property
    def is_doubtful(self) -> bool:
        """Return whether the name is probably misspelt."""
        return self.is_unknown_task or self.is_unknown_queue or self.is_unknown_dependency

    @property
    def sentence(self) -> str:
        if not self.is_known:
            return "Unknown: the store does not answer."
        if self.is_unknown_queue:
            return "No live worker consumes a queue of this name, and none was ever seen: check the spelling."
        if self.is_unknown_dependency:
            return "No policy in force has a breaker of this name: check the spelling."
        if not self.workers:
            return "No live worker consumes it."
        if self.is_unknown_task:
            return "No live worker has a task of this name: check the spelling."
        some = f"In force in {self.obeying} of {self.workers}"
        s = "" if self.workers == 1 else "s"
        return f"{some} worker{s}." if self.unguarded is not None else f"{some} guarded worker{s}; others are unknown."


def reach(viewer: Viewer, found: Iterable[Pause], now: datetime | None = None) -> dict[int, Reach]:
    """Return pause id -> reach."""
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
    named = [(one.match.source, one.breaker_name) for one in active()] if any(one.dependency for one in found) else []
    unnamed = {
        one.pk
        for one in found
        if one.dependency and not any(matches(source, one.source) and name == one.dependency for source, name in named)
    }
    return {
        one.pk: _reach(one, reports, unguarded[one.source], switch == b"drain", is_unnamed=one.pk in unnamed)
        for one in found
    }


def _reach(
    pause: Pause,
    reports: Iterable[heartbeats.WorkerReport],
    others: dict[str, int | None],
    is_draining: bool,
    *,
    is_unnamed: bool,
) -> Reach:
    obeying, missing = 0, []
    tasks: list[frozenset[str] | None] = []
    for one in reports:
        if one.source != pause.source or (pause.queue and one.queues and pause.queue not in one.queues):
            continue
        tasks.append(one.tasks)
        is_able = pause.kind in (one.pauses or ())  # some workers list pauses that they cannot obey
        if is_able and pause.name in one.paused.get(pause.kind, ()) and not is_unnamed:
            obeying += 1
        else:
            why = "drain" if is_draining else "unnamed" if is_unnamed else _missing_why(pause, one)
            missing.append((one.name, _WHY[why]))
    counts = [count for queue, count in others.items() if not pause.queue or queue == pause.queue]
    unguarded = None if None in counts else max((count or 0 for count in counts), default=None)
    is_unknown = bool(pause.task and tasks) and not unguarded and None not in tasks
    is_unknown = is_unknown and not any(pause.task in one for one in tasks if one)
    is_consumed = bool(tasks) or bool(unguarded)
    return Reach(
        obeying,
        missing,
        unguarded,
        is_unknown_task=is_unknown,
        is_unknown_dependency=is_unnamed,
        is_unknown_queue=bool(pause.queue) and not is_consumed and not _was_seen(pause.source, pause.queue),
    )


def _was_seen(source: str, queue: str) -> bool:
    return any(kind.objects.filter(source=source, queue=queue).exists() for kind in (DepthSample, FailureCount))


def _missing_why(pause: Pause, worker: heartbeats.WorkerReport) -> str:
    if worker.pauses is None:
        return "older"
    if worker.mode == "off":
        return "off"
    if QUEUE not in worker.pauses:
        return "unable"
    if pause.queue in worker.unpausable:
        return "temporary"
    if pause.kind not in worker.pauses:
        return "kind" if "task" in worker.pauses else "capture"
    return "late"
