"""Tables of jobs in SQLite and PostgreSQL."""

from __future__ import annotations

from jobs_admin.core.priority import DJANGO_TASKS as DJANGO_TASKS_PRIORITIES
from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.jobs_table.source import JobsTable

    return JobsTable(given.name, given.url, given.queues, given.options)


def _open_django_tasks(given: SourceSettings) -> Source:
    from jobs_admin.sources.jobs_table.names import DJANGO_TASKS
    from jobs_admin.sources.jobs_table.source import JobsTable

    return JobsTable(given.name, given.url, given.queues, given.options, DJANGO_TASKS)


SYSTEM = System("Jobs table", _open)
DJANGO_TASKS_SYSTEM = System("Django Tasks", _open_django_tasks, lambda url: DJANGO_TASKS_PRIORITIES)
