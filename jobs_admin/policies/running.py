"""Policy version of each worker, by its heartbeat, and the policy of each task that workers know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import redis

from jobs_admin import config
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import ENFORCE
from jobs_admin.fleet import heartbeats
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.policies.reading import published, readable


@dataclass(frozen=True, slots=True)
class InForce:
    """The workers that a policy is for: those of its source and queue that live."""

    version: int
    on: Mapping[int | None, int]  # version -> workers that run it; None: they run none, or do not say
    # `capture`, `observe`, `off` -> workers whose ceiling it is
    held_back: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # worker -> why it cannot use this version
    # Jobs that these workers started since they live without counting them, because the store did not answer; of all
    # policies that count something. 0 where this one counts nothing.
    uncounted: int = 0
    overrun: int = 0  # jobs above a limit, of all policies that limit: a worker had stopped answering; 0 where this one has no limit
    shared_out: int = 0  # retries by workers' own shares of budgets, of all of them; 0 where this one has none
    unkept: int = 0  # as much of jobs that were to be kept while they run, and were not
    unplaced: int = 0  # jobs that no policy decided over, because it was not sure which queue they came from
    is_known: bool = True  # False: the store does not answer, and nobody knows

    @property
    def worker_count(self) -> int:
        return sum(self.on.values())

    @property
    def current(self) -> int:
        """Workers that run the version in force."""
        return self.on.get(self.version, 0)

    @property
    def sentence(self) -> str:
        if not self.is_known:
            return "Not known: the store does not answer."
        if not self.worker_count:
            return "No matching guarded worker is live."
        return f"{self.current} of {self.worker_count} workers on v{self.version}"


def in_force(viewer: Viewer, found: Iterable[PolicyVersion], now: datetime | None = None) -> dict[str, InForce]:
    """Name -> who runs what of these policies in force, among the workers of the viewer's sources."""
    try:
        reports = [one for one in heartbeats.worker_reports(now) if viewer.may(VIEWER, one.source)]
    except (redis.RedisError, config.BadConfiguration):
        return {one.name: InForce(one.version, {}, is_known=False) for one in found}
    return {one.name: _in_force(one, reports) for one in found}


def _in_force(current: PolicyVersion, reports: Sequence[heartbeats.WorkerReport]) -> InForce:
    theirs = [one for one in reports if _is_for(current, one)]
    ceilings = Counter(one.mode for one in theirs if one.mode not in ("", ENFORCE, current.mode))
    # Two sources may have a worker of the same name.
    refused = {
        one.name if one.source == current.match_source else f"{one.source}/{one.name}": why
        for one in theirs
        if (why := one.refused.get(current.name))
    }
    on = Counter(one.policies.get(current.name) for one in theirs)
    counts = any(current.document.get(name) for name in ("poison", "concurrency", "rate_limit"))
    uncounted = sum(one.uncounted for one in theirs) if counts else 0
    overrun = sum(one.overrun for one in theirs) if current.document.get("concurrency") else 0
    shared_out = sum(one.shared_out for one in theirs) if current.document.get("budget") else 0
    unkept = sum(one.unkept for one in theirs) if current.document.get("file_lost") else 0
    unplaced = sum(one.unplaced for one in theirs)
    return InForce(current.version, on, dict(ceilings), refused, uncounted, overrun, shared_out, unkept, unplaced)


def _is_for(current: PolicyVersion, worker: heartbeats.WorkerReport) -> bool:
    if not matches(current.match_source, worker.source):
        return False
    return not worker.queues or any(matches(current.match_queue, queue) for queue in worker.queues)


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """Policy that decides about a task; `queue` is "" if it is the same on all queues of its workers."""

    source: str
    queue: str
    task: str
    policy: PolicyVersion | None  # None: no policy, Celery alone decides


def by_task(viewer: Viewer, now: datetime | None = None) -> list[TaskPolicy]:
    """Return the policy for each task that a live worker knows, by source and task. Empty if unknown."""
    versions = published(viewer)
    rows = {one.name: one for one in versions}
    policies = readable(versions)
    try:
        workers = heartbeats.worker_reports(now, with_tasks=True)
    except (redis.RedisError, config.BadConfiguration):
        return []
    queues: dict[tuple[str, str], set[str]] = {}
    for worker in workers:
        if viewer.may(VIEWER, worker.source):
            for task in worker.tasks or ():
                queues.setdefault((worker.source, task), set()).update(worker.queues)
    found = []
    for (source, task), on in sorted(queues.items()):
        each = {queue: chosen(policies, source, queue, task) for queue in sorted(on) or [""]}
        names = {one.name if one else None for one in each.values()}
        for queue, policy in each.items() if len(names) > 1 else [("", next(iter(each.values())))]:
            found.append(TaskPolicy(source, queue, task, rows[policy.name] if policy else None))
    return found
