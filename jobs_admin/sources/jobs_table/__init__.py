"""Tables of jobs in SQLite and PostgreSQL."""

from __future__ import annotations

from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.jobs_table.source import JobsTable

    return JobsTable(given.name, given.url, given.queues, given.options)


SYSTEM = System("Jobs table", _open)
