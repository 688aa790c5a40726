"""Adapters to queue systems: no Django, no models. `SYSTEMS` lists them; `connect` is the only entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs_admin.core import keys
from jobs_admin.sources import bull, bullmq, celery, dramatiq, jobs_table, memory, rabbitmq, rq, sidekiq, sqs
from jobs_admin.sources.base import Source, SourceRefused, SourceSettings, System

if TYPE_CHECKING:
    import redis

# One line per system, by its `backend` name in the configuration (docs/how-to/add-a-source.md).
SYSTEMS: dict[str, System] = {
    "celery": celery.SYSTEM,
    "bullmq": bullmq.SYSTEM,
    "bull": bull.SYSTEM,
    "jobs_table": jobs_table.SYSTEM,
    "django_tasks": jobs_table.DJANGO_TASKS_SYSTEM,
    "rabbitmq": rabbitmq.SYSTEM,
    "rq": rq.SYSTEM,
    "sqs": sqs.SYSTEM,
    "dramatiq": dramatiq.SYSTEM,
    "sidekiq": sidekiq.SYSTEM,
    "memory": memory.SYSTEM,
}


def connect(
    name: str,
    backend: str,
    url: str,
    queues: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    store_prefix: str = keys.PREFIX,
    store: Callable[[], redis.Redis] | None = None,
) -> Source:
    """Return the adapter for a configured source. Opens no connection yet.

    `queues`: empty for all that can be discovered. `store` returns a client of Redrive's store, for systems without
    their own ledger: without it they send nothing. Raises SourceRefused, with a sentence, for an unusable backend or
    URL.
    """
    if backend not in SYSTEMS:
        raise SourceRefused(f"Source {name}: there is no adapter for backend {backend!r}.")
    return SYSTEMS[backend].open(SourceSettings(name, url, queues, options or {}, store_prefix, store))
