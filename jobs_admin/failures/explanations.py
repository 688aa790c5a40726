"""Explanations of failures whose error is not informative: what happened, and what an operator can do.

They cover lost jobs and messages that never became a job.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs_admin.core.envelope import UNREAD
from jobs_admin.failures import contents
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import Failure


@dataclass(frozen=True, slots=True)
class Explanation:
    what: str
    to_do: str
    head: str = ""  # of the message, if its arguments cannot be shown


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


def explain_lost(failure: Failure) -> Explanation | None:
    """Return the explanation of a lost job; None if its end was reported, or an operator gave it up."""
    if failure.kind != "lost":
        return None
    if failure.reason.startswith(lost_jobs.WORKER_REASON):
        return _WITH_ITS_WORKER
    return _BEFORE_ITS_RETRY if failure.reason.startswith(lost_jobs.RETRY_REASON) else None


_NEVER_RAN = {
    "unknown_task": (
        "No worker has a task of this name, so Celery dropped the message. The job never ran.",
        "Deploy code with this task to the queue's workers, or restore the task's old name, then replay.",
    ),
    "expired": (
        "The job expired before a worker received it. The job never ran.",
        "If the job is still needed, use a replay that accepts expired jobs: it removes the expiry. If many jobs "
        "expire, the queue is slower than their expiry allows.",
    ),
    "bad_content": (
        "The workers do not accept the content type of the body, and the body was not read. The job never ran.",
        "If you trust the sender, add the type to the workers' accept_content, readmit and replay: the body is sent "
        "unchanged. Pickle runs code when read: never accept it from outside.",
    ),
    "undecodable": (
        "The message could not be decoded. The job never ran.",
        "Find the sender of these messages. If the workers were at fault, readmit and replay; otherwise discard.",
    ),
    "unknown_format": (
        "The message is not in Celery's format, so Celery dropped it. The job never ran.",
        "Find the program that writes to this queue: see the headers. Messages in another format cannot be replayed.",
    ),
}  # fmt: skip
UNREAD_KINDS = tuple(_NEVER_RAN)


def explain_unread(failure: Failure) -> Explanation | None:
    """Return the explanation of a message that never became a job; None for a job that a worker started."""
    if failure.kind not in _NEVER_RAN:
        return None
    is_unread = failure.kind in UNREAD
    return Explanation(*_NEVER_RAN[failure.kind], contents.head(failure) if is_unread else "")


def short_unread(failure: Failure) -> str:
    """Return the explanation's first sentence, for a quarantine row; "" if the job is there for another reason."""
    return _NEVER_RAN[failure.kind][0] if failure.kind in UNREAD else ""
