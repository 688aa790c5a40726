"""Bull 3 and 4 on Redis: the predecessor of BullMQ, with nearly the same keys."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.bull.source import BullOnRedis

    return BullOnRedis(given)


SYSTEM = System("Bull", _open)
