"""The jobs that a worker has in hand, reported with its heartbeat: what it takes with it, or leaves unacknowledged,
should it die.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import redis
from celery.worker import state

from jobs_admin.core import keys
from jobs_admin.worker.report import Origin, or_nothing, queue_of

MOST = 200  # jobs that are told; the rest is counted
EXPIRY_S = 86_400


class InHand:
    """The jobs in hand during one life of a worker. Costs no call while nothing is in hand, and none for a job."""

    def __init__(self, origin: Origin, boot: str, worker: str) -> None:
        self._origin = origin
        self._key = keys.in_hand(origin.source)
        self._boot = boot
        self._worker = worker
        self._is_reported = False

    def report(self, pipeline: redis.client.Pipeline) -> None:
        """Add to a heartbeat's round trip what is in hand now."""
        requests = _requests()
        if not requests and not self._is_reported:
            return
        self._is_reported = bool(requests)
        if not requests:
            pipeline.hdel(self._key, self._boot)
            return
        jobs = [self._job(request) for request in requests[:MOST]]
        timeout = or_nothing(lambda: requests[0].message.channel.visibility_timeout, None)
        values = {"worker": self._worker, "at": time.time(), "jobs": jobs, "more": max(0, len(requests) - MOST)}
        values["visibility_timeout"] = timeout if isinstance(timeout, int | float) else None
        pipeline.hset(self._key, self._boot, json.dumps(values))
        pipeline.expire(self._key, EXPIRY_S)

    def _job(self, request: Any) -> list[Any]:
        """Tag of its delivery, id, task, queue, and whether the broker has it still."""
        return [
            or_nothing(
                lambda: str(request.delivery_info.get("delivery_tag") or request.message.delivery_tag)[:200], ""
            ),
            or_nothing(lambda: str(request.id)[:200], ""),
            or_nothing(lambda: str(request.type)[:200], ""),
            or_nothing(lambda: queue_of(request, self._origin)[:200], ""),
            not or_nothing(lambda: bool(request.acknowledged), False),
        ]


def _requests() -> list[Any]:
    """Return the requests that were fetched and have not ended. Changed by other threads meanwhile."""
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            return list(state.reserved_requests)
    return []
