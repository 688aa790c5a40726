"""Adapters to queue systems: no Django, no models. `connect` is the only way in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs_admin.sources.base import Source, SourceRefused

if TYPE_CHECKING:
    import redis


def connect(
    name: str,
    backend: str,
    url: str,
    queues: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    store_prefix: str = "redrive",
    store: Callable[[], redis.Redis] | None = None,
) -> Source:
    """The adapter for a configured source. Nothing is dialled yet.

    `queues` empty means all that can be discovered. `store` answers a client of Redrive's store, for systems that keep no
    ledger themselves: without it they send nothing. Raises SourceRefused, with a sentence, for a backend or a URL that
    cannot be used.
    """
    if backend == "celery":
        from jobs_admin.sources.celery.on_rabbitmq import SCHEMES, CeleryOnRabbitMQ
        from jobs_admin.sources.celery.on_redis import CeleryOnRedis

        if url.partition("://")[0] in SCHEMES:
            return CeleryOnRabbitMQ(name, url, queues, options or {}, store_prefix, store)
        return CeleryOnRedis(name, url, queues=queues, options=options or {}, store_prefix=store_prefix)
    if backend == "bullmq":
        from jobs_admin.sources.bullmq.source import BullmqOnRedis

        return BullmqOnRedis(name, url, queues, options or {}, store_prefix)
    if backend == "jobs_table":
        from jobs_admin.sources.jobs_table.source import JobsTable

        return JobsTable(name, url, queues, options or {})
    if backend == "memory":
        from jobs_admin.sources.memory import MemoryKeeper, MemorySource

        return (MemoryKeeper if (options or {}).get("keeps_dead") else MemorySource)(name, queues=queues)
    if backend == "rabbitmq":
        from jobs_admin.sources.rabbitmq.source import RabbitMQ

        return RabbitMQ(name, url, queues, options or {}, store_prefix, store)
    raise SourceRefused(f"Source {name}: there is no adapter for backend {backend!r}.")
