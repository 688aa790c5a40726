"""The policies in force, as workers read them from Redis: all are replaced together.

The content is always built from the complete tables, so that the last writer, however late, leaves the policies in
force. If Redis lost them, or was unreachable during a publication, the next round of `watch` writes them.
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
    """Push after a change. Never raises: the change is saved, and `watch` retries."""
    try:
        push()
    except redis.RedisError as error:
        log.warning(
            "Workers do not have the change yet: the store does not answer (%s). `watch` sends the change later.", error
        )
    # `up` publishes the demo's policies, and only its child processes have the store's address.
    except config.BadConfiguration as error:
        log.debug("Workers do not have the change yet: %s `watch` sends the change later.", error)


def push() -> bool:
    """Write the policies of the tables to Redis. Return whether Redis differed. Raises redis.RedisError."""
    name, number = keys.policies(), keys.policies_version()
    with config.store().pipeline() as pipe:
        while True:
            # Watched before the tables are read: a later write by another process makes this one read again.
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
    """Return name -> its version in force, as written in Redis."""
    rows = PolicyVersion.objects.filter(is_published=True).values_list("name", "version", "document")
    return {
        name.encode(): json.dumps(
            {"name": name, "version": version, "policy": document}, sort_keys=True, separators=(",", ":")
        ).encode()
        for name, version, document in rows
    }


def _next(raised: bytes | None) -> int:
    """Return a number never used before: microseconds since 1970, which increases even if Redis lost the last one."""
    last = untrusted.integer(raised) or 0
    return max(last + 1, time.time_ns() // 1_000)
