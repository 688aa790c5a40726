"""Parser of Celery's events, treated as untrusted: jobs in workers' hands, ended jobs, and the executions of each
worker.

Only `task-received` contains a job's task and arguments, and only `task-failed` how it ended: the former is stored
until the latter arrives, for a bounded number of jobs.
"""

from __future__ import annotations

import base64
import sys
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.sources.celery import event_errors
from jobs_admin.sources.celery.event_errors import LONGEST_REPR

_MOST_JOBS = 200_000  # in workers' hands, or waiting for another attempt
_MOST_IN_HAND = 20  # attempts of one job
_MOST_WORKERS = 500
_MOST_IN_MESSAGE = 1_000  # events; Celery sends at most 24 at once
_LARGEST_MESSAGE = 4 * 2**20  # bytes
_LONGEST_ID, _LONGEST_NAME = 255, 255  # characters
_MOST_BODIES = 5_000  # remembered to recognise duplicates
_MOST_TASKS = 1_000  # tasks whose successes are counted separately
_MOST_TEXT = 64 * 2**20  # bytes of arguments of jobs in hand
_LONGEST_ERROR, _LONGEST_TRACE = 64 * 1024, 256 * 1024
_MOST_ATTEMPTS = 1_000  # maximum accepted for a job's first event
_MOST_BUFFERED_S = 5.0  # workers send their events within one second
_REJECTED_S = 2.0  # a rejection without a failure within this time is the end of its job


class UnreadableEvent(ValueError):
    """A message without events."""


def body_of_kombu(message: bytes | str) -> bytes | str:
    """Return the body of a message that kombu published on Redis. Raises UnreadableEvent."""
    if len(message) > _LARGEST_MESSAGE:
        raise UnreadableEvent("too large")
    outer = untrusted.read_object(message)
    properties = outer.get("properties")
    body = outer.get("body")
    if not isinstance(body, str) or "json" not in str(outer.get("content-type")):
        raise UnreadableEvent("not a JSON message")
    if isinstance(properties, dict) and properties.get("body_encoding") == "base64":
        try:
            return base64.b64decode(body)
        except ValueError as error:
            raise UnreadableEvent("not base64") from error
    return body


def from_json(body: bytes | str) -> list[dict[str, Any]]:
    """Return the events in a JSON body: one, or a list. Raises UnreadableEvent."""
    if len(body) > _LARGEST_MESSAGE:
        raise UnreadableEvent("too large")
    found = untrusted.read(body)
    events = found if isinstance(found, list) else [found]
    if not events or not all(isinstance(event, dict) for event in events[:_MOST_IN_MESSAGE]):
        raise UnreadableEvent("no event")
    return events[:_MOST_IN_MESSAGE]


@dataclass(slots=True)
class Job:
    """A job in a worker's hands."""

    task: str
    args: str  # Celery's repr, truncated
    kwargs: str
    attempt: int
    worker: str
    due_at: float | None = None  # earliest start, Unix seconds
    queue: str = ""  # by its producer's `task-sent`
    rejected_at: float | None = None
    following: Job | None = None  # its next attempt, already in hand
    is_old: bool = False  # later events were missed, possibly those of its end


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that ended. `attempt` 0: its number is unknown."""

    job_id: str
    kind: str  # as in a report (core.envelope.KINDS)
    attempt: int
    at: float
    worker: str
    job: Job | None  # None: its `task-received` was not read
    error: str = ""  # repr
    trace: str = ""
    duration_s: float | None = None


@dataclass(slots=True)
class Succeeded:
    """Successful jobs of one task in one queue, and the id of one of them."""

    count: int
    job_id: str


@dataclass(slots=True)
class Worker:
    """A worker by its heartbeats. Executions are counted since the first heartbeat read from its current process."""

    pid: int
    processed: int  # since its start, by its latest heartbeat
    at: float  # time when its latest event was read
    executed: int = 0  # by its heartbeats
    started: int = 0  # by its `task-started`
    started_at: float = 0.0  # time when the latest of these was read
    quiet_since: float = 0.0  # first heartbeat that counted jobs without `task-started`; 0: its events arrive


@dataclass(slots=True)
class Events:
    """State of an event stream. `now`: the desk's clock, Unix seconds."""

    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    workers: dict[str, Worker] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    succeeded: dict[tuple[str, str], Succeeded] = field(default_factory=dict)  # by queue ("" unknown) and task
    revoked: int = 0
    unreadable: int = 0
    executed: int = 0  # executions since the last `take`, by heartbeats; and by `task-started`
    started: int = 0
    missed: int = 0  # executions while the stream was not read, by heartbeats
    _sent: OrderedDict[str, str] = field(default_factory=OrderedDict)  # job id -> its queue, until it is received
    _retried: OrderedDict[str, int] = field(default_factory=OrderedDict)  # job id -> its attempts so far
    _finished: OrderedDict[str, None] = field(default_factory=OrderedDict)  # ids of jobs that failed for good
    _rejected: dict[str, None] = field(default_factory=dict)
    _bodies: OrderedDict[int, None] = field(default_factory=OrderedDict)  # hashes
    _text: int = 0  # upper bound of the bytes of arguments

    def is_repeated(self, body: bytes | str) -> bool:
        """Return whether this body was read before: a worker that loses its connection may publish it twice.

        Events contain their time and a logical clock, so different bodies are never equal.
        """
        number = hash(body)
        if number in self._bodies:
            return True
        _remember(self._bodies, number, None, _MOST_BODIES)
        return False

    def add(self, event: dict[str, Any], now: float) -> None:
        """Read an event. Never raises for its content."""
        kind, worker = event.get("type"), untrusted.text(event.get("hostname"), _LONGEST_NAME)
        if not isinstance(kind, str):
            self.unreadable += 1
        elif kind.startswith("worker-"):
            self._add_worker(kind, worker, event, now)
        elif (job_id := untrusted.text(event.get("uuid"), _LONGEST_ID)) and kind.startswith("task-"):
            self._add_task(kind, job_id, worker, event, now)
        elif kind.startswith("task-"):
            self.unreadable += 1

    def take_ended(self, now: float) -> list[Ended]:
        """Return the attempts that ended since the previous call."""
        for job_id in list(self._rejected):
            job = self.jobs.get(job_id)
            if job is None or job.rejected_at is None:
                del self._rejected[job_id]
            elif now - job.rejected_at > _REJECTED_S:
                del self._rejected[job_id], self.jobs[job_id]
                self.ended.append(Ended(job_id, "rejected", job.attempt, job.rejected_at, job.worker, job, "Reject()"))
        ended, self.ended = self.ended, []
        return ended

    def resume(self, known: dict[str, Worker]) -> None:
        """Start after an interval that was not read. `known`: workers before it, by name."""
        self.workers = {name: replace(worker, at=0.0) for name, worker in known.items()}
        self.note_missed()

    def note_missed(self) -> None:
        """Note that events were missed: known jobs may have had further attempts."""
        self._retried.clear()
        for job in self.jobs.values():
            job.is_old = True

    # -- tasks

    def _add_task(self, kind: str, job_id: str, worker: str, event: dict[str, Any], now: float) -> None:
        at = min(untrusted.number(event.get("timestamp")) or now, now)
        if kind == "task-sent":
            if queue := untrusted.text(event.get("queue"), _LONGEST_NAME):
                _remember(self._sent, job_id, queue)
        elif kind == "task-received":
            self._receive(job_id, worker, event)
        elif kind == "task-started":
            if (known := self.workers.get(worker)) is not None and known.at:
                known.started += 1
                known.started_at, known.quiet_since = now, 0.0
                self.started += 1
        elif kind == "task-succeeded":
            self._succeed(job_id, worker, event, at)
        elif kind in ("task-failed", "task-retried"):
            self._fail(kind == "task-retried", job_id, worker, event, at)
        elif kind == "task-rejected":
            job = self.jobs.get(job_id)
            if job is not None and event.get("requeue") is False:
                job.rejected_at = now
                self._rejected[job_id] = None
        elif kind == "task-revoked":
            job = self._take(job_id)
            self._retried.pop(job_id, None)
            if event.get("expired") is True:
                name = job.task if job else "The job"
                error = f"{name} expired before a worker started it"
                self.ended.append(Ended(job_id, "expired", job.attempt if job else 0, at, worker, job, error))
            else:
                self.revoked += 1

    def _receive(self, job_id: str, worker: str, event: dict[str, Any]) -> None:
        before = self.jobs.get(job_id)
        job = Job(
            untrusted.text(event.get("name"), _LONGEST_NAME),
            untrusted.text(event.get("args"), LONGEST_REPR),
            untrusted.text(event.get("kwargs"), LONGEST_REPR),
            self._attempt(job_id, before, event.get("retries")),
            worker,
            untrusted.iso_seconds(event.get("eta")),
            self._sent.pop(job_id, ""),
        )
        if before is not None and before.attempt < job.attempt and not before.is_old:
            # A worker may receive further attempts before it reports the end of the previous one.
            for _ in range(_MOST_IN_HAND):
                if before.following is None or before.following.attempt >= job.attempt:
                    before.following = job
                    break
                before = before.following
        else:
            _remember(self.jobs, job_id, job)
        self._finished.pop(job_id, None)
        self._text += _text_size(job)
        if self._text > _MOST_TEXT:
            self._bound_text()

    def _attempt(self, job_id: str, in_hand: Job | None, retries: object) -> int:
        """Return the attempt of a received job, at most the one after those seen; 0: unknown."""
        number = untrusted.number(retries)
        while in_hand is not None and in_hand.following is not None:
            in_hand = in_hand.following
        seen = max(self._retried.get(job_id, 0), in_hand.attempt if in_hand and not in_hand.is_old else 0)
        if number is None:
            return seen + 1
        if seen:
            return int(max(0, min(number, seen))) + 1
        return int(max(0, number)) + 1 if number < _MOST_ATTEMPTS else 0

    def _bound_text(self) -> None:
        """Measure the arguments of the jobs in hand; if too large, drop the oldest jobs."""
        self._text = sum(_text_size(job) for job in self.jobs.values())
        while self._text > _MOST_TEXT // 2 and self.jobs:
            _, dropped = self.jobs.popitem(last=False)
            self._text -= _text_size(dropped)

    def _take(self, job_id: str, *, is_retry: bool = False) -> Job | None:
        """Return the attempt in hand that ended: for a retry the earliest, otherwise the latest.

        If two attempts end at about the same time, a worker may report the later one first.
        """
        job = self.jobs.get(job_id)
        if job is None or job.following is None:
            return self.jobs.pop(job_id, None)
        if is_retry:
            self.jobs[job_id] = job.following
            return job
        while job.following is not None and job.following.following is not None:
            job = job.following
        last, job.following = job.following, None
        return last

    def _fail(self, is_retry: bool, job_id: str, worker: str, event: dict[str, Any], at: float) -> None:
        job = self._take(job_id, is_retry=is_retry)
        if job is None and job_id in self._finished and not is_retry:
            return  # Celery sends two events for a hard time limit
        error = untrusted.text(event.get("exception"), _LONGEST_ERROR)
        trace = untrusted.text(event.get("traceback"), _LONGEST_TRACE)
        attempt = job.attempt if job else self._retried.get(job_id, -1) + 1
        if is_retry:
            if attempt:
                _remember(self._retried, job_id, attempt)
            kind, trace = "retry", event_errors.without_retry(trace)
        else:
            self._retried.pop(job_id, None)
            _remember(self._finished, job_id, None)
            kind = event_errors.kind_of(event_errors.error_type_of(error, trace))
        self.ended.append(Ended(job_id, kind, attempt, at, worker, job, error, trace))

    def _succeed(self, job_id: str, worker: str, event: dict[str, Any], at: float) -> None:
        job = self._take(job_id)
        key = (job.queue, job.task) if job else ("", "")
        if key not in self.succeeded and len(self.succeeded) >= _MOST_TASKS:
            key = ("", "")
        known = self.succeeded.setdefault(key, Succeeded(0, job_id))
        known.count += 1
        before = self._retried.pop(job_id, 0)
        attempt = job.attempt if job else before + 1 if before else 0
        if attempt != 1:
            duration = untrusted.number(event.get("runtime"))
            self.ended.append(Ended(job_id, "success", attempt, at, worker, job, duration_s=duration))

    # -- workers

    def _add_worker(self, kind: str, name: str, event: dict[str, Any], now: float) -> None:
        pid, processed = untrusted.number(event.get("pid")), untrusted.number(event.get("processed"))
        if not name or pid is None or processed is None or processed < 0:
            self.unreadable += 1
            return
        if kind == "worker-offline":
            self.workers.pop(name, None)
            return
        pid, processed = int(pid), int(processed)
        known = self.workers.get(name)
        if known is None or known.pid != pid:
            if known is None and len(self.workers) >= _MOST_WORKERS:
                del self.workers[min(self.workers, key=lambda one: self.workers[one].at)]
            is_restarted = known is not None and not known.at
            self.workers[name] = known = Worker(pid, 0 if is_restarted else processed, 0.0 if is_restarted else now)
        # Containers give each process of a worker the same pid.
        ran = processed - known.processed if processed >= known.processed else processed
        if known.at:
            known.executed += ran
            self.executed += ran
            late_s = _MOST_BUFFERED_S + min(max(0.0, untrusted.number(event.get("freq")) or 0.0), 3600.0)
            if ran and not known.quiet_since and now - known.started_at > late_s:
                known.quiet_since = now
        else:
            self.missed += ran
        known.processed, known.at = processed, now


def _text_size(job: Job | None) -> int:
    """Return the bytes of the arguments of a job and its further attempts."""
    size = 0
    while job is not None:
        size += sys.getsizeof(job.args) + sys.getsizeof(job.kwargs)
        job = job.following
    return size


def _remember(among: OrderedDict[Any, Any], key: Any, value: Any, most: int | None = None) -> None:
    among[key] = value
    among.move_to_end(key)
    if len(among) > (most or _MOST_JOBS):
        among.popitem(last=False)
