"""Brings back what waits to be retried where no guarded worker lives to do so: the step `promote` of `watch`.

Workers bring back their own within a moment. What is late by seconds has nobody, or nobody who can: asking who lives
would tell less. Should a worker be there all the same, each job still goes once.
"""

from __future__ import annotations

import logging
import time

import redis

from jobs_admin import config
from jobs_admin.delayed import Place, place
from jobs_admin.worker.broker import NotPublished

LATE_S = 3.0
_AGAIN_S = 10.0  # after a source that did not answer
_BATCHES = 20  # of one source in a round: then the others have their turn

log = logging.getLogger(__name__)

_places: dict[str, Place | None] = {}
_closed_until: dict[str, float] = {}  # source -> monotonic


def step() -> bool:
    """One round over all sources. True if there may be more to do at once."""
    went = [_of_source(name) for name in config.sources()]  # all of them, also behind one that had something to do
    return any(went)


def _of_source(name: str) -> bool:
    if name not in _places:
        _places[name] = place(config.sources()[name])
    found = _places[name]
    if found is None or time.monotonic() < _closed_until.get(name, 0.0):
        return False
    jobs = 0
    try:
        for _ in range(_BATCHES):
            went = found.promote(LATE_S).jobs
            jobs += went
            if not went:
                break
    except (redis.RedisError, OSError, NotPublished) as error:
        _closed_until[name] = time.monotonic() + _AGAIN_S
        log.warning("Source %s: what waits to be retried cannot be brought back (%s).", name, type(error).__name__)
    if jobs:
        log.info("Source %s: brought back %d jobs that no worker brought back.", name, jobs)
    return jobs > 0
