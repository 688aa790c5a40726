"""Policies in use: each worker's version, each task's policy, remaining budgets, and effects of observed policies.

A worker's version comes from its heartbeat. What an observed policy would have changed comes from the workers' notes on
each failed attempt that it matched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import ENFORCE
from jobs_admin.fleet import heartbeats, worker_store
from jobs_admin.models import Attempt, PolicyVersion, Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.policies.reading import published, readable
from jobs_admin.worker import budget as counted

MOST_OBSERVED = 5_000  # attempts read, of the latest failures
# A smaller difference between waits does not count: it may be jitter, or the time that the decision took.
_SAME_SHARE, _SAME_S = 0.1, 1.0
_AGAIN = re.compile(r"would retry in ([\d,.e+-]+) s")  # wording of `worker/report.py`
_DEAD = "would be dead"


@dataclass(frozen=True, slots=True)
class InForce:
    """The live workers of a policy's source and queue."""

    version: int
    on: Mapping[int | None, int]  # version -> workers that run it; None: they run none, or do not report it
    # `capture`, `observe`, `off` -> workers limited to that mode
    held_back: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # worker -> why it cannot use this version
    # Jobs that these workers, since their start, started without counting them, because the store did not answer; of
    # all policies that count. 0 if this policy does not count.
    uncounted: int = 0
    # Jobs above a limit because a worker had stopped answering, of all policies that limit; 0 if this one has no limit.
    overrun: int = 0
    shared_out: int = 0  # retries from workers' own shares of budgets, of all budgets; 0 if this policy has none
    unkept: int = 0  # the same for jobs that were to be stored while they run, and were not
    unplaced: int = 0  # jobs without a deciding policy, because their queue was uncertain
    is_known: bool = True  # False: the store does not answer

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
    """Return name -> the versions of these policies that workers of the viewer's sources run."""
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
    """Return the policy of each task that live workers have registered, by source and task. Empty if unknown."""
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


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    name: str  # name of the counter: the policy's own, or that of the group which shares the budget
    per_minute: float
    burst: int
    left: dict[str, int] = field(default_factory=dict)  # source -> retries available immediately
    is_known: bool = True  # False: the store does not answer

    @property
    def least(self) -> int | None:
        """The smallest remaining budget; None if unknown, or without a known source."""
        return min(self.left.values(), default=None)


def budget(viewer: Viewer, current: PolicyVersion) -> BudgetLeft | None:
    """Return the remaining budget of a policy in force, for sources that the viewer may see; None without one.

    Spends nothing.
    """
    return budgets(viewer, [current]).get(current.name)


def budgets(viewer: Viewer, found: Sequence[PolicyVersion]) -> dict[str, BudgetLeft]:
    """Return name -> remaining budget, of policies that have one, in one round trip."""
    made = {
        one.name: BudgetLeft(one.budget.group or one.name, one.budget.per_minute, one.budget.burst)
        for one in readable(found)
        if one.budget is not None
    }
    if not made:
        return {}
    sources = [one for one in Source.objects.order_by("name").values_list("name", flat=True) if viewer.may(VIEWER, one)]
    queries = [
        (one.name, source)
        for one in found
        if one.name in made
        for source in sources
        if matches(one.match_source, source)
    ]
    try:
        for (name, source), left in zip(
            queries, _read_left([(made[name], source) for name, source in queries]), strict=True
        ):
            if left is not None:
                made[name].left[source] = left
    except (redis.RedisError, config.BadConfiguration):
        return {name: replace(one, left={}, is_known=False) for name, one in made.items()}
    return made


def _read_left(queries: Sequence[tuple[BudgetLeft, str]]) -> list[int | None]:
    """Return the remaining budgets; None if the source wrote another type under the key."""
    if not queries:
        return []
    store = config.store()
    script = store.register_script(counted.SCRIPT.text)
    with store.pipeline(transaction=False) as pipe:
        for rule, source in queries:
            how = counted.arguments(rule.name, rule.per_minute, rule.burst)
            script(keys=[keys.budget(source)], args=how, client=pipe)
        answers = pipe.execute(raise_on_error=False)
    return [
        None if left is None else int(left)
        for _, left in (worker_store.empty_if_wrong_type((0, None), it) for it in answers)
    ]


@dataclass(frozen=True, slots=True)
class Observed:
    """Failed attempts that one version evaluated without deciding."""

    attempts: int
    tried_again: int  # died, and would have been retried
    given_up: int  # were retried, and would have died
    waited_otherwise: int  # were retried, and would have been retried at another time
    is_capped: bool  # there are more attempts than MOST_OBSERVED

    @property
    def changed(self) -> int:
        return self.tried_again + self.given_up + self.waited_otherwise


def observed(viewer: Viewer, version: PolicyVersion, most: int = MOST_OBSERVED) -> Observed:
    """Return how many of the latest `most` failed attempts that this version observed would have ended differently."""
    label = f"{version.name}@{version.version}"
    seen = Attempt.objects.filter(policy=label, reason__startswith="would ")
    sources = viewer.sources(VIEWER)
    if sources is not None:
        seen = seen.filter(failure__source__in=sources)
    rows = list(seen.order_by("-failure").values_list("kind", "reason", "delay_s")[: most + 1])
    again = dead = otherwise = 0
    for kind, reason, waited_s in rows[:most]:
        is_retried = kind == "retry"
        if reason.startswith(_DEAD):
            dead += is_retried
        elif found := _AGAIN.match(reason):
            again += not is_retried
            otherwise += is_retried and not _is_same(_seconds(found[1]), waited_s)
    return Observed(min(len(rows), most), again, dead, otherwise, len(rows) > most)


def _is_same(would_s: float | None, waited_s: float | None) -> bool:
    if would_s is None or waited_s is None:
        return False
    return abs(would_s - waited_s) <= max(_SAME_S, _SAME_SHARE * waited_s)


def _seconds(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
