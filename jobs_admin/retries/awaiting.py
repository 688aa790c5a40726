"""Delays of a retry or its report, for which it cannot be filed as lost yet: for `reconcile`."""

from __future__ import annotations

from datetime import datetime, timedelta

import redis

from jobs_admin import config
from jobs_admin.fleet import configurations
from jobs_admin.ingest.lost_jobs import Delays
from jobs_admin.models import DepthSample, Worker
from jobs_admin.models.access import ENGINE
from jobs_admin.models.source import ALIVE_S
from jobs_admin.queues import liveness

_SAMPLES_WITHIN = timedelta(minutes=5)

# As workers last reported it. A worker that has been dead for an hour is dropped, but its message may wait for longer.
_timeouts_s: dict[str, float] = {}


def delays(now: datetime) -> Delays:
    """Return the known delays now."""
    try:
        late = liveness.late_streams(now, with_unknown=True)
        reports = configurations.reported_configurations(ENGINE, now)
    except (redis.RedisError, config.BadConfiguration):
        return Delays(is_blind=True)
    timeouts: dict[str, float] = {}
    for found in reports.found:
        timeouts[found.source] = max(timeouts.get(found.source, 0.0), found.app.visibility_timeout or 0.0)
    _timeouts_s.update(timeouts)
    return Delays(
        # Recent reports are in transit. Those in the stream shared by older guards may be of any source.
        is_blind="" in late or not reports.is_reachable,
        late=frozenset(late),
        timeouts_s=dict(_timeouts_s),
        spooling=frozenset(
            Worker.objects.filter(seen_at__gte=now - timedelta(seconds=ALIVE_S), spooled__gt=0).values_list(
                "source", flat=True
            )
        ),
        backlogged=frozenset(_backlogged(now)),
    )


def _backlogged(now: datetime) -> set[tuple[str, str]]:
    """Return (source, queue) where a retry may be waiting, also at dead workers, according to the latest samples."""
    latest: dict[tuple[str, str], DepthSample] = {}
    for sample in DepthSample.objects.filter(step=10, at__gte=now - _SAMPLES_WITHIN, at__lte=now).order_by("at"):
        latest[sample.source, sample.queue] = sample
    return {place for place, sample in latest.items() if _may_hold(sample)}


def _may_hold(sample: DepthSample) -> bool:
    in_dead_hands = sample.workers == 0 and bool((sample.active or 0) + (sample.delayed or 0))
    return not sample.is_reachable or bool(sample.waiting) or in_dead_hands
