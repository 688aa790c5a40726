"""Promotion of due retries without a live guarded worker: the step `promote` of `watch`.

Workers promote their own within a moment. A retry that is late by seconds has no worker able to do so: a query of live
workers would say less. If there is a worker nevertheless, each job still goes once.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import redis

from jobs_admin import config

if TYPE_CHECKING:
    from jobs_admin.retries.delayed import Place

LATE_S = 3.0
_AGAIN_S = 10.0  # after a source that did not answer
_BATCHES = 20  # of one source in a round: then the others have their turn

log = logging.getLogger(__name__)

_places: dict[str, list[Place]] = {}
_closed_until: dict[str, float] = {}  # source -> monotonic


def step() -> bool:
    """One round over all sources. True if there may be more to do at once."""
    went = [_of_source(name) for name in config.sources()]  # all of them, also behind one that had something to do
    return any(went)


def _of_source(name: str) -> bool:
    if time.monotonic() < _closed_until.get(name, 0.0):
        return False
    from jobs_admin.retries.delayed import places  # with kombu, for which a desk without sources has no use

    jobs, failed = 0, ""
    try:
        if name not in _places:
            _places[name] = places(config.sources()[name])
        for found in _places[name]:
            went, why = _promote(found)
            jobs, failed = jobs + went, failed or why
    except (redis.RedisError, OSError) as error:
        failed = type(error).__name__
    except Exception as error:  # the border: whatever we did not think of, the other sources have their turn
        failed = type(error).__name__
        log.exception("Source %s: delayed retries cannot be returned to their queues.", name)
    if failed:
        _closed_until[name] = time.monotonic() + (0.0 if jobs else _AGAIN_S)
        log.warning("Source %s: a delayed retry cannot be returned to its queue (%s).", name, failed)
    if jobs:
        log.info("Source %s: returned %d delayed jobs that no worker returned.", name, jobs)
    return jobs > 0


def _promote(found: Place) -> tuple[int, str]:
    """Return how many jobs went, and why one or more could not. Raises redis.RedisError, OSError."""
    jobs, failed = 0, ""
    for _ in range(_BATCHES):
        promoted = found.promote(LATE_S)
        jobs, failed = jobs + promoted.jobs, failed or promoted.failed
        if not promoted.jobs:
            break
    return jobs, failed
