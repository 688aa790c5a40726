"""Checked destinations of BullMQ jobs: the queue and id in a dead letter are untrusted text. Pure."""

from __future__ import annotations

import re

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.bullmq.job_hash import Message

# Names of a queue's own keys (`QueueKeys` of 4.18, 5.81 and 6.7, and older ones): a job of that id would overwrite one.
RESERVED = frozenset(
    (
        *(
            "active",
            "added",
            "completed",
            "de",
            "delayed",
            "drained",
            "events",
            "failed",
            "groups",
            "id",
            "jobs",
            "limiter",
            "marker",
        ),
        *(
            "meta",
            "metrics",
            "paused",
            "pc",
            "prioritized",
            "priority",
            "repeat",
            "resumed",
            "stalled",
            "stalled-check",
            "wait",
        ),
        *("waiting", "waiting-children"),
    )
)
_REPEATED = re.compile(r"repeat:[^:]+:[0-9]+")  # the one form with colons that BullMQ itself makes
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def refuse_misdirected(message: Message, queue: str, job_id: str) -> None:
    """Raise SourceRefused unless a job goes back to its own queue, or, where it names none, to the one that a person
    chose.

    Never to a place that no job can have.
    """
    if message.more.get("unclear"):
        if queue == message.queue:
            raise SourceRefused(
                f"Nothing was sent: this dead letter does not say which queue it is of. Choose a queue to send it to, or name it for "
                f'good: dead_letter_queues = [{{name = "{queue[:100]}", of = "…"}}].'
            )
    elif queue != message.queue:
        raise SourceRefused(
            f"Nothing was sent: a job of BullMQ is brought back in its own queue ({message.queue[:100]}), not in another."
        )
    if job_id in RESERVED:
        raise SourceRefused(
            f"Nothing was sent: {job_id!r} is the name of one of the queue's own keys, which no job can have as its id. Take this dead "
            "letter out."
        )
    if message.copy is None:
        return  # read from its own queue, where it was under this very id
    if queue == message.copy[0]:
        raise SourceRefused(
            "Nothing was sent: this dead letter names as its queue the one in which it lies. Take it out, or add its job again."
        )
    if not queue or ":" in queue or _CONTROL.search(queue):
        raise SourceRefused(
            f"Nothing was sent: {queue[:100]!r} is no name of a queue of BullMQ (a colon or a control character is in it)."
        )
    if not job_id or _CONTROL.search(job_id) or (":" in job_id and not _REPEATED.fullmatch(job_id)):
        raise SourceRefused(
            f"Nothing was sent: {job_id[:100]!r} is no id of a job of BullMQ (a colon or a control character is in it)."
        )
