"""Retry options of the jobs in a queue system: each distinct way of a queue once, quoted as found.

`document` and `read` are the two ends between what watches and what judges. The content of a queue is hostile text, and
so is what is read here: every value is checked and bounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobs_admin.core import untrusted
from jobs_admin.core.lint.configuration import all_of, unusual

VERSION = 1
MOST_OPTIONS = 500  # distinct ones of a source
MOST_QUEUES = 500
EXPONENTIAL, FIXED, LINEAR, NONE = "exponential", "fixed", "linear", ""


@dataclass(frozen=True, slots=True)
class Options:
    """One distinct way in which jobs of a queue are retried and kept. Seconds; `jobs` and what follows are of those looked at."""

    queue: str
    task: str
    quoted: str = ""  # as it lies there
    attempts: int = 1  # runs in all; 0 and 1 are the same: no retry
    backoff: str = NONE  # exponential, fixed, linear; else the name of what code of a worker decides
    is_named: bool = True  # False: the backoff is written in a way that the system does not know
    first_delay_s: float = 0
    jitter: float = 0  # 0 to 1: so much of each wait may be taken off
    keeps: int | None = None  # dead letters that the system keeps when one of these dies; None: all
    keeps_s: float | None = None  # and for how long; None: for good
    jobs: int = 0
    sample_size: int = 0  # jobs of the queue that were looked at when it was seen last
    example: str = ""  # the id of the newest
    newest_at: float | None = None  # when that one was made, seconds since 1970; None where nothing tells
    stalled: int = 0  # those that lay unfinished without a worker that holds them, at least once
    without_priority: int = 0
    with_priority: int = 0
    first_priority: int = 0  # of these the ones with the highest


@dataclass(frozen=True, slots=True)
class SampledQueue:
    """The part of a queue that was sampled."""

    queue: str
    jobs: int = 0  # looked at
    of: int = 0  # that lie there
    dead: int | None = None  # dead letters that the system keeps of it now
    is_for_dead: bool = False  # its jobs are copies of jobs that died elsewhere


@dataclass(frozen=True, slots=True)
class FoundOptions:
    """The retry options in the queues of one source, as far as they were sampled."""

    source: str
    at: float = 0.0  # seconds since 1970
    options: tuple[Options, ...] = ()
    queues: tuple[SampledQueue, ...] = ()
    left_out: int = 0  # distinct ways beyond what is told

    def find_queue(self, queue: str) -> SampledQueue:
        return next((one for one in self.queues if one.queue == queue), SampledQueue(queue))


def document(found: FoundOptions) -> str:
    """Return the options as JSON, those of the most jobs first; options beyond MOST_OPTIONS are counted."""
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
    """Return what `document` wrote; None where it is no such text, or of a version that means something else."""
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
