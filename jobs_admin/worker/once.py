"""A replayed job whose message comes twice starts once, where its broker could not promise that it was sent once.

Only messages that say so ask: `once` is in the `redrive` header of what was replayed onto a broker without atomic sends
(RabbitMQ). The first delivery of a run's attempt leaves a mark in the store; another one that finds it is a second
copy.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs_admin.core import keys
from jobs_admin.core.envelope import Lineage
from jobs_admin.worker import report
from jobs_admin.worker.calls import Calls, Script

LIVES_S = 7 * 86400  # as long as the ledger of a replay

_FIRST = Script("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) and 1 or 0")

logger = logging.getLogger("redrive.worker")


class Once:
    """Asked in a worker's main process, before a job goes to the pool. No method raises, or waits for longer than `Calls`."""

    def __init__(self, calls: Calls, source: str, boot: str) -> None:
        self._calls = calls
        self._source = source
        self._boot = boot
        self.repeated = 0  # copies that were not run
        self.unasked = 0  # jobs that started although the store did not say whether they are a second copy

    def is_repeated(self, request: Any) -> bool:
        """Return whether this attempt of the job was begun by another copy of its message. If not, it is begun now."""
        lineage = _once_lineage(request)
        if lineage is None:
            return False
        # Celery's own retry has the same header and is the next attempt. What a policy puts off, or tries again, has
        # lost the word `once` (`next_message.py`): it may come back as the same attempt.
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
    """Return where the job comes from, if its message asks to be started once."""
    header = request.request_dict.get("redrive")
    if not isinstance(header, dict) or header.get("once") is not True:
        return None
    lineage = report.lineage_of(request)
    return lineage if lineage and lineage.item is not None and lineage.replay else None


def _which(request: Any) -> str:
    """Return the job's id, since the header of an older desk may be that of its parent, and how often it was replaced:
    what takes a task's place (`self.replace`) has its id, begins at the first attempt, and is no copy.
    """
    return f"{request.id}-{report.attempt_number(request.request_dict.get('replaced_task_nesting'))}"


def _came_back(request: Any) -> bool:
    """Return whether the broker itself delivers it again: its worker died or let go of it before it was acknowledged, or it went
    round through a dead-letter exchange. A run that was begun and not ended must run again."""
    return bool(request.delivery_info.get("redelivered")) or "x-death" in request.request_dict
