"""Jobs that a dead worker had fetched: reported within a minute, and returned to their queue when an operator requests it.

A worker that gave no sign for SILENT_S is gone. One that was only frozen goes on with its job, so what is put back may run twice,
as it does when its broker gives it to another worker after the visibility timeout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import redis
from django.db import transaction

from jobs_admin import audit, config
from jobs_admin.core import keys
from jobs_admin.core.text import representable
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.sources.base import Finding, GivesBack, SourceError

SILENT_S = 30.0  # without a heartbeat; one is due every 5 s
LOST_FOR_S = 3_600.0  # how long jobs are reported that no broker returns
FINDING = "worker-gone"
_USUAL_TIMEOUT_S = 3_600.0  # kombu's visibility timeout


class StrandedRefused(Exception):
    """Nothing was changed. Codes: forbidden, read_only, not_gone, unreachable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Stranded:
    """The jobs of one life of a worker that is gone. Times are the store's, and of its broker."""

    source: str
    boot: str
    worker: str
    seen_at: datetime
    queues: tuple[str, ...]
    tags: tuple[str, ...]  # of deliveries that its broker holds for it
    returns_at: datetime | None  # of the first job; None: no job returns
    lost: int  # jobs that were acknowledged before they ran: no broker returns these

    @property
    def text(self) -> str:
        """State first: `1 job was running or fetched in worker w1, last seen at 08:01:12 UTC; the job returns at 09:01:05 UTC`."""
        gone = f"in worker {self.worker}, last seen at {self.seen_at:%H:%M:%S} UTC"
        said = []
        if self.tags:
            one = len(self.tags) == 1
            return_ = "the job returns" if one else "the first returns"
            at = "" if self.returns_at is None else f"; {return_} at {self.returns_at:%H:%M:%S} UTC"
            said.append(f"{len(self.tags):,} job{' was' if one else 's were'} running or fetched {gone}{at}.")
        if self.lost:
            one = self.lost == 1
            said.append(
                f"{self.lost:,} job{' was' if one else 's were'} running {gone}; acknowledged on receipt, so "
                f"{'the job does' if one else 'these jobs do'} not return."
            )
        return " ".join(said)


def stranded(source: str, store: redis.Redis | None = None) -> list[Stranded]:
    """Return a source's stranded jobs by worker, and forget workers without any. Raises redis.RedisError, SourceError."""
    store = config.store() if store is None else store
    told: Any = store.hgetall(keys.in_hand())
    places = {
        boot: said
        for place, text in told.items()
        if (parts := place.decode("utf-8", "replace").partition("/"))[0] == source
        and (boot := parts[2]).isalnum()
        and (said := _read(text))
    }
    if not places:
        return []
    pipeline = store.pipeline(transaction=False)
    pipeline.time()
    for boot in places:
        pipeline.zscore(keys.boots(source), boot)
        pipeline.hget(keys.boot(source, boot), "gone")
    (seconds, _), *signs = cast(Any, pipeline.execute())
    found, over = [], []
    for (boot, said), sign, gone in zip(places.items(), signs[::2], signs[1::2], strict=True):
        seen_s = min(float(said["at"]), seconds) if sign is None else sign / 1000
        if seconds - seen_s < SILENT_S and gone is None:
            continue
        one = _of(source, boot, said, seen_s, seconds, has_left=gone is not None)
        if one is not None:
            found.append(one)
        else:
            over.append(f"{source}/{boot}")
    if over:  # no jobs left; a worker that resumes reports its jobs again with the next heartbeat
        store.hdel(keys.in_hand(), *over)
    return sorted(found, key=lambda one: one.seen_at)


def of_queue(source: str, queue: str) -> list[Stranded]:
    """Return the stranded jobs with any of one queue; empty too where the store or the broker does not answer."""
    try:
        return [one for one in stranded(source) if queue in one.queues]
    except (redis.RedisError, SourceError, config.BadConfiguration):
        return []


def _of(
    source: str, boot: str, said: Mapping[str, Any], seen_s: float, now_s: float, *, has_left: bool
) -> Stranded | None:
    jobs = [job for job in said["jobs"] if isinstance(job, list) and len(job) == 5]
    adapter = config.adapter(source)
    fetched: dict[str, float] = {}
    if adapter.can.gives_back:
        fetched = cast(GivesBack, adapter).fetched_at([str(tag) for tag, *_, is_held in jobs if is_held and tag])
    timeout = said.get("visibility_timeout")
    timeout_s = float(timeout) if isinstance(timeout, int | float) else _USUAL_TIMEOUT_S
    # Of a worker that ended in order nothing that it had acknowledged is left undone.
    lost = 0 if has_left or now_s - seen_s > LOST_FOR_S else sum(not job[4] for job in jobs)
    if not fetched and not lost:
        return None
    returns = min(fetched.values(), default=None)
    return Stranded(
        source,
        boot,
        representable(str(said.get("worker", "")))[:255],
        datetime.fromtimestamp(seen_s, UTC),
        tuple(sorted({representable(str(job[3]))[:200] for job in jobs})),
        tuple(fetched),
        None if returns is None else datetime.fromtimestamp(returns + timeout_s, UTC),
        lost,
    )


def findings(source: str) -> list[Finding]:
    """Return the findings about a source's dead workers. Raises redis.RedisError, SourceError."""
    return [
        Finding(
            FINDING,
            "high",
            one.text,
            "Wait, or return the jobs now on the queue's page." if one.tags else
            "Publish a policy with file_lost: such jobs are then filed and can be replayed.",
        )
        for one in stranded(source)
    ]  # fmt: skip


def return_now(viewer: Viewer, source: str, boot: str) -> int:
    """Return a dead worker's fetched jobs to their queues, each once. Return how many. Raises StrandedRefused."""
    refused = None
    if config.is_read_only():
        refused = StrandedRefused("read_only", f"{config.READ_ONLY} Nothing was changed.")
    elif not viewer.may(OPERATOR, source):
        refused = StrandedRefused("forbidden", f"You need the role operator on {source} to return its jobs. Nothing was changed.")
    if refused is not None:
        with transaction.atomic():
            audit.record(viewer, "worker.return", f"worker:{boot}", source=source, reason=refused.message, allowed=False)
        raise refused
    try:
        one = next((one for one in stranded(source) if one.boot == boot and one.tags), None)
        if one is None:
            raise StrandedRefused("not_gone", "This worker is alive, or its jobs have already returned. Nothing was changed.")
        with transaction.atomic():
            audit.record(viewer, "worker.return", f"worker:{one.worker}", source=source, after={"jobs": len(one.tags)})
            return cast(GivesBack, config.adapter(source)).give_back(one.tags)
    except (redis.RedisError, SourceError, config.BadConfiguration) as error:
        raise StrandedRefused("unreachable", f"The jobs could not be returned: {error} Nothing was changed.") from error


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
        return said if isinstance(said, dict) and isinstance(said.get("jobs"), list) and float(said["at"]) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
