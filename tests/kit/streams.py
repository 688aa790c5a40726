"""Reports in the stream of a source."""

from __future__ import annotations

import redis

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, decode


def reports(engine: Engine, source: str = "shop") -> list[Envelope]:
    """All that the stream of a source holds, in its order. What was answered late comes by the spool too, in the very same words."""
    with redis.Redis.from_url(engine.url, socket_timeout=30) as client:
        distinct = {frozenset(fields.items()): fields for _, fields in client.xrange(keys.failures(source))}
    return [decode(fields) for fields in distinct.values()]


def of_job(engine: Engine, job_id: str) -> list[Envelope]:
    """In the order of its attempts: of two workers' or processes' reports either may be there first."""
    return sorted((one for one in reports(engine) if one.job_id == job_id), key=lambda one: one.attempt)
