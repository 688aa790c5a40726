"""Celery on Redis and on RabbitMQ."""

from __future__ import annotations

from jobs_admin.core.priority import RABBITMQ, REDIS, Scale
from jobs_admin.sources.amqp import SCHEMES
from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    if given.url.partition("://")[0] in SCHEMES:
        from jobs_admin.sources.celery.on_rabbitmq import CeleryOnRabbitMQ

        return CeleryOnRabbitMQ(given.name, given.url, given.queues, given.options, given.store_prefix, given.store)
    from jobs_admin.sources.celery.on_redis import CeleryOnRedis

    return CeleryOnRedis(given.name, given.url, given.queues, given.options, given.store_prefix)


def _priorities(url: str) -> Scale:
    return RABBITMQ if url.startswith(("amqp", "pyamqp")) else REDIS


SYSTEM = System("Celery", _open, _priorities, is_guarded=True)
