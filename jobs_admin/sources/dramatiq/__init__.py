"""Dramatiq on Redis and on RabbitMQ."""

from __future__ import annotations

from jobs_admin.core.priority import RABBITMQ, REDIS, Scale
from jobs_admin.sources.amqp import SCHEMES
from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    if given.url.partition("://")[0] in SCHEMES:
        from jobs_admin.sources.dramatiq.on_rabbitmq import DramatiqOnRabbitMQ

        return DramatiqOnRabbitMQ(given)
    from jobs_admin.sources.dramatiq.source import DramatiqOnRedis

    return DramatiqOnRedis(given)


def _priorities(url: str) -> Scale:
    return RABBITMQ if url.partition("://")[0] in SCHEMES else REDIS


SYSTEM = System("Dramatiq", _open, _priorities)
