"""Promotion of due retries without a live guarded worker: the step `promote` of `watch`.

Workers promote their own retries within a moment. A retry that is seconds late has no worker able to do so, which is
more reliable than a query of live workers. If there is such a worker nevertheless, each job is still promoted once.

The step calls every place where jobs wait (the broker's Redis, or the store: `worker/delays.py`). So it also samples
the jobs that breakers hold there, and writes the result to the store: no page calls a broker.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from jobs_admin import config
from jobs_admin.core import keys, untrusted

if TYPE_CHECKING:
    from jobs_admin.retries.delayed import Place

LATE_S = 3.0
_AGAIN_S = 10.0  # after a source that did not answer
_BATCHES = 20  # per source in a round, so that the others have their turn

log = logging.getLogger(__name__)

_places: dict[str, list[Place]] = {}
_closed_until: dict[str, float] = {}  # source -> monotonic
SAMPLE_EVERY_S = 5.0
MOST_BREAKERS = 100  # per source
MOST_HEADS = 300  # jobs read per breaker
MOST_NAMES = 20  # of queues, tasks and tenants each
MOST_SHOWN = 20  # jobs
_VALID_S = 60
_SCRIPT = (Path(__file__).parent / "on_hold.lua").read_text()
_sampled_at: dict[str, float] = {}  # source -> monotonic
_written: set[str] = set()  # sources with jobs on hold at the last sample


def step() -> bool:
    """Run one round over all sources. Return True if there may be more to do immediately."""
    went = [_of_source(name) for name in config.sources()]  # all of them, also after one that had something to do
    return any(went)


def _of_source(name: str) -> bool:
    if time.monotonic() < _closed_until.get(name, 0.0):
        return False
    from jobs_admin.retries.delayed import places  # imports kombu, which a desk without sources does not need

    jobs, failed = 0, ""
    try:
        if name not in _places:
            _places[name] = places(config.sources()[name])
        for found in _places[name]:
            went, why = _promote(found)
            jobs, failed = jobs + went, failed or why
        sample_holds(name, _places[name], time.time())
    except (redis.RedisError, OSError) as error:
        failed = type(error).__name__
    except Exception as error:  # error boundary: the other sources have their turn whatever happens
        failed = type(error).__name__
        log.exception("Source %s: delayed retries cannot be returned to their queues.", name)
    if failed:
        _closed_until[name] = time.monotonic() + (0.0 if jobs else _AGAIN_S)
        log.warning("Source %s: a delayed retry cannot be returned to its queue (%s).", name, failed)
    if jobs:
        log.info("Source %s: returned %d delayed jobs that no worker returned.", name, jobs)
    return jobs > 0


def _promote(found: Place) -> tuple[int, str]:
    """Return the number of promoted jobs, and why others could not be promoted. Raises redis.RedisError, OSError."""
    jobs, failed = 0, ""
    for _ in range(_BATCHES):
        promoted = found.promote(LATE_S)
        jobs, failed = jobs + promoted.jobs, failed or promoted.failed
        if not promoted.jobs:
            break
    return jobs, failed


def sample_holds(source: str, places: Iterable[Place], now_s: float) -> None:
    """Store what the breakers of a source hold, at most every SAMPLE_EVERY_S. Raises redis.RedisError, OSError."""
    if time.monotonic() - _sampled_at.get(source, float("-inf")) < SAMPLE_EVERY_S:
        return
    _sampled_at[source] = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        for name in place.delays.holding()[: MOST_BREAKERS - len(found)]:
            if (one := _sample_breaker(source, place, name)) is not None:
                found.setdefault(name, one)
    if found:
        text = json.dumps({"at": now_s, "breakers": found}, separators=(",", ":"))
        config.store().set(keys.on_hold(source), text, ex=_VALID_S)
        _written.add(source)
    elif source in _written:
        config.store().delete(keys.on_hold(source))
        _written.discard(source)


def _sample_breaker(source: str, place: Place, name: str) -> dict[str, Any] | None:
    try:
        count, *lines = place.delays.read_heads(_SCRIPT, name, MOST_HEADS)
    except redis.ResponseError:  # a key of another type
        return None
    heads = [untrusted.read_object(line) for line in lines]
    if not count:
        return None
    return {
        "count": count,
        "sampled": len(heads),
        "queues": _most_common(heads, "queue"),
        "tasks": _most_common(heads, "task"),
        "tenants": _most_common(heads, "tenant"),
        "jobs": [
            {name: untrusted.text(head.get(name), 255) for name in ("job_id", "task", "queue", "tenant")}
            for head in heads[:MOST_SHOWN]
        ],
    }


def _most_common(heads: Iterable[Mapping[str, Any]], name: str) -> dict[str, int]:
    counted = Counter(text for head in heads if (text := untrusted.text(head.get(name), 200)))
    return dict(counted.most_common(MOST_NAMES))
