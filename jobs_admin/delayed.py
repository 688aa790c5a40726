"""Where the delayed jobs of a source wait, and how they get from there onto its queues."""

from __future__ import annotations

from dataclasses import dataclass

from kombu.connection import Connection

from jobs_admin import config
from jobs_admin.config import SourceConfig
from jobs_admin.worker.broker import Publisher, redis_of
from jobs_admin.worker.delays import Delays, Promoted
from jobs_admin.worker.later import promote

_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Calls raise redis.RedisError, OSError or NotPublished."""

    delays: Delays
    publisher: Publisher | None  # where the place is not the broker itself

    def promote(self, late_by_s: float = 0.0) -> Promoted:
        return promote(self.delays, self.publisher, late_by_s)


def place(source: SourceConfig) -> Place | None:
    """As the source's workers choose it (`worker/policing.py`); None for a system whose workers delay nothing through us."""
    if source.backend != "celery":
        return None
    own = redis_of(source.url, source.options.get("ssl"))
    if own is not None:
        return Place(Delays(own(_TIMEOUT_S), source.name), None)
    return Place(Delays(config.store(), source.name), Publisher(lambda: Connection(source.url)))
