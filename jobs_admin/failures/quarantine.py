"""Jobs that kill workers: those in quarantine, and those that ran in a worker when it died.

Readmitting and discarding them is triage (`triage.readmit`, `triage.discard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import redis
from django.db.models import Sum

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.text import whole_number
from jobs_admin.fleet import worker_store
from jobs_admin.models import Attempt, Failure, FailureCount, Source
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.search import scope as scopes

PAGE = 50
LARGEST_PAGE = 500
_WINDOW_MS = 86_400_000
_MOST_DEATHS = 50  # latest deaths per source
_MOST_SUSPECTS = 200
_MOST_SOURCES = 50
_MOST_BYTES = 256 * 1024  # of the list of jobs that ran in one worker
_NO_TIME = datetime.min.replace(tzinfo=UTC)

# Arguments and stacks are on the failure's own page.
_SHOWN = (
    "id", "source", "queue", "task", "job_id", "run", "state", "kind", "error_type", "message", "failed_at", "received_at",
    "worker", "tenant", "release", "crashes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Crash:
    """One start without an end. Times are by the store's clock."""

    how: str  # killed, hard_limit, memory: its process; lost: the entire worker
    seen_at: datetime | None
    worker: str
    text: str
    alone: bool  # no other job ran in that worker
    beside: int  # counted jobs that did, if the entire worker died


@dataclass(frozen=True, slots=True)
class QuarantinedJob:
    """A job in quarantine."""

    failure: Failure
    crashes: tuple[Crash, ...]  # oldest first
    policy: str  # `name@version` of the policy that quarantined it; "" if unknown

    @property
    def lasted_s(self) -> float | None:
        """Seconds between its first and its last crash."""
        times = [crash.seen_at for crash in self.crashes if crash.seen_at]
        return (max(times) - min(times)).total_seconds() if len(times) > 1 else None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A job that ran in a worker when the worker died.

    It runs alone when it returns, and is blamed only for a crash while it ran alone.
    """

    source: str
    queue: str
    task: str
    job_id: str
    worker: str
    died_at: datetime  # approximate: the worker's last heartbeat
    beside: int  # other counted jobs in that worker


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[QuarantinedJob]
    next: str | None
    count: int
    by_task: list[tuple[str, int]]  # the five most frequent tasks


def listing(viewer: Viewer, *, after: str | None = None, limit: int = PAGE) -> Page:
    """Return jobs in quarantine, latest first. An invalid `after` returns the first page."""
    limit = max(1, min(limit, LARGEST_PAGE))
    visible = scopes.visible(viewer)
    found = Failure.objects.filter(visible, state=FailureState.QUARANTINED).order_by("-pk")
    below = whole_number(after)
    if below is not None:
        found = found.filter(pk__lt=below)
    rows = list(found.only(*_SHOWN)[: limit + 1])
    counted = FailureCount.objects.filter(visible, state=FailureState.QUARANTINED, count__gt=0)
    by_task = counted.values_list("task").annotate(n=Sum("count")).order_by("-n", "task")
    policies = _policies(rows[:limit])
    return Page(
        rows=[QuarantinedJob(row, crashes_of(row), policies.get(row.pk, "")) for row in rows[:limit]],
        next=str(rows[limit - 1].pk) if len(rows) > limit else None,
        count=counted.aggregate(n=Sum("count"))["n"] or 0,
        by_task=list(by_task[:5]),
    )


def _policies(rows: Sequence[Failure]) -> dict[int, str]:
    attempts = Attempt.objects.filter(failure__in=[row.pk for row in rows], policy__gt="").order_by("run", "attempt")
    return dict(attempts.values_list("failure_id", "policy"))


def crashes_of(failure: Failure) -> tuple[Crash, ...]:
    """Return the crashes of a job, oldest first, those without a time before all others.

    Includes those of a readmitted job; empty if it was never in quarantine.
    """
    found = [
        Crash(
            how=untrusted.text(one.get("how"), 20),
            seen_at=untrusted.moment(one.get("seen_at")),
            worker=untrusted.text(one.get("worker"), 255),
            text=untrusted.text(one.get("said"), 200),
            alone=one.get("alone") is True,
            beside=int(untrusted.number(one.get("beside")) or 0),
        )
        for one in untrusted.read_objects(failure.crashes)
    ]
    return tuple(sorted(found, key=lambda crash: crash.seen_at or _NO_TIME))


def suspects(viewer: Viewer) -> list[Suspect] | None:
    """Return suspects of the last day, latest death first; None if the store does not answer.

    A key of another type counts as empty.
    """
    seen = viewer.sources()
    sources = Source.objects.all() if seen is None else Source.objects.filter(name__in=seen)
    names = list(sources.order_by("name").values_list("name", flat=True)[:_MOST_SOURCES])
    try:
        found = [one for name in names for one in islice(_of_source(config.store(), name), _MOST_SUSPECTS)]
    except (redis.RedisError, OSError, config.BadConfiguration):
        return None
    return sorted(found, key=lambda one: one.died_at, reverse=True)[:_MOST_SUSPECTS]


def _of_source(store: redis.Redis, source: str) -> Iterable[Suspect]:
    seconds, micros = store.time()
    now = seconds * 1000 + micros // 1000
    boots = keys.boots(source)
    pipeline = store.pipeline(transaction=False)
    pipeline.zrevrangebyscore(boots, now - keys.SILENT_MS, now - _WINDOW_MS, start=0, num=_MOST_DEATHS, withscores=True)
    died = worker_store.empty_if_wrong_type([], pipeline.execute(raise_on_error=False)[0])
    if not died:
        return
    names = [keys.boot(source, _text(boot)) for boot, _ in died]
    ran = worker_store.hashes(store, [f"{name}:running" for name in names], _MOST_SUSPECTS, _MOST_BYTES)
    for name in names:
        pipeline.hmget(name, "worker", "leaving", "died_with")
        pipeline.hlen(f"{name}:running")
    answers = pipeline.execute(raise_on_error=False)
    for (_, at), about, n, running in zip(died, answers[::2], answers[1::2], ran, strict=True):
        worker, leaving, died_with = worker_store.empty_if_wrong_type((None, None, None), about)
        if leaving is not None:
            continue
        beside = (whole_number(_text(died_with)) or worker_store.empty_if_wrong_type(0, n)) - 1
        for _, text in running:
            job = untrusted.read_object(text)
            yield Suspect(
                source, _text(job.get("queue")), _text(job.get("task")), _text(job.get("id")), _text(worker),
                datetime.fromtimestamp(at / 1000, UTC), max(0, beside),
            )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return untrusted.text(value, 255)
