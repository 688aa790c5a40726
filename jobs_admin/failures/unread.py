"""A message that never became a job: what happened, and what an operator can do, in words."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_admin.core.envelope import UNREAD
from jobs_admin.failures import contents
from jobs_admin.models import Failure


@dataclass(frozen=True, slots=True)
class Explanation:
    what: str
    to_do: str
    head: str = ""  # of the message, where its arguments cannot be shown


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
KINDS = tuple(_NEVER_RAN)


def explanation(failure: Failure) -> Explanation | None:
    """Return the explanation; None for a job that a worker began."""
    if failure.kind not in _NEVER_RAN:
        return None
    is_unread = failure.kind in UNREAD
    return Explanation(*_NEVER_RAN[failure.kind], contents.head(failure) if is_unread else "")


def short(failure: Failure) -> str:
    """Return the first sentence, for a row of the quarantine; "" if the job is there for another reason."""
    return _NEVER_RAN[failure.kind][0] if failure.kind in UNREAD else ""
