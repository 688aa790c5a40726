"""RQ 1.16, 2 and 3 on Redis, with or without django-rq."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.rq.source import RqOnRedis

    return RqOnRedis(given)


SYSTEM = System("RQ", _open)
