"""Emptying of what workers' guards hold, delayed retries and spools, so that `install()` can be removed without loss.

Workers are first switched to recording only (`drain`), so that they add no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs_admin import config, trust
from jobs_admin.core import keys, untrusted
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.core.stream import COUNT_ON, weight
from jobs_admin.db.turns import lock_writers
from jobs_admin.fleet import worker_store
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Failure
from jobs_admin.models.failure import FailureState
from jobs_admin.retries import delayed
from jobs_admin.retries.delayed import Place
from jobs_admin.worker.delays import Waiting
from jobs_admin.worker.dropped import Dropped
from jobs_admin.worker.records import Entry
from jobs_admin.worker.spool import Spool, directory_for, former_directory

WHY = "drained: it waited for its next attempt when Redrive was taken out"
_IDLE_MODES = ("off", "capture")


@dataclass(frozen=True, slots=True)
class Guarded:
    """One worker, as last reported."""

    name: str  # source/name
    host: str
    mode: str
    spooled: int
    text: bytes  # the complete report: a different one later shows that the worker is alive

    @property
    def is_idle(self) -> bool:
        return self.mode in _IDLE_MODES


def workers() -> dict[str, Guarded]:
    """Return the workers by name, including those long dead. Raises redis.RedisError."""
    found = {}
    store = config.store()
    reports = worker_store.fields(store, "workers", worker_store.all_sources(store), all_shared=True)
    for (source, worker), text in reports.items():
        report, name = untrusted.read_object(text), f"{source}/{worker}"
        spooled = untrusted.number(report.get("spooled"))
        if spooled is not None:
            host, mode = untrusted.text(report.get("host"), 255), untrusted.text(report.get("mode"), 10)
            found[name] = Guarded(name, host, mode, int(spooled), text)
    return found


def places() -> list[tuple[str, Place]]:
    """Return source and place, wherever workers may have delayed jobs. Raises config.BadConfiguration."""
    return [(name, place) for name, source in config.sources().items() for place in delayed.places(source)]


def bury(source: str, where: Place) -> int:
    """Make a batch of waiting jobs dead, kind `lost`; their messages are stored and can be replayed.

    Return their number.

    A job claimed by another process is not changed: it is about to reach its queue, or returns within half a minute.
    """
    claimed, _ = where.delays.claim(is_due=False)
    if not claimed:
        return 0
    known = _dead(source, claimed)
    # Jobs without a filed report are reported through the stream.
    pipeline = config.store().pipeline(transaction=False)
    for job in claimed:
        if job.head.job_id not in known:
            _add(pipeline, source, trust.sign_as_desk(encode(_report(source, job))))
    pipeline.execute()
    where.delays.finish(claimed)
    return len(claimed)


def _dead(source: str, claimed: Sequence[Waiting]) -> set[str]:
    """Return those whose failure is waiting for this attempt; it is now dead."""
    attempts = {job.head.job_id: job.head.attempt for job in claimed}
    with transaction.atomic():
        lock_writers()
        rows = Failure.objects.filter(source=source, state=FailureState.RETRYING, job_id__in=list(attempts))
        waiting_failures = [f for f in lost_jobs.lock_failures(rows) if f.attempts == attempts[f.job_id] - 1]
        lost_jobs.mark_lost(waiting_failures, WHY, timezone.now())
    return {f.job_id for f in waiting_failures}


def _report(source: str, job: Waiting) -> Envelope:
    head = job.head
    return Envelope(
        source=source,
        queue=head.queue,
        task=head.task,
        job_id=head.job_id,
        kind="lost",
        attempt=head.attempt,
        at=timezone.now().timestamp(),
        message="It waited for its next attempt when Redrive was taken out.",
        reason=WHY,
        policy=head.policy,
        raw=job.message,
        raw_size=len(job.message),
    )


def fold_in_spools(configured: str = "") -> int:
    """Send the reports that dead workers of this machine left on its disk. Return their number.

    Raises redis.RedisError, OSError.
    """
    shipped = 0
    for source in config.sources():
        directory = directory_for(source, configured, config.setting("REDIS_URL"))
        former = former_directory(source, configured)
        if directory.is_dir() or (former is not None and former.is_dir()):
            spool, dropped = Spool(directory, former=former), Dropped(directory)
            shipped += spool.drain(partial(_ship, source))
            for _ in range(spool.unread):
                dropped.add()
            dropped.report(config.store(), source)
    return shipped


def _ship(source: str, batch: list[Entry]) -> None:
    pipeline = config.store().pipeline(transaction=False)
    for entry in batch:
        _add(pipeline, source, entry)
    pipeline.execute()


def _add(pipeline: Any, source: str, entry: Entry) -> None:
    """Add without checking for room: the operator waits for the workers to be empty."""
    pipeline.xadd(keys.failures(source), entry)
    pipeline.eval(COUNT_ON, 1, keys.failures_bytes(source), str(weight(entry)))
