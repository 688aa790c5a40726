"""Coverage of sources whose failures are read from their events: the share that is seen, the gaps, and what a guard would add."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis

from jobs_admin import config
from jobs_admin.core import coverage, keys
from jobs_admin.core.coverage import Coverage
from jobs_admin.models import Failure
from jobs_admin.models.failure import Caveat, FailureState

WINDOW = timedelta(hours=1)
_MOST_COUNTED = 5_000  # failures of the last hour that are read
_SILENT_S = 30.0
# Kinds that the guard captures with a message that can be sent again.
_REPLAYABLE = frozenset({"exception", "soft_limit", "hard_limit", "worker_lost"})
_ENDED = (FailureState.DEAD, FailureState.QUARANTINED, FailureState.DISCARDED)


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which events were not read. `end` None: it lasts."""

    start: datetime
    end: datetime | None
    missed: int  # executions meanwhile that workers reported later, at least


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Coverage of a source in the last hour."""

    source: str
    share: float | None  # of the jobs that workers ran; None: they ran none, or nothing is known
    executed: int  # jobs that workers ran
    seen: int  # of these, jobs whose events were read
    gaps: list[Gap]  # the latest first
    silent: list[str]  # workers that send no events of their jobs
    workers: int
    heard_at: datetime | None  # when the latest event came
    is_quiet: bool  # events are read, and for 30 s none came
    unreadable: int
    dropped: int
    results: str  # as in core.coverage
    failed: int  # jobs seen to fail, at most _MOST_COUNTED
    replayable: int  # of these, jobs that could be replayed with the guard
    has_more: bool  # more failed than were counted

    @property
    def percent(self) -> int | None:
        """The share in percent; 100 only where all were seen."""
        return None if self.share is None else 100 if self.share >= 1 else int(self.share * 100)

    @property
    def snippet(self) -> str:
        return snippet(self.source)


def snippet(source: str) -> str:
    """The line that installs the guard in an app."""
    return f'install(app, source="{source}")'


def is_followed(source: str) -> bool:
    """Return whether a source's failures are read from its events."""
    try:
        return config.adapter(source).can.follows
    except (KeyError, config.SourceRefused):
        return False


def read(sources: Collection[str], now: datetime) -> dict[str, SourceCoverage]:
    """The coverage of those of these sources that are followed, by name; none where the store does not answer."""
    followed = [source for source in sources if is_followed(source)]
    if not followed:
        return {}
    try:
        stored = config.store().mget([keys.coverage(source) for source in followed])
    except (redis.RedisError, config.BadConfiguration):
        return {}
    return {
        source: _of_source(source, coverage.parse(text) or Coverage(), now)
        for source, text in zip(followed, stored, strict=True)
    }


def _of_source(source: str, found: Coverage, now: datetime) -> SourceCoverage:
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
        min(hour.started, hour.executed + hour.missed),  # an event may come before the heartbeat that counts its job
        gaps,
        sorted(name for name, one in found.workers.items() if one.sends_events is False),
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
    """The kinds of failures that were only seen, the latest first; at most one more than are counted."""
    latest = Failure.objects.filter(failed_at__gte=now - WINDOW, source=source, state__in=_ENDED, caveats__isnull=False)
    rows = latest.order_by("-failed_at", "-pk").values_list("kind", "caveats")[: _MOST_COUNTED + 1]
    return [kind for kind, caveats in rows if caveats & Caveat.SEEN]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
