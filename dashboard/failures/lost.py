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
    "Its worker stopped while it ran. It had been acknowledged before it began, so the broker gives it to nobody else. "
    "How far it came is not known: it may have done all of its work, some, or none.",
    "Look at what it should have done. Replay it where a second run does no harm, else discard it. Should its worker come "
    "back after all, its own word takes the place of this.",
)
_BEFORE_ITS_RETRY = Explanation(
    "It failed, as shown below, and was to be tried again. Nobody has told of that attempt: its worker died and the broker "
    "has the message no more, or the attempt ran and its report did not get through.",
    "See whether its queue is empty and its workers live. Replay it then; should the attempt be told of after all, that "
    "takes the place of this.",
)


def explanation(failure: Failure) -> Explanation | None:
    """Return the explanation of a lost job; None if its end was reported, or an operator gave it up."""
    if failure.kind != "lost":
        return None
    if failure.reason.startswith(lost_jobs.WORKER_REASON):
        return _WITH_ITS_WORKER
    return _BEFORE_ITS_RETRY if failure.reason.startswith(lost_jobs.RETRY_REASON) else None
