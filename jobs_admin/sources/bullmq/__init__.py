"""BullMQ 4 to 6 on Redis."""

from __future__ import annotations

from jobs_admin.core.priority import BULLMQ
from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.bullmq.source import BullmqOnRedis

    return BullmqOnRedis(given)


SYSTEM = System("BullMQ", _open, lambda url: BULLMQ)
