"""Jobs that a dead worker had fetched: reported within a minute, and returned to their queue on request.

A worker without a heartbeat for SILENT_S counts as dead. A worker that was only suspended continues its job, so a
returned job may run twice, as it does when the broker redelivers it after the visibility timeout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import redis
from django.db import transaction

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.figures import clock
from jobs_admin.core.matching import chosen
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.fleet import worker_store
from jobs_admin.installation import COMMAND
from jobs_admin.models import Failure, PolicyVersion, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.sources.base import Finding, GivesBack, SourceError

SILENT_S = 30.0  # without a heartbeat; one is due every 5 s
LOST_FOR_S = 3_600.0  # how long jobs are reported that no broker returns
FINDING = "worker-gone"
ON_THE_WAY = (FailureState.RETRYING, FailureState.REPLAYING)  # states of a job that a worker may have
_USUAL_TIMEOUT_S = 3_600.0  # kombu's visibility timeout
_LONGEST_TIMEOUT_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Stranded:
    """The jobs of one boot of a dead worker. Times are by the clocks of the store and of its broker."""

    source: str
    boot: str
    worker: str
    seen_at: datetime
    queues: tuple[str, ...]
    tags: tuple[str, ...]  # of deliveries that its broker reserves for it
    returns_at: datetime | None  # of the first job; None: no job returns
    # Jobs that were acknowledged before they ran and that no policy files: the broker does not redeliver them.
    lost: int
    returning_jobs: tuple[str, ...] = ()  # ids of the jobs that return
    lost_jobs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """State first: `1 job was running or fetched in worker w1, last seen at 08:01:12 UTC; the job returns at 09:01:05 UTC`."""
        gone = f"in worker {self.worker}, last seen at {_time_of_day(self.seen_at)}"
        sentences = []
        if self.tags:
            one = len(self.tags) == 1
            return_ = "the job returns" if one else "the first returns"
            at = "" if self.returns_at is None else f"; {return_} at {_time_of_day(self.returns_at)}"
            sentences.append(f"{len(self.tags):,} job{' was' if one else 's were'} running or fetched {gone}{at}.")
        if self.lost:
            one = self.lost == 1
            sentences.append(
                f"{self.lost:,} job{' was' if one else 's were'} running {gone}; acknowledged on receipt, so "
                f"{'the job is' if one else 'these jobs are'} lost."
            )
        return " ".join(sentences)

    @property
    def fix(self) -> str:
        """Suggested action."""
        parts = []
        if self.tags:
            parts.append(f"Wait, or return the jobs now: on the queue’s page, or with {COMMAND} workers return.")
        if self.lost:
            parts.append("Publish a policy with file_lost: such jobs are then filed and can be replayed.")
        return " ".join(parts)


def _time_of_day(at: datetime) -> str:
    """Return `08:01:12 UTC`; of another day than today `29 Nov 08:01:12 UTC`."""
    return f"{clock(at, datetime.now(UTC), with_seconds=True)} UTC"


def find_stranded(source: str, store: redis.Redis | None = None) -> list[Stranded]:
    """Return a source's stranded jobs by worker, and forget workers without any. Raises redis.RedisError, SourceError."""
    store = config.store() if store is None else store
    reported = worker_store.fields(store, "in-hand", [source])
    places = {
        boot: values for (_, boot), text in reported.items() if boot.isalnum() and (values := _parse_fetched(text))
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
    for (boot, values), sign, gone in zip(places.items(), signs[::2], signs[1::2], strict=True):
        seen_s = min(float(values["at"]), seconds) if sign is None else sign / 1000
        if seconds - seen_s < SILENT_S and gone is None:
            continue
        one = _build_stranded(source, boot, values, seen_s, seconds, has_left=gone is not None)
        if one is not None:
            found.append(one)
        else:
            over.append((source, boot))
    if over:  # no jobs left; a worker that resumes reports its jobs again with the next heartbeat
        worker_store.forget_fields(store, "in-hand", over)
    return sorted(found, key=lambda one: one.seen_at)


def find_for_queue(source: str, queue: str) -> list[Stranded]:
    """Return the stranded jobs with any of one queue; empty also if the store or the broker does not answer."""
    return [one for one in _find_or_empty(source) if queue in one.queues]


def find_for_job(source: str, job_id: str) -> Stranded | None:
    """Return the dead worker that had this job; None also if the store or the broker does not answer."""
    return next((one for one in _find_or_empty(source) if job_id in one.returning_jobs + one.lost_jobs), None)


def stranded_ids(failures: Iterable[Failure]) -> set[int]:
    """Return the ids of those failures whose job a dead worker had.

    Reads a source's store only if `sample` found some.
    """
    jobs = {(one.source, one.job_id): one.pk for one in failures if one.state in ON_THE_WAY}
    if not jobs:
        return set()
    gone = find_reported({source for source, _ in jobs})
    return {
        pk
        for (source, job_id), pk in jobs.items()
        if any(job_id in one.returning_jobs + one.lost_jobs for one in gone.get(source, ()))
    }


def find_reported(sources: Iterable[str]) -> dict[str, list[Stranded]]:
    """Return the stranded jobs by source, if `sample` found some; none if the store or the broker does not answer."""
    known = Source.objects.filter(name__in=sources).values_list("name", "findings")
    return {name: _find_or_empty(name) for name, findings in known if has_finding(findings)}


def has_finding(findings: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether `sample` found such jobs, by a source's findings."""
    return any(one.get("id") == FINDING for one in findings)


def list_stranded(viewer: Viewer) -> list[Stranded]:
    """Return the stranded jobs of all configured sources that the viewer sees.

    Raises Refused if the store or a broker does not answer.
    """
    try:
        return [one for source in config.sources() if viewer.may(VIEWER, source) for one in find_stranded(source)]
    except (redis.RedisError, SourceError, config.BadConfiguration) as error:
        raise Refused("unreachable", f"The store or a broker does not answer: {error}") from error


def _find_or_empty(source: str) -> list[Stranded]:
    try:
        return find_stranded(source)
    except (redis.RedisError, SourceError, config.BadConfiguration):
        return []


def _build_stranded(
    source: str, boot: str, values: Mapping[str, Any], seen_s: float, now_s: float, *, has_left: bool
) -> Stranded | None:
    entries = [job for job in values["jobs"] if isinstance(job, list) and len(job) == 5]
    jobs = [[*(untrusted.text(part, 255) for part in job[:4]), bool(job[4])] for job in entries]
    adapter = config.adapter(source)
    fetched: dict[str, float] = {}
    if adapter.can.gives_back:
        fetched = cast(GivesBack, adapter).fetched_at(
            [tag for tag, *_, is_unacknowledged in jobs if is_unacknowledged and tag]
        )
    timeout_s = min(untrusted.number(values.get("visibility_timeout")) or _USUAL_TIMEOUT_S, _LONGEST_TIMEOUT_S)
    # A worker that shut down cleanly leaves no acknowledged job undone.
    is_lost = not has_left and now_s - seen_s <= LOST_FOR_S
    lost = _unfiled(source, [job for job in jobs if is_lost and not job[4]])
    if not fetched and not lost:
        return None
    returns = min(fetched.values(), default=None)
    return Stranded(
        source,
        boot,
        untrusted.text(values.get("worker"), 255),
        datetime.fromtimestamp(seen_s, UTC),
        tuple(sorted({job[3][:200] for job in jobs})),
        tuple(fetched),
        None if returns is None else datetime.fromtimestamp(returns + timeout_s, UTC),
        len(lost),
        tuple(job[1] for job in jobs if job[0] in fetched),
        tuple(job[1] for job in lost),
    )


def _unfiled(source: str, jobs: list[list[Any]]) -> list[list[Any]]:
    """Return the jobs that no policy with `file_lost` files (`lost_jobs.py`)."""
    if not jobs:
        return []
    policies = _policies()
    return [
        job
        for job in jobs
        if (policy := chosen(policies, source, job[3], job[2])) is None
        or not policy.file_lost
        or policy.mode != ENFORCE
    ]


def _policies() -> list[Policy]:
    """Return the policies in force that this version can read."""
    found = []
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        with contextlib.suppress(Refused):
            found.append(version.policy)
    return found


def findings(source: str) -> list[Finding]:
    """Return the findings about a source's dead workers. Raises redis.RedisError, SourceError."""
    return [Finding(FINDING, "high", one.text, one.fix) for one in find_stranded(source)]


def return_jobs(viewer: Viewer, source: str, boot: str) -> int:
    """Return a dead worker's fetched jobs to their queues, each once. Return their number. Raises Refused."""
    message = "You need the role {role} on {where} to return its jobs. Nothing was changed."
    authorize(viewer, OPERATOR, source, "worker.return", f"worker:{boot}", message=message)
    try:
        one = next((one for one in find_stranded(source) if one.boot == boot and one.tags), None)
        if one is None:
            raise Refused("not_gone", "This worker is alive, or its jobs have already returned. Nothing was changed.")
    except (redis.RedisError, SourceError, config.BadConfiguration) as error:
        raise Refused("unreachable", f"The jobs could not be returned: {error} Nothing was changed.") from error
    adapter = cast(GivesBack, config.adapter(source))
    with transaction.atomic():  # committed before the act, which a rollback could not undo
        audit.record(viewer, "worker.return", f"worker:{one.worker}", source=source, after={"jobs": len(one.tags)})
    try:
        return adapter.give_back(one.tags)
    except SourceError as error:
        message, after = _outcome(one, adapter, str(error))
        with transaction.atomic():
            audit.record(
                viewer, "worker.return", f"worker:{one.worker}", source=source, reason=message[:500], after=after
            )
        raise Refused("unreachable", message) from error


def _outcome(one: Stranded, adapter: GivesBack, error: str) -> tuple[str, dict[str, int] | None]:
    """Return the result for jobs whose return failed: as a message, and as numbers; None: unknown."""
    jobs, error = len(one.tags), f"{error.rstrip('.')}."
    again = "Return them again: each job is put on its queue at most once."
    try:
        left = len(adapter.fetched_at(one.tags))
    except SourceError:
        which = "whether the job was returned" if jobs == 1 else f"which of the {jobs:,} jobs were returned"
        return f"The broker does not answer, so it is not known {which}: {error} {again}", None
    at = "" if one.returns_at is None else f" at {_time_of_day(one.returns_at)}"
    if not left:
        all_ = "The job was" if jobs == 1 else f"All {jobs:,} jobs were"
        return f"{all_} returned, but the broker then failed: {error}", {"jobs": jobs, "left": 0}
    done = "No job was returned" if left == jobs else f"{jobs - left:,} of {jobs:,} jobs were returned to their queues"
    rest = f"{left:,} {'is' if left == 1 else 'are'} still held for worker {one.worker}, the first to return{at}."
    return f"{done}: {error} {rest} {again}", {"jobs": jobs - left, "left": left}


def _parse_fetched(text: bytes) -> dict[str, Any] | None:
    values = untrusted.read_object(text)
    return values if isinstance(values.get("jobs"), list) and untrusted.moment(values.get("at")) else None
