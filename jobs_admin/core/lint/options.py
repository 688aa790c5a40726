"""Retry options of the jobs in a queue system: distinct options per queue, quoted as found.

`document` writes and `read` parses them, between sampler and lint. Queue contents are untrusted: every value is checked
and bounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobs_admin.core import untrusted
from jobs_admin.core.lint.configuration import all_of, unusual

VERSION = 1
MOST_OPTIONS = 500  # distinct options per source
MOST_QUEUES = 500
EXPONENTIAL, FIXED, LINEAR, NONE = "exponential", "fixed", "linear", ""
EXPONENTIAL_OF_BULL = "exponential-bull"  # delay * (2 ** n - 1) after attempt n


@dataclass(frozen=True, slots=True)
class Options:
    """Distinct retry and storage options of jobs in a queue.

    Times in seconds; `jobs` and later fields count sampled jobs.
    """

    queue: str
    task: str
    quoted: str = ""  # as found
    attempts: int = 1  # total; 0 and 1 both mean no retry
    backoff: str = NONE  # exponential, fixed, linear; else the name of a worker's custom backoff
    is_named: bool = True  # False: the backoff is in an unknown format
    first_delay_s: float = 0
    jitter: float = 0  # 0 to 1: share of each delay that may be subtracted
    keeps: int | None = None  # dead letters that the system stores when one of these jobs dies; None: all
    keeps_s: float | None = None  # and for how long; None: forever
    jobs: int = 0
    sample_size: int = 0  # jobs of the queue in the latest sample
    example: str = ""  # id of the latest job
    newest_at: float | None = None  # its creation time, Unix seconds; None if unknown
    stalled: int = 0  # jobs left unfinished without a worker at least once
    without_priority: int = 0
    with_priority: int = 0
    first_priority: int = 0  # those with the highest priority


@dataclass(frozen=True, slots=True)
class SampledQueue:
    """Sampling of a queue."""

    queue: str
    jobs: int = 0  # sampled jobs
    of: int = 0  # jobs in the queue
    dead: int | None = None  # dead letters currently stored for it
    is_for_dead: bool = False  # its jobs are copies of jobs that died elsewhere


@dataclass(frozen=True, slots=True)
class FoundOptions:
    """Sampled retry options in the queues of one source."""

    source: str
    at: float = 0.0  # Unix seconds
    options: tuple[Options, ...] = ()
    queues: tuple[SampledQueue, ...] = ()
    left_out: int = 0  # number of distinct options omitted

    def find_queue(self, queue: str) -> SampledQueue:
        return next((one for one in self.queues if one.queue == queue), SampledQueue(queue))


def document(found: FoundOptions) -> str:
    """Return the options as JSON, most jobs first; options beyond MOST_OPTIONS are only counted."""
    listed = sorted(found.options, key=lambda one: (-one.jobs, one.queue, one.task, one.quoted))[:MOST_OPTIONS]
    values = {
        "v": VERSION,
        "at": found.at,
        "options": [unusual(one) for one in listed],
        "queues": [unusual(one) for one in found.queues[:MOST_QUEUES]],
        "left_out": found.left_out + len(found.options) - len(listed),
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def read(text: str | bytes, source: str) -> FoundOptions | None:
    """Return the options in a document; None for any other text, and for incompatible versions."""
    values = untrusted.read_object(text)
    if values.get("v") != VERSION:
        return None
    at, left_out = untrusted.moment(values.get("at")), untrusted.number(values.get("left_out")) or 0
    return FoundOptions(
        source,
        at.timestamp() if at is not None else 0.0,
        tuple(sorted(all_of(Options, values.get("options"), MOST_OPTIONS), key=lambda one: (one.queue, one.task, one.quoted))),
        all_of(SampledQueue, values.get("queues"), MOST_QUEUES),
        max(0, int(left_out)),
    )  # fmt: skip
