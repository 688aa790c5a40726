"""Changes of jobs that were dead, waiting or sent: by their current place, or by proof that others removed them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from jobs_admin.sources.base import JobChanges, Ref
from jobs_admin.sources.one_redis import is_evidence
from jobs_admin.sources.rq.job_hash import Job
from jobs_admin.sources.rq.reading import kind_of
from jobs_admin.sources.rq.reports import build_report
from jobs_admin.sources.rq.wire import NOTED_S, Wire

_BYTES = 16_000_000  # of reports per answer
_SAME_MOMENT_S = 0.002  # tolerance for rounded times
_SEEN_WITHIN_S = 600.0  # before RQ drops a failure: within less, a job is unlikely to be requeued, run and removed
_DEAD = frozenset(("dead", "quarantined"))
_AT_REST = _DEAD | {"retrying"}
_WAITS = "someone requeued it in RQ, and it waits or runs"
_GONE = dict.fromkeys(("queued", "started", "deferred", "scheduled", "rate_limited", "ready_to_enqueue"), _WAITS) | {
    "finished": "someone requeued it in RQ, and it succeeded",
    "canceled": "someone cancelled it in RQ",
}
_TAKEN_OUT = "removed in RQ, or requeued and forgotten, outside Redrive"
_RAN = "no longer in RQ: it ran and was forgotten, or someone removed it"


def find_changes(wire: Wire, requested: Sequence[Ref], tenant_paths: Sequence[str]) -> JobChanges:
    """See `base.PulledSource`."""
    for queue, ids in wire.expiring(_SEEN_WITHIN_S).items():
        wire.note_seen(wire.locate(queue, ids))
    by_queue: dict[str, dict[str, Ref]] = defaultdict(dict)
    for ref in requested:
        by_queue[ref.queue][ref.job_id] = ref
    changes, left = JobChanges(), _BYTES
    absent: list[Ref] = []
    for queue, refs in by_queue.items():
        to_report = []
        located = list(wire.locate(queue, list(refs)))
        wire.note_seen(located)
        for job in located:
            if job.kind == "none" and job.failed_score is None:
                absent.append(refs[job.id])
            elif _is_news(job, refs[job.id], changes):
                to_report.append(job.id)
        for job in wire.jobs(queue, to_report):
            if kind := _kind(job, refs[job.id]):
                report = build_report(wire.source, job, kind, tenant_paths)
                changes.reports.append(report)
                left -= len(report.raw or b"")
            if left <= 0:
                return changes  # the others are reported at the next check
    _check_absent(wire, absent, changes)
    return changes


def _is_news(job: Job, ref: Ref, changes: JobChanges) -> bool:
    """Record a job's changes. Return whether it may have an unknown report."""
    kind = _kind(job, ref)
    is_later = ref.at is None or job.ended_at > ref.at + _SAME_MOMENT_S
    if kind == "exception":
        return ref.state not in _DEAD or is_later
    if kind == "retry":
        if ref.state == "retrying" and job.due_at is not None:
            changes.due[ref] = job.due_at
        return ref.state != "retrying" or is_later
    if job.is_elsewhere and ref.state in _AT_REST:
        changes.gone[ref] = "its id is now that of a job in another queue of RQ"
    elif job.status in _GONE and (ref.state in _DEAD or job.status == "canceled"):
        changes.gone[ref] = _GONE[job.status]
    return kind == "success"


def _kind(job: Job, ref: Ref) -> str:
    """Return the kind of report that a job has; "" if none.

    The success of a job that waited for a retry has one too.
    """
    if job.status == "finished":
        return "success" if ref.state == "retrying" or (ref.state not in _DEAD and job.sent_record) else ""
    return kind_of(job, time.time())


def _check_absent(wire: Wire, absent: Sequence[Ref], changes: JobChanges) -> None:
    """Record the absent jobs as gone if proved: RQ drops a failure only after its `failure_ttl`, so if no data was
    lost, someone acted.

    An absent retry ran and its result expired, or someone removed it.
    """
    at_rest = [ref for ref in absent if ref.state in _AT_REST and not ref.was_removed and ref.at is not None]
    if not at_rest:
        return
    since, now = wire.mark.complete_since(), time.time()
    expires_at = wire.expires_at(at_rest)
    for ref in at_rest:
        # For an older failure, it is unknown whether RQ kept it for a year.
        if (ref.at or 0.0) >= now - NOTED_S and is_evidence(since, ref.at or 0.0, expires_at[ref], now):
            changes.gone[ref] = _TAKEN_OUT if ref.state in _DEAD else _RAN


def why_not_absent(since: int | None, ended_at: float, expires_at: float, seen_at: float | None, now: float) -> str:
    """Return why an absent failed job is not restored; "" if it may be. `seen_at`: when it was last seen failed."""
    if is_evidence(since, ended_at, expires_at, now):
        return "removed"
    is_lost = since is None or since > ended_at * 1000
    return "" if is_lost or max(ended_at, seen_at or 0.0) >= expires_at - _SEEN_WITHIN_S else "unseen"
