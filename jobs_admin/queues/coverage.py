"""Coverage of sources whose failures are read from events: the observed share, the gaps, and the benefit of a guard.

Celery's remote control switches events on and off in running workers, at an operator's request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import redis
from django.db import transaction

from jobs_admin import config
from jobs_admin.core import coverage, keys
from jobs_admin.core.coverage import UNKNOWN_QUEUE, Coverage
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Failure, Source
from jobs_admin.models.access import ADMIN, Viewer
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.sources.base import SourceError

WINDOW = timedelta(hours=1)
_MOST_COUNTED = 5_000  # failures of the last hour that are read
_SILENT_S = 30.0
# Kinds that the guard captures with a replayable message.
_REPLAYABLE = frozenset({"exception", "soft_limit", "hard_limit", "worker_lost"})
_ENDED = (FailureState.DEAD, FailureState.QUARANTINED, FailureState.DISCARDED)


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which events were not read. `end` None: it continues."""

    start: datetime
    end: datetime | None
    missed: int  # executions meanwhile that workers reported later, at least


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Coverage of a source in the last hour."""

    source: str
    share: float | None  # of the jobs that workers ran; None: there were none, or it is unknown
    executed: int  # jobs that workers ran
    seen: int  # of these, jobs whose events were read
    gaps: list[Gap]  # latest first
    silent: list[str]  # workers that send no events about jobs, and have no guard
    workers: int
    heard_at: datetime | None  # time of the latest event
    is_quiet: bool  # events are read, but none arrived for 30 s
    unreadable: int
    dropped: int
    results: str  # as in core.coverage
    failed: int  # jobs whose failure was observed, at most _MOST_COUNTED
    replayable: int  # of these, jobs that could be replayed with the guard
    has_more: bool  # more failed than were counted

    @property
    def percent(self) -> int | None:
        """The share in percent; 100 only if all were observed."""
        return None if self.share is None else 100 if self.share >= 1 else int(self.share * 100)

    @property
    def snippet(self) -> str:
        return snippet(self.source)


def snippet(source: str) -> str:
    """Return the line of code that installs the guard in an app."""
    return f'install(app, source="{source}")'


def is_followed(source: str) -> bool:
    """Return whether a source's failures are read from its events."""
    try:
        return config.adapter(source).can.follows
    except (KeyError, config.SourceRefused):
        return False


def is_queue_unknown(source: str, queue: str) -> bool:
    """Return whether it is the placeholder for jobs whose events name no queue, and so not a queue of the broker."""
    return queue == UNKNOWN_QUEUE and is_followed(source)


def without_guard(sources: Iterable[str]) -> set[str]:
    """Return the followed sources of which no guard has ever reported: none of their failures has a message."""
    followed = [source for source in sources if is_followed(source)]
    unreported = Source.objects.filter(name__in=followed, signed_since=None, unsigned_at=None)
    return set(unreported.values_list("name", flat=True)) if followed else set()


def read(sources: Collection[str], now: datetime) -> dict[str, SourceCoverage]:
    """Return the coverage of the followed sources among these, by name; none if the store does not answer."""
    followed = [source for source in sources if is_followed(source)]
    if not followed:
        return {}
    try:
        store = config.store()
        stored = store.mget([keys.coverage(source) for source in followed])
        found = {source: coverage.parse(text) or Coverage() for source, text in zip(followed, stored, strict=True)}
        silent = {source: _unguarded(store, source, one.silent(), now) for source, one in found.items()}
    except (redis.RedisError, config.BadConfiguration):
        return {}
    return {source: _of_source(source, one, silent[source], now) for source, one in found.items()}


def _unguarded(store: redis.Redis, source: str, names: list[str], now: datetime) -> list[str]:
    return coverage.unguarded(names, store.hmget(keys.workers(source), names), now.timestamp()) if names else []


def _of_source(source: str, found: Coverage, silent: list[str], now: datetime) -> SourceCoverage:
    at = now.timestamp()
    hour = found.last_hour(at)
    gaps = [Gap(_time(gap.start), _time(gap.end), gap.missed) for gap in reversed(found.gaps) if at - gap.end < 3600]
    if found.at and at - found.at > _SILENT_S:
        gaps.insert(0, Gap(_time(found.at), None, 0))
    failed = _failures_of_last_hour(source, now)
    return SourceCoverage(
        source,
        found.share(at),
        hour.executed + hour.missed,
        min(hour.started, hour.executed + hour.missed),  # an event may arrive before the heartbeat that counts its job
        gaps,
        silent,
        len(found.workers),
        _time(found.heard_at) if found.heard_at else None,
        bool(found.heard_at) and at - found.heard_at > _SILENT_S and at - found.at <= _SILENT_S,
        found.unreadable,
        found.dropped,
        found.results,
        len(failed[:_MOST_COUNTED]),
        sum(kind in _REPLAYABLE for kind in failed[:_MOST_COUNTED]),
        len(failed) > _MOST_COUNTED,
    )


def _failures_of_last_hour(source: str, now: datetime) -> list[str]:
    """Return the kinds of observed failures without a report, latest first; at most one more than are counted."""
    latest = Failure.objects.filter(failed_at__gte=now - WINDOW, source=source, state__in=_ENDED, caveats__isnull=False)
    rows = latest.order_by("-failed_at", "-pk").values_list("kind", "caveats")[: _MOST_COUNTED + 1]
    return [kind for kind, caveats in rows if caveats & Caveat.SEEN]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def switch_events(viewer: Viewer, source: str, *, on: bool) -> None:
    """Request all workers of a source to start or stop sending events about jobs. It lasts until a worker restarts.

    Raises Refused; then nothing was sent.
    """
    act = "source.enable_events" if on else "source.disable_events"
    authorize(viewer, ADMIN, source, act, f"source:{source}")
    if not is_followed(source):
        raise Refused("wrong_state", f"{source} is not a source in guest mode (`guard = false`). Nothing was sent.")
    try:
        with transaction.atomic():
            audit.record(viewer, act, f"source:{source}", source=source)
            cast(Any, config.adapter(source)).switch_events(on)
    except SourceError as error:
        raise Refused("unreachable", f"{error} Nothing was sent.") from error
