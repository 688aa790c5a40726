"""Dramatiq on Redis."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.dramatiq.source import DramatiqOnRedis

    return DramatiqOnRedis(given)


SYSTEM = System("Dramatiq", _open)
