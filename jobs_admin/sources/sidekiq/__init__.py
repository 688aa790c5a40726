"""Sidekiq."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.sidekiq.source import Sidekiq

    return Sidekiq(given)


SYSTEM = System("Sidekiq", _open)
