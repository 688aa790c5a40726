"""Start-once check: a replayed job runs once even if its message arrives twice.

For brokers without atomic sends (RabbitMQ): their replayed messages have `once` in the `redrive` header. The first
delivery of an attempt sets a mark in the store; a delivery that finds the mark is a second copy.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs_admin.core import keys
from jobs_admin.core.envelope import Lineage
from jobs_admin.worker import report
from jobs_admin.worker.calls import Calls, Script

LIVES_S = 7 * 86400  # as long as a replay's ledger

_FIRST = Script("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) and 1 or 0")

logger = logging.getLogger("redrive.worker")


class Once:
    """Check in a worker's main process before a job goes to the pool.

    No method raises, or waits longer than `Calls`.
    """

    def __init__(self, calls: Calls, source: str, boot: str) -> None:
        self._calls = calls
        self._source = source
        self._boot = boot
        self.repeated = 0  # copies that did not run
        self.unasked = 0  # jobs that started unchecked because the store did not answer

    def is_repeated(self, request: Any) -> bool:
        """Return whether another copy of the message has started this attempt. If not, mark it as started."""
        lineage = _once_lineage(request)
        if lineage is None:
            return False
        # Celery's own retry has the same header and is the next attempt. A job that a policy delays or retries has lost
        # `once` (`next_message.py`), because it may return as the same attempt.
        attempt = report.attempt_of(request)
        key = keys.once(self._source, f"{lineage.replay}-{lineage.item}-{_which(request)}", attempt)
        is_first = self._calls.run(_FIRST, [key], [self._boot, LIVES_S])
        if is_first is None:
            self.unasked += 1
            return False
        if is_first or _came_back(request):
            return False
        self.repeated += 1
        logger.warning(
            "Redrive dropped a second copy of the replayed job %s (%d so far): its first copy was begun already.",
            str(request.id)[:100],
            self.repeated,
        )
        return True


def _once_lineage(request: Any) -> Lineage | None:
    """Return the job's lineage if its message has `once`."""
    header = request.request_dict.get("redrive")
    if not isinstance(header, dict) or header.get("once") is not True:
        return None
    lineage = report.lineage_of(request)
    return lineage if lineage and lineage.item is not None and lineage.replay else None


def _which(request: Any) -> str:
    """Return the job's id and its number of replacements.

    An older desk's header may name the parent. A task's replacement (`self.replace`) has its id, starts at attempt 1,
    and is no copy.
    """
    return f"{request.id}-{report.attempt_number(request.request_dict.get('replaced_task_nesting'))}"


def _came_back(request: Any) -> bool:
    """Return whether the broker redelivers the job: its worker died or released it unacknowledged, or it passed a
    dead-letter exchange. A run that started and did not end must run again.
    """
    return bool(request.delivery_info.get("redelivered")) or "x-death" in request.request_dict
