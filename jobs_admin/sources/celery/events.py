"""Celery's events, read as hostile text: the jobs in workers' hands, the jobs that ended, and what each worker has run.

`task-received` alone names a job's task and arguments, and `task-failed` alone how it ended: the former is remembered until
the latter comes, for a bounded number of jobs.
"""

from __future__ import annotations

import ast
import base64
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.traces import chain_of

_MOST_JOBS = 200_000  # in workers' hands, or waiting for another attempt
_MOST_IN_HAND = 20  # attempts of one job
_MOST_WORKERS = 500
_MOST_IN_MESSAGE = 1_000  # events; Celery sends at most 24 together
_LARGEST_MESSAGE = 4 * 2**20  # bytes
_LONGEST_ID, _LONGEST_NAME, _LONGEST_REPR = 255, 255, 1_100  # characters; Celery cuts a repr to 1,024
_MOST_TEXT = 64 * 2**20  # bytes of the arguments of jobs in hand
_LONGEST_ERROR, _LONGEST_TRACE = 64 * 1024, 256 * 1024
_MOST_ATTEMPTS = 2**31 - 1
_REJECTED_S = 2.0  # a rejection without a failure beside it for so long is the end of its job

_ERROR = re.compile(r"\s*([A-Za-z_][\w.]{0,200})\(")
# An error's class -> how the guard reports it.
_KINDS = {
    "SoftTimeLimitExceeded": "soft_limit",
    "TimeLimitExceeded": "hard_limit",
    "WorkerLostError": "worker_lost",
    "MemoryError": "memory",
    "Reject": "rejected",
    "NotRegistered": "unknown_task",
}
_BETWEEN = (
    "\nDuring handling of the above exception, another exception occurred:\n",
    "\nThe above exception was the direct cause of the following exception:\n",
)
_SECONDS = re.compile(r"\((\d{1,9}(?:\.\d{1,9})?),?\)")
_LIMITS = {
    "soft_limit": "billiard.exceptions.SoftTimeLimitExceeded",
    "hard_limit": "billiard.exceptions.TimeLimitExceeded",
}


class UnreadableEvent(ValueError):
    """A message that holds no events."""


def from_kombu(message: bytes | str) -> list[dict[str, Any]]:
    """The events in a message as kombu publishes it on Redis. Raises UnreadableEvent."""
    if len(message) > _LARGEST_MESSAGE:
        raise UnreadableEvent("too large")
    outer = untrusted.read_object(message)
    properties = outer.get("properties")
    body = outer.get("body")
    if not isinstance(body, str) or "json" not in str(outer.get("content-type")):
        raise UnreadableEvent("not a JSON message")
    if isinstance(properties, dict) and properties.get("body_encoding") == "base64":
        try:
            body = base64.b64decode(body)
        except ValueError as error:
            raise UnreadableEvent("not base64") from error
    return from_json(body)


def from_json(body: bytes | str) -> list[dict[str, Any]]:
    """The events in a JSON body: one, or a list of them. Raises UnreadableEvent."""
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
    args: str  # Celery's repr, cut
    kwargs: str
    attempt: int
    worker: str
    due_at: float | None = None  # the time before which its worker does not start it, seconds since 1970
    rejected_at: float | None = None
    following: Job | None = None  # its next attempt, in hand already


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
class Worker:
    """A worker by its heartbeats. Counts of executions since the first heartbeat that was read of this process of it."""

    pid: int
    processed: int  # by its latest heartbeat, since its start
    at: float  # when its latest event was read
    executed: int = 0  # by its heartbeats
    started: int = 0  # by its `task-started`


@dataclass(slots=True)
class Events:
    """State of a stream of events that is read. `now` is the desk's clock, seconds since 1970."""

    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    workers: dict[str, Worker] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    succeeded: int = 0
    revoked: int = 0
    unreadable: int = 0
    executed: int = 0  # since `take`: executions by heartbeats, and by `task-started`
    started: int = 0
    missed: int = 0  # executions while this stream was not read, as far as heartbeats report them
    _retried: OrderedDict[str, int] = field(default_factory=OrderedDict)  # job id -> its attempts so far
    _finished: OrderedDict[str, None] = field(default_factory=OrderedDict)  # ids of jobs that failed for good
    _rejected: dict[str, None] = field(default_factory=dict)
    _text: int = 0  # at most so many bytes of arguments

    def add(self, event: dict[str, Any], now: float) -> None:
        """Read an event. Never raises on what it contains."""
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
        """Attempts that ended since the call before."""
        for job_id in list(self._rejected):
            job = self.jobs.get(job_id)
            if job is None or job.rejected_at is None:
                del self._rejected[job_id]
            elif now - job.rejected_at > _REJECTED_S:
                del self._rejected[job_id], self.jobs[job_id]
                self.ended.append(Ended(job_id, "rejected", job.attempt, job.rejected_at, job.worker, job, "Reject()"))
        ended, self.ended = self.ended, []
        return ended

    def resume(self, known: dict[str, tuple[int, int]]) -> None:
        """Begin after an interval that was not read. `known`: worker -> its pid and its count of executions before it."""
        self.workers = {name: Worker(pid, processed, 0.0) for name, (pid, processed) in known.items()}

    # -- tasks

    def _add_task(self, kind: str, job_id: str, worker: str, event: dict[str, Any], now: float) -> None:
        at = min(untrusted.number(event.get("timestamp")) or now, now)
        if kind == "task-received":
            self._receive(job_id, worker, event, now)
        elif kind == "task-started":
            if (known := self.workers.get(worker)) is not None and known.at:
                known.started += 1
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

    def _receive(self, job_id: str, worker: str, event: dict[str, Any], now: float) -> None:
        retries = untrusted.number(event.get("retries")) or 0
        job = Job(
            untrusted.text(event.get("name"), _LONGEST_NAME),
            untrusted.text(event.get("args"), _LONGEST_REPR),
            untrusted.text(event.get("kwargs"), _LONGEST_REPR),
            min(max(0, int(retries)), _MOST_ATTEMPTS - 1) + 1,
            worker,
            _seconds(event.get("eta")),
        )
        before = self.jobs.get(job_id)
        if before is not None and before.attempt < job.attempt:
            # A worker may receive the next attempts before it says how the last one ended.
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

    def _bound_text(self) -> None:
        """Measure the arguments of the jobs in hand; where they are too much, drop the jobs that are longest in hand."""
        self._text = sum(_text_size(job) for job in self.jobs.values())
        while self._text > _MOST_TEXT // 2 and self.jobs:
            _, dropped = self.jobs.popitem(last=False)
            self._text -= _text_size(dropped)

    def _take(self, job_id: str, *, is_retry: bool = False) -> Job | None:
        """The attempt in hand that ended: the earliest by a retry, by any other end the latest.

        Of two attempts that end at about the same time, a worker may report the later one first.
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
            return  # for a hard time limit Celery sends two
        error = untrusted.text(event.get("exception"), _LONGEST_ERROR)
        trace = untrusted.text(event.get("traceback"), _LONGEST_TRACE)
        attempt = job.attempt if job else self._retried.get(job_id, -1) + 1
        if is_retry:
            _remember(self._retried, job_id, attempt or 1)
            kind, trace = "retry", _without_retry(trace)
        else:
            self._retried.pop(job_id, None)
            _remember(self._finished, job_id, None)
            kind = kind_of(_error_type(error, trace))
        self.ended.append(Ended(job_id, kind, attempt, at, worker, job, error, trace))

    def _succeed(self, job_id: str, worker: str, event: dict[str, Any], at: float) -> None:
        self.succeeded += 1
        job = self._take(job_id)
        before = self._retried.pop(job_id, 0)
        attempt = job.attempt if job else before + 1
        if attempt > 1:
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
        # Containers give each process of a worker the same number.
        ran = processed - known.processed if processed >= known.processed else processed
        if known.at:
            known.executed += ran
            self.executed += ran
        else:
            self.missed += ran
        known.processed, known.at = processed, now


def _text_size(job: Job | None) -> int:
    """Bytes of the arguments of a job and of its further attempts."""
    size = 0
    while job is not None:
        size += sys.getsizeof(job.args) + sys.getsizeof(job.kwargs)
        job = job.following
    return size


def _remember(among: OrderedDict[str, Any], job_id: str, value: Any) -> None:
    among[job_id] = value
    among.move_to_end(job_id)
    if len(among) > _MOST_JOBS:
        among.popitem(last=False)


def kind_of(error_type: str) -> str:
    """The kind in the guard's report of an error of this class."""
    return _KINDS.get(error_type.rpartition(".")[2], "exception")


def _class_name(error: str) -> str:
    found = _ERROR.match(error)
    return found[1].rpartition(".")[2] if found else ""


def _error_type(error: str, trace: str) -> str:
    """The class of an error: as its traceback names it, with its module, else as its repr does."""
    chain = chain_of(trace) if trace else []
    return chain[-1].error if chain and chain[-1].error else _class_name(error)


def error_of(ended: Ended) -> tuple[str, str]:
    """Type and message of an error, as the guard would report them."""
    if ended.kind == "expired":
        return "celery.exceptions.TaskRevokedError", ended.error
    error_type = _error_type(ended.error, ended.trace)
    chain = chain_of(ended.trace) if ended.trace else []
    message = chain[-1].message if chain and chain[-1].error else _message(ended.error)
    if ended.kind == "hard_limit":
        seconds = _SECONDS.search(ended.error) or _SECONDS.search(message)
        return _LIMITS[
            ended.kind
        ], f"hard time limit of {seconds[1]} s exceeded" if seconds else "hard time limit exceeded"
    if ended.kind == "soft_limit" and message in ("", "SoftTimeLimitExceeded()"):
        return error_type, "soft time limit exceeded"
    return error_type, message


def _without_retry(trace: str) -> str:
    """The traceback of the error for which a task asked to be retried, where Celery's own `Retry` was raised after it."""
    at = max(trace.rfind(line) for line in _BETWEEN)
    is_after = at > 0 and "\ncelery.exceptions.Retry" in trace[at:]
    return trace[:at].rstrip() + "\n" if is_after else trace


def _message(error: str) -> str:
    """The text of an error by its repr: its only argument, where that is text, else what is between its parentheses."""
    if not _class_name(error):
        return error
    inner = error[error.index("(") + 1 :].rstrip()
    inner = inner.removesuffix(")").rstrip(",")
    value = literal(inner)
    return value if isinstance(value, str) else inner


def literal(text: str) -> Any:
    """The value of a Python literal; None where the text is none, such as a repr that was cut."""
    if len(text) > _LONGEST_REPR or text.count("(") + text.count("[") + text.count("{") > 500:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _seconds(eta: object) -> float | None:
    if not isinstance(eta, str) or len(eta) > 64:
        return None
    try:
        at = datetime.fromisoformat(eta)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
