"""`Retry` and `failure_ttl` of the jobs in RQ's queues: each distinct set, quoted.

Each job contains its own, set by its producer. So jobs are sampled, the latest and the next of each list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from jobs_admin.core.lint.options import (
    EXPONENTIAL,
    FIXED,
    LINEAR,
    MOST_QUEUES,
    NONE,
    FoundOptions,
    Options,
    SampledQueue,
)
from jobs_admin.core.text import representable
from jobs_admin.sources.rq.job_hash import DEFAULT_FAILURE_TTL, Job, text_of
from jobs_admin.sources.rq.wire import Wire

_JOBS = 2_000  # of a source, sampled each time
_OF_A_LIST = 20  # at each end
_BYTES = 16_384  # maximum size of a job whose task is read; a larger job's task is unknown
_FIELDS = (b"retries_left", b"retry_intervals", b"failure_ttl", b"started_at", b"created_at", b"data")
_LISTS = (("lrange", "queue"), ("zrange", "scheduled"), ("zrange", "failed"))


def sample(wire: Wire, at: float) -> FoundOptions:
    queues = wire.queues()[:MOST_QUEUES]
    counts = wire.counts(queues)
    pipe = wire.client.pipeline(transaction=False)
    for queue in queues:
        for command, kind in _LISTS:
            getattr(pipe, command)(wire.key(kind, queue), 0, _OF_A_LIST - 1)
            getattr(pipe, command)(wire.key(kind, queue), -_OF_A_LIST, -1)
    answers = wire.answers(pipe) if queues else []
    seen: dict[tuple[str, str, str], Options] = {}
    sampled: Counter[str] = Counter()
    each = 2 * len(_LISTS)
    for n, queue in enumerate(queues):
        pages = answers[each * n : each * (n + 1)]
        ids = [text_of(job_id) for page in pages if isinstance(page, list) for job_id in page]
        for job in wire.locate(queue, list(dict.fromkeys(ids))[: max(1, _JOBS // len(queues))], _FIELDS, _BYTES):
            if job.kind != "hash":
                continue
            sampled[queue] += 1
            one = read_job(job)
            key = queue, one.task, one.quoted
            seen[key] = replace(one, jobs=seen[key].jobs + 1) if key in seen else one
    found = tuple(replace(one, sample_size=sampled[one.queue]) for one in seen.values())
    samples = tuple(
        SampledQueue(queue, sampled[queue], sum(n or 0 for n in counts[queue]), counts[queue][-1]) for queue in queues
    )
    return FoundOptions(wire.source, at, found, samples)


def read_job(job: Job) -> Options:
    """Return a job's retries. RQ does not store the initial number: a failed job had at least one per interval."""
    left, ttl = job.number("retries_left"), job.number("failure_ttl")
    has_run = job.time("started_at") is not None
    retries = 0 if left is None else max(left, len(job.intervals)) if has_run else left
    backoff, first_s = _backoff(job.intervals, retries) if retries else (NONE, 0.0)
    task = job.call.function or "unknown"
    return Options(
        queue=job.queue,
        task=representable(task)[:500],
        quoted=_quote(job, retries, has_run),
        attempts=1 + retries,
        backoff=backoff,
        first_delay_s=first_s,
        keeps_s=None if ttl is not None and ttl < 0 else float(DEFAULT_FAILURE_TTL if ttl is None else ttl),
        jobs=1,
        example=job.id,
        newest_at=job.time("created_at"),
    )


def _backoff(intervals: Sequence[float], retries: int) -> tuple[str, float]:
    """Return the curve of the delays, and the first one. With fewer delays than retries, RQ repeats the first."""
    missing = min(max(0, retries - len(intervals)), 50)
    waits = [*(list(intervals[:1]) * missing), *intervals[:50]]
    if not any(waits):
        return NONE, 0.0
    first = waits[0]
    if len(set(waits)) == 1:
        return FIXED, first
    if first > 0 and waits == [first * 2**n for n in range(len(waits))]:
        return EXPONENTIAL, first
    if first > 0 and waits == [first * (n + 1) for n in range(len(waits))]:
        return LINEAR, first
    return "listed intervals", first


def _quote(job: Job, retries: int, has_run: bool) -> str:
    waits = [int(wait) for wait in job.intervals[:20]]
    shown = (
        f"Retry(max={'≥' if has_run else ''}{retries}, interval={waits[0] if len(waits) == 1 else waits})"
        if retries
        else "no Retry"
    )
    ttl = job.number("failure_ttl")
    return shown if ttl is None else f"{shown}, failure_ttl={ttl}"
