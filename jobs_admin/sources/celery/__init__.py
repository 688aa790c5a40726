"""Celery on Redis and on RabbitMQ."""

from __future__ import annotations

from typing import cast

from jobs_admin.core.priority import RABBITMQ, REDIS, Scale
from jobs_admin.sources.amqp import SCHEMES
from jobs_admin.sources.base import Source, SourceRefused, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    guard = given.options.get("guard", True)
    if not isinstance(guard, bool):
        raise SourceRefused(f"Source {given.name}: guard must be true or false.")
    broker = _open_broker(given)
    if guard:
        return broker
    from jobs_admin.sources.celery.followed import open_followed

    return cast(Source, open_followed(given, broker))


def _open_broker(given: SourceSettings) -> Source:
    if given.url.partition("://")[0] in SCHEMES:
        from jobs_admin.sources.celery.on_rabbitmq import CeleryOnRabbitMQ

        return CeleryOnRabbitMQ(given)
    from jobs_admin.sources.celery.on_redis import CeleryOnRedis

    return CeleryOnRedis(given)


def _priorities(url: str) -> Scale:
    return RABBITMQ if url.startswith(("amqp", "pyamqp")) else REDIS


SYSTEM = System("Celery", _open, _priorities, is_guarded=True)
