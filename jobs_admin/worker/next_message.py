"""The message of a job's next attempt: that of the last one, byte for byte, but for what must not stay the same."""

from __future__ import annotations

import json
from uuid import uuid4

from jobs_admin.core.members import changed

WAITED = "redrive_waited"  # a header: seconds that were waited before this attempt, where the next wait follows from it

# What the broker wrote onto the last delivery: a lie on a message that nobody has fetched yet.
_OF_THE_BROKER = (
    ("headers", "redelivered"),
    ("headers", "x-death"),
    ("headers", "x-delivery-count"),
    ("headers", "x-first-death-exchange"),
    ("headers", "x-first-death-queue"),
    ("headers", "x-first-death-reason"),
    ("headers", "x-last-death-exchange"),
    ("headers", "x-last-death-queue"),
    ("headers", "x-last-death-reason"),
    ("properties", "delivery_info", "redelivered"),
)


# Of a replay onto RabbitMQ (`once.py`): this is no second copy of its message, though it may be the same attempt.
_OF_THE_REPLAY = (("headers", "redrive", "once"),)


class NotCelerys(ValueError):
    """The message has no headers of Celery's second protocol, so its attempts cannot be counted in it."""


def next_message(raw: bytes, retries: int, waited_s: float | None = None) -> bytes:
    """`raw` as its next delivery: Celery's own count of retries is true for every worker, guarded or not.

    It gets a tag of its own, since kombu keeps what is not acknowledged under it. Raises NotCelerys.
    """
    changes: dict[tuple[str, ...], str | None] = dict.fromkeys(_OF_THE_BROKER + _OF_THE_REPLAY)
    changes["headers", "retries"] = str(retries)
    changes["properties", "delivery_tag"] = json.dumps(str(uuid4()))
    if waited_s is not None:
        changes["headers", WAITED] = json.dumps(waited_s)  # exact: three times it bounds the next wait
    try:
        text = raw.decode("utf-8", "surrogateescape")
        if not json.loads(text)["headers"].get("task"):
            raise NotCelerys("its message is of Celery's first protocol")
        return changed(text, changes).encode("utf-8", "surrogateescape")
    except NotCelerys:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NotCelerys("its message cannot be read") from error
