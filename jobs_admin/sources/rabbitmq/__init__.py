"""Dead-letter queues of RabbitMQ."""

from __future__ import annotations

from jobs_admin.core.priority import RABBITMQ
from jobs_admin.sources.base import Source, SourceSettings, System


def _open(given: SourceSettings) -> Source:
    from jobs_admin.sources.rabbitmq.source import RabbitMQ

    return RabbitMQ(given)


SYSTEM = System("RabbitMQ", _open, lambda url: RABBITMQ)
