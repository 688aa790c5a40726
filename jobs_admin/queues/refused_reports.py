"""Sources whose workers' reports are refused: unsigned where a signature is required, or signed with an invalid key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import redis

from jobs_admin import config, trust
from jobs_admin.core.figures import clock
from jobs_admin.fleet import heartbeats
from jobs_admin.fleet.heartbeats import WorkerReport
from jobs_admin.installation import COMMAND
from jobs_admin.models import RefusedReports
from jobs_admin.queues import liveness
from jobs_admin.trust import Cause, Trust


@dataclass(frozen=True, slots=True)
class RefusedSource:
    """A source whose reports are refused now."""

    source: str
    queues: frozenset[str] | None  # queues that these workers consume; None: any queue may be affected
    reason: str
    fix: str

    @property
    def sentence(self) -> str:
        """Return the effect on a replay, and what to do."""
        return f"Reports of {self.source} are refused, so job outcomes are unknown ({self.reason}): {self.fix}."

    def concerns(self, queue: str | None) -> bool:
        """Return whether the outcome of a job on this queue may be refused. None: its queue is unknown."""
        return self.queues is None or queue is None or queue in self.queues


def find(now: datetime, sources: Collection[str] | None = None) -> list[RefusedSource]:
    """Return the sources whose reports are refused now, by name. `sources`: only these; None: all configured ones.

    For live workers this is known before any report is refused; for others, it follows from recent refusals.
    """
    names = config.sources().keys() if sources is None else sources
    guarded = [name for name in names if not config.keeps_dead(name)]  # others report without a guard
    if not guarded:
        return []
    known = trust.current()
    lately: dict[str, list[RefusedReports]] = {}
    for row in liveness.recently_refused(now).filter(source__in=guarded):
        lately.setdefault(row.source, []).append(row)
    # A source that needs no signature and was never refused is not checked.
    suspects = {one.source for one in known.keys.values()} | lately.keys()
    names_to_check = sorted(name for name in guarded if name in suspects or known.why_not_unsigned(name, now))
    try:
        workers = heartbeats.worker_reports(now, sources=names_to_check) if names_to_check else []
    except (redis.RedisError, config.BadConfiguration):
        workers = []
    found = (
        _find_refused_source(name, [one for one in workers if one.source == name], lately.get(name, []), known, now)
        for name in names_to_check
    )
    return [one for one in found if one is not None]


def warnings(sources: Collection[str], queues: Collection[str], now: datetime) -> list[str]:
    """Return a sentence for each source whose workers on these queues have their reports refused.

    No queues: any of them.
    """
    return [one.sentence for one in find(now, sources) if not queues or any(one.concerns(queue) for queue in queues)]


def _find_refused_source(
    source: str, workers: list[WorkerReport], lately: list[RefusedReports], known: Trust, now: datetime
) -> RefusedSource | None:
    why = known.why_not_unsigned(source, now)
    unsigned = tuple(one for one in workers if not one.key) if why else ()
    wrong_key = tuple(one for one in workers if one.key and not known.has_key(one.key, source))
    if unsigned or wrong_key:
        queues = {queue for one in (*unsigned, *wrong_key) for queue in one.queues}
        reasons = []
        if unsigned:
            reasons.append(f"{_count_text(unsigned, workers)} not sign them, and {why}")
        if wrong_key:
            reasons.append(f"{_count_text(wrong_key, workers)} not sign with an active key")
        to_do = fix(source, known, now, needs_key=bool(unsigned))
        is_partly_known = any(not one.queues for one in (*unsigned, *wrong_key))
        concerned = None if is_partly_known else frozenset(queues)
        return RefusedSource(source, concerned, "; ".join(reasons), to_do)
    rows = [row for row in lately if _is_current(row, bool(workers), why, known)]
    if not rows:
        return None
    row = max(rows, key=lambda one: one.last_at)
    reason = f"the latest at {clock(row.last_at, now)} UTC: {row.why}"
    to_do = fix(source, known, now, needs_key=row.cause == Cause.UNSIGNED)
    return RefusedSource(source, None, reason, to_do)


def _is_current(row: RefusedReports, has_workers: bool, why_not_unsigned: str, known: Trust) -> bool:
    """Return whether the next report would be refused too, as far as known. All live workers sign."""
    if row.cause == Cause.UNSIGNED:
        return bool(why_not_unsigned) and not has_workers
    believed = known.last_believed(row.source)
    return believed is None or believed <= row.last_at


def _count_text(some: tuple[WorkerReport, ...], workers: list[WorkerReport]) -> str:
    of = f"{len(some):,} of {len(workers):,} workers"
    return f"{of} {'does' if len(some) == 1 else 'do'}"


def fix(source: str, known: Trust, now: datetime, *, needs_key: bool) -> str:
    """Return what ends the refusals, as part of a sentence. `needs_key`: its workers do not sign at all."""
    if not needs_key:
        return f"give its workers an active key (`{COMMAND} source-key list` or `{COMMAND} source-key create {source}`)"
    key = f"give its workers a key (`{COMMAND} source-key create {source}`)"
    if not known.must_sign(source, now):
        key += f" or accept unsigned reports (`{COMMAND} unsigned-reports --until DATE`)"
    return f"{key}, then file the refused reports (`{COMMAND} sources file {source}`)"
