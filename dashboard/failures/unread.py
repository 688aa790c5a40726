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
        "No worker that took it has a task of this name, so Celery threw the message away. It never ran.",
        "Deploy the code that has this task to the workers of its queue, or give the task its old name back; then replay.",
    ),
    "expired": (
        "Its time had passed before a worker came to it. It never ran.",
        "Replay it if it is still of use, by a replay that accepts expired jobs: that takes the expiry off. "
        "Where many expire, the queue is longer than they may wait.",
    ),
    "bad_content": (
        "Its body is of a content type that the workers do not accept, and nobody has looked into it. It never ran.",
        "If you know and trust who sends it, add the type to accept_content of the workers, readmit it and replay: "
        "its body goes as it came. A pickle runs code when it is read: never accept it from outside.",
    ),
    "undecodable": (
        "It could not be decoded. It never ran.",
        "Find out who sends such messages to this queue. Readmit and replay it if the fault lay with the workers; else discard it.",
    ),
    "unknown_format": (
        "It is not what Celery's producers write, so Celery threw it away. It never ran.",
        "Find out which program writes to this queue: the headers may tell. What is no message of Celery's cannot be sent again.",
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
