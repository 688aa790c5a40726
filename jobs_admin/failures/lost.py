"""A lost job, whose end was never reported: what is known, and what an operator can do, in words."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Failure


@dataclass(frozen=True, slots=True)
class Explanation:
    what: str
    to_do: str


_WITH_ITS_WORKER = Explanation(
    "The worker stopped while the job ran. The job was acknowledged before it started, so the broker does not "
    "redeliver it. It may have done all, some or none of its work.",
    "Check what the job did. Replay if a second run is safe, otherwise discard. A later report from the worker "
    "replaces this state.",
)
_BEFORE_ITS_RETRY = Explanation(
    "The last attempt failed and a retry was due. No report of the retry arrived: the worker crashed and the broker "
    "no longer has the message, or the retry ran and its report was lost.",
    "Check that the queue is empty and its workers are running, then replay. A later report of the retry replaces this "
    "state.",
)


def explanation(failure: Failure) -> Explanation | None:
    """Return the explanation of a lost job; None if its end was reported, or an operator gave it up."""
    if failure.kind != "lost":
        return None
    if failure.reason.startswith(lost_jobs.WORKER_REASON):
        return _WITH_ITS_WORKER
    return _BEFORE_ITS_RETRY if failure.reason.startswith(lost_jobs.RETRY_REASON) else None
