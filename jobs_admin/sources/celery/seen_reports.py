"""Reports of jobs seen only in Celery's events and result backend: redacted, without a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jobs_admin.core import display
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.sources.celery import event_errors
from jobs_admin.sources.celery.events import Ended
from jobs_admin.sources.celery.results import Result


def report_of_end(source: str, queue_of: Callable[[str], str], ended: Ended, stored: Result | None) -> Envelope:
    """Return the report of an attempt that ended. `stored`: its job's result.

    `queue_of` returns the queue of a task.
    """
    job = ended.job
    is_success = ended.kind == "success"
    error_type, message = ("", "") if is_success else event_errors.error_of(ended.kind, ended.error, ended.trace)
    task, trace, attempt = job.task if job else "", ended.trace, ended.attempt
    args, kwargs = (_arguments(job.args, []), _arguments(job.kwargs, {})) if job else ("", "")
    queue = job.queue if job else ""
    if stored is not None:
        # Its facts about the job are valid even if it belongs to another attempt.
        task, queue = task or stored.task, stored.queue or queue
        args = stored.args if stored.args not in (None, "") else args
        kwargs = stored.kwargs if stored.kwargs not in (None, "") else kwargs
        is_uncertain = not attempt or (job is not None and job.is_old)
        if is_uncertain and stored.retries is not None and stored.status == "FAILURE" and ended.kind != "retry":
            attempt = max(attempt, stored.retries + 1)
    if ended.kind == "unknown_task":
        task = task or message
    return _envelope(
        source, queue or queue_of(task), ended.job_id, ended.kind, attempt, ended.at, task, ended.worker, error_type,
        message, trace, args, kwargs, ended.duration_s,
    )  # fmt: skip


def report_of_result(source: str, queue_of: Callable[[str], str], stored: Result) -> Envelope:
    """Return the report of a job from its stored result."""
    attempt = 0 if stored.retries is None else stored.retries + 1
    kind = "success" if stored.status == "SUCCESS" else event_errors.kind_of(stored.error_type)
    at = stored.at if stored.at is not None else time.time()
    task = stored.task or (stored.message if kind == "unknown_task" else "")
    return _envelope(
        source, stored.queue or queue_of(task), stored.job_id, kind, attempt, at, task, stored.worker,
        stored.error_type, stored.message, stored.trace, stored.args, stored.kwargs, None,
    )  # fmt: skip


def _envelope(
    source: str, queue: str, job_id: str, kind: str, attempt: int, at: float, task: str, worker: str, error_type: str,
    message: str, trace: str, args: Any, kwargs: Any, duration_s: float | None,
) -> Envelope:  # fmt: skip
    is_success = kind == "success"
    shown_args, shown_kwargs = _display(args), _display(kwargs)
    secrets = named_values(args, kwargs)
    message, in_message = without_values(message, secrets)
    trace, in_trace = without_values(trace, secrets)
    error, stack = display.shown_message(message), display.shown_trace(trace)
    hidden = shown_args.redacted + shown_kwargs.redacted + error.redacted + stack.redacted + in_message + in_trace
    return Envelope(
        source=source,
        queue=queue,
        task=task,
        job_id=job_id,
        kind=kind,
        attempt=attempt,
        at=at,
        error_type="" if is_success else error_type,
        message="" if is_success else error.text,
        duration_s=duration_s,
        worker=worker,
        host=worker.rpartition("@")[2],
        args=shown_args.text,
        kwargs=shown_kwargs.text,
        redacted=hidden,
        is_seen=True,
        trace="" if is_success else stack.text,
    )


def _arguments(text: str, empty: Any) -> Any:
    """Return the arguments in Celery's repr: as values, or as text without the truncated end."""
    if not text:
        return ""
    value = event_errors.literal(text)
    if value is None:
        return text if text.endswith((")", "]", "}")) else text[: max(text.rfind(","), 0)] + " …"
    return list(value) if isinstance(value, tuple) else value if value else empty


def _display(value: Any) -> display.Shown:
    if value is None or value == "":
        return display.Shown("", 0)
    return display.shown_json(value)
