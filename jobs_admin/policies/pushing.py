"""The policies in force, as workers read them from Redis: all of them at once, or none.

What is there is always made from the tables as a whole, so that whoever pushes last, and however late, leaves what is
in force. Where Redis lost them, or was away when something was published, the next round of `watch` brings them.
"""

from __future__ import annotations

import json
import logging
import time

import redis

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.models import PolicyVersion

log = logging.getLogger(__name__)


def push_soon() -> None:
    """After a change. Never raises: what is published is published, and `watch` goes on trying."""
    try:
        push()
    except redis.RedisError as error:
        log.warning(
            "Workers do not have the change yet: the store does not answer (%s). `watch` sends the change later.", error
        )
    except config.BadConfiguration as error:  # `up` itself publishes the demo's, and only its children know the store
        log.debug("Workers do not have the change yet: %s `watch` sends the change later.", error)


def push() -> bool:
    """Make Redis say what the tables say; whether that was not so. Raises redis.RedisError."""
    name, number = keys.policies(), keys.policies_version()
    with config.store().pipeline() as pipe:
        while True:
            # Watched before the tables are read: whoever pushes something newer meanwhile makes us read again.
            pipe.watch(name, number)
            wanted, stored, raised = _documents(), pipe.hgetall(name), pipe.get(number)
            if stored == wanted and (raised is not None or not wanted):
                return False
            pipe.multi()
            pipe.delete(name)
            if wanted:
                pipe.hset(name, mapping=wanted)
            pipe.set(number, _next(raised))
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return True


def _documents() -> dict[bytes, bytes]:
    """Name -> its version in force, as written in Redis."""
    rows = PolicyVersion.objects.filter(is_published=True).values_list("name", "version", "document")
    return {
        name.encode(): json.dumps(
            {"name": name, "version": version, "policy": document}, sort_keys=True, separators=(",", ":")
        ).encode()
        for name, version, document in rows
    }


def _next(raised: bytes | None) -> int:
    """A number that was never there before: microseconds since 1970, so that it grows also where Redis forgot the last."""
    last = untrusted.integer(raised) or 0
    return max(last + 1, time.time_ns() // 1_000)
