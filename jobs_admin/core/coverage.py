"""Coverage of a source whose failures are read from its events: what was seen, and what was missed. JSON in Redrive's store.

A minute, as all times here, is by the desk's clock. An interval in which nothing was read is a gap, never a zero.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs_admin.core import untrusted

UNKNOWN_QUEUE = "unknown"  # of a failure whose events name no queue
MINUTES = 60  # that are stored
_MOST_GAPS = 20
_MOST_WORKERS = 500
_QUIET_S = 5.0  # events of a job may come so long after the heartbeat that counts it
_COUNTS = ("started", "executed", "missed")


@dataclass(slots=True)
class Minute:
    started: int = 0  # executions that were seen
    executed: int = 0  # executions by the heartbeats of workers, in the same time
    missed: int = 0  # executions in a gap that ended in this minute, as far as heartbeats report them


@dataclass(slots=True)
class Gap:
    """An interval in which events were not read. Seconds since 1970."""

    start: float
    end: float
    missed: int = 0  # executions meanwhile, at least


@dataclass(slots=True)
class WorkerCoverage:
    pid: int
    processed: int  # jobs since its start
    executed: int  # jobs since it is read
    started: int  # of these, those whose events were seen
    at: float
    quiet_since: float = 0.0  # when it first reported jobs without events of them; 0: their events come

    @property
    def sends_events(self) -> bool | None:
        """Return whether it sends events of tasks; None while it has run no job."""
        if not self.executed:
            return None
        return self.started > 0 and not (self.quiet_since and self.at - self.quiet_since > _QUIET_S)


@dataclass(slots=True)
class Coverage:
    at: float = 0.0  # when events were last read
    since: float = 0.0  # when the first were read
    heard_at: float = 0.0  # when the latest event came
    unreadable: int = 0  # messages that are no events
    dropped: int = 0  # messages that came faster than they could be read
    results: str = ""  # state of the result backend: "read", "empty", "" for none, else why it is not read
    minutes: dict[int, Minute] = field(default_factory=dict)  # by minute since 1970
    gaps: list[Gap] = field(default_factory=list)  # oldest first
    workers: dict[str, WorkerCoverage] = field(default_factory=dict)

    def minute(self, now: float) -> Minute:
        """The counts of this minute, to be added to. Forgets those that are too old."""
        this = int(now // 60)
        for old in [m for m in self.minutes if m <= this - MINUTES or m > this + 1]:
            del self.minutes[old]
        return self.minutes.setdefault(this, Minute())

    def add_gap(self, start: float, end: float) -> None:
        self.gaps = [*self.gaps, Gap(start, end)][-_MOST_GAPS:]

    def last_hour(self, now: float) -> Minute:
        """The sums of the last hour."""
        total = Minute()
        for at, counts in self.minutes.items():
            if at > now // 60 - MINUTES:
                for name in _COUNTS:
                    setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def share(self, now: float) -> float | None:
        """The share of the jobs run in the last hour that was seen; None where workers ran none."""
        hour = self.last_hour(now)
        ran = hour.executed + hour.missed
        return min(1.0, hour.started / ran) if ran else None

    def dump(self) -> str:
        return json.dumps(asdict(self))


def parse(text: bytes | str | None) -> Coverage | None:
    """The coverage in a stored text; None where there is none."""
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
    """Seconds since 1970; None for what is no time from 1970 to 2999."""
    return untrusted.number(value) if untrusted.moment(value) is not None else None


def _count(value: object) -> int:
    return max(0, int(untrusted.number(value) or 0))
