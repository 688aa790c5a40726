"""Coverage of a source whose failures are read from its events: what was seen, and what was missed.

JSON in Redrive's store.

Times are by the desk's clock. An interval without reading is a gap, never a zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs_admin.core import untrusted

UNKNOWN_QUEUE = "unknown"  # of a failure whose events contain no queue
MINUTES = 60  # minutes stored
_MOST_GAPS = 20
_MOST_WORKERS = 500
_QUIET_S = 5.0  # maximum delay of a job's events after the heartbeat that counts it
_GUARDED_S = 30.0  # maximum age of the heartbeat of a live guard
_COUNTS = ("started", "executed", "missed")


@dataclass(slots=True)
class Minute:
    started: int = 0  # executions seen
    executed: int = 0  # executions by the workers' heartbeats in the same time
    missed: int = 0  # executions in a gap that ended in this minute, by heartbeats


@dataclass(slots=True)
class Gap:
    """Interval in which events were not read. Unix seconds."""

    start: float
    end: float
    missed: int = 0  # minimum number of executions in it


@dataclass(slots=True)
class WorkerCoverage:
    pid: int
    processed: int  # jobs since the worker started
    executed: int  # jobs since its events are read
    started: int  # of these, jobs whose events were seen
    at: float
    quiet_since: float = 0.0  # first report of jobs without events; 0: its events arrive

    @property
    def sends_events(self) -> bool | None:
        """Return whether the worker sends task events; None while it has run no job."""
        if not self.executed:
            return None
        return self.started > 0 and not (self.quiet_since and self.at - self.quiet_since > _QUIET_S)


@dataclass(slots=True)
class Coverage:
    at: float = 0.0  # latest reading of events
    since: float = 0.0  # first reading of events
    heard_at: float = 0.0  # time of the latest event
    unreadable: int = 0  # messages that are not events
    dropped: int = 0  # messages lost because they came faster than they were read
    results: str = ""  # state of the result backend: "read", "empty", "" for none, else why it is not read
    minutes: dict[int, Minute] = field(default_factory=dict)  # by minute since 1970
    gaps: list[Gap] = field(default_factory=list)  # oldest first
    workers: dict[str, WorkerCoverage] = field(default_factory=dict)

    def minute(self, now: float) -> Minute:
        """Return the counts of this minute, to be increased. Removes old minutes."""
        this = int(now // 60)
        for old in [m for m in self.minutes if m <= this - MINUTES or m > this + 1]:
            del self.minutes[old]
        return self.minutes.setdefault(this, Minute())

    def add_gap(self, start: float, end: float) -> None:
        self.gaps = [*self.gaps, Gap(start, end)][-_MOST_GAPS:]

    def last_hour(self, now: float) -> Minute:
        """Return the sums of the last hour."""
        total = Minute()
        for at, counts in self.minutes.items():
            if at > now // 60 - MINUTES:
                for name in _COUNTS:
                    setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def share(self, now: float) -> float | None:
        """Return the seen share of the jobs run in the last hour; None if workers ran none."""
        hour = self.last_hour(now)
        ran = hour.executed + hour.missed
        return min(1.0, hour.started / ran) if ran else None

    def silent(self) -> list[str]:
        """Return the workers that send no events about their jobs, sorted."""
        return sorted(name for name, one in self.workers.items() if one.sends_events is False)

    def dump(self) -> str:
        return json.dumps(asdict(self))


def unguarded(names: Sequence[str], heartbeats: Iterable[bytes | None], now: float) -> list[str]:
    """Return those of the workers whose guard, by its latest heartbeat in the store, does not report at `now`."""
    found = []
    for name, text in zip(names, heartbeats, strict=True):
        at = untrusted.moment(untrusted.read_object(text).get("at")) if text else None
        if at is None or now - at.timestamp() > _GUARDED_S:
            found.append(name)
    return found


def parse(text: bytes | str | None) -> Coverage | None:
    """Return the coverage in a stored text; None if there is none."""
    value = untrusted.read_object(text)
    if not value:
        return None
    found = Coverage(
        at=_seconds(value.get("at")) or 0.0,
        since=_seconds(value.get("since")) or 0.0,
        heard_at=_seconds(value.get("heard_at")) or 0.0,
        unreadable=_count(value.get("unreadable")),
        dropped=_count(value.get("dropped")),
        results=untrusted.text(value.get("results"), 500),
    )
    for at, counts in _items(value.get("minutes"))[:MINUTES]:
        if (number := untrusted.integer(at)) is not None and isinstance(counts, dict):
            found.minutes[number] = Minute(**{name: _count(counts.get(name)) for name in _COUNTS})
    gaps = value.get("gaps")
    for gap in gaps[-_MOST_GAPS:] if isinstance(gaps, list) else ():
        start, end = (_seconds(gap.get(name)) if isinstance(gap, dict) else None for name in ("start", "end"))
        if start is not None and end is not None:
            found.gaps.append(Gap(start, end, _count(gap.get("missed"))))
    for name, one in _items(value.get("workers"))[:_MOST_WORKERS]:
        if isinstance(one, dict):
            pid, processed, executed, started = map(_count, map(one.get, ("pid", "processed", "executed", "started")))
            at_s, quiet_s = (_seconds(one.get(name)) or 0.0 for name in ("at", "quiet_since"))
            found.workers[name] = WorkerCoverage(pid, processed, executed, started, at_s, quiet_s)
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _seconds(value: object) -> float | None:
    """Return Unix seconds; None for anything but a time from 1970 to 2999."""
    return untrusted.number(value) if untrusted.moment(value) is not None else None


def _count(value: object) -> int:
    return max(0, int(untrusted.number(value) or 0))
