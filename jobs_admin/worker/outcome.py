"""Outcome of a Celery request: kind, error, message, trace. Text only.

Everything is read from the text that the pool's child made of the exception. Exceptions are not called here: `__str__`
is user code, and a worker's main process must not wait for it. Only `keep_raised` runs in the child: when Celery
replaces an error that cannot be pickled, the replacement lacks the error's message.
"""

from __future__ import annotations

import copy
import re
import sys
import time
import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError
from celery.utils.serialization import UnpickleableExceptionWrapper

from jobs_admin.worker.decision import GuardRetry
from jobs_admin.worker.sentry import event_of

# Text in a traceback between an error and one raised while handling it.
_WHILE_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n"
_DIRECT_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"

_FARTHEST_S = 1e10
_LONGEST = 64 * 1024  # characters

_POOL_JOB = re.compile(r" Job: \d+\.\Z")


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str  # one of core.envelope.KINDS
    error_type: str
    message: str
    trace: str
    due_at: float | None = None  # Unix seconds; only for `retry`
    event_id: str = ""  # its event in Sentry

    @property
    def counts_as(self) -> str:
        return "retried" if self.kind == "retry" else "failed"


def is_a(thing: object, kinds: Any) -> bool:
    """Return isinstance(thing, kinds) by type: `thing` itself may claim any class, or raise."""
    return issubclass(type(thing), kinds)


def raised(exc_info: Any) -> Any:
    """Return the error that ended a request, without billiard's wrapper."""
    error = exc_info.exception
    return error.exc if is_a(error, ExceptionWithTraceback) else error


def with_error(exc_info: Any, error: BaseException) -> Any:
    """Return the same error info with another error."""
    other = copy.copy(exc_info)
    other.type, other.exception = type(error), error
    return other


def keep_raised(exception: Any = None, einfo: Any = None, **_: Any) -> None:
    """Attach type, message and traceback of an error that Celery replaced to the error info sent to the main process.

    Receiver of Celery's signal `task_failure`, sent in the child while the error is handled. Never raises.
    """
    error = sys.exc_info()[1]
    if error is None or error is exception or einfo is None:
        return
    if not is_a(exception, UnpickleableExceptionWrapper) and not is_a(error, type(exception)):
        return  # sent for another error than the one being handled
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        einfo.redrive_raised = qualified(type(error)), str(error)[:_LONGEST], trace[-_LONGEST:]
    except Exception:  # noqa: S110 - a user's `__str__`: then what Celery made of the error is all there is
        pass


def outcome_of(request: Any, exc_info: Any) -> Outcome | None:
    """Return the outcome of a failed job; None if it did not fail: ignored, requeued, or terminated by an operator."""
    outcome = _read_outcome(request, exc_info)
    return replace(outcome, event_id=event) if outcome and (event := event_of(exc_info)) else outcome


def _read_outcome(request: Any, exc_info: Any) -> Outcome | None:
    error = raised(exc_info)
    trace = exc_info.traceback if isinstance(exc_info.traceback, str) else ""
    if is_a(error, Retry):
        return _retry(request, error, trace)
    if is_a(error, Reject):
        # A requeued message will be delivered again: nothing has ended.
        return None if error.requeue else _outcome("rejected", error, trace)
    if is_a(error, Ignore | Terminated):
        return None
    if is_a(error, SystemExit | KeyboardInterrupt):
        was_requested = getattr(request, "_already_cancelled", False) or getattr(request, "_already_revoked", False)
        return None if was_requested else _outcome("worker_lost", error, trace)
    if is_a(error, WorkerLostError):
        return _worker_lost(request, error, trace)
    if is_a(error, TimeLimitExceeded):
        return Outcome("hard_limit", qualified(TimeLimitExceeded), _limit_exceeded(error.args), trace)
    if is_a(error, SoftTimeLimitExceeded):
        outcome = _outcome("soft_limit", error, trace)
        return (
            _with_message(outcome, "soft time limit exceeded")
            if outcome.message == "SoftTimeLimitExceeded()"
            else outcome
        )
    if is_a(error, MemoryError):
        return _outcome("memory", error, trace)
    if (raised_parts := getattr(exc_info, "redrive_raised", None)) is not None:
        return Outcome("exception", *raised_parts)
    return _as_raised(exc_info.type, _outcome("exception", error, trace))


def has_succeeded(request: Any, exc_info: Any) -> bool:
    """Return whether the job succeeded before its child died: Celery then acknowledges it, and it never runs again.

    Celery asks its result backend first (from 5.7 on), before it handles the lost child.
    """
    error = raised(exc_info)
    was_stored = getattr(request, "_success_was_stored", None)
    return is_a(error, WorkerLostError | SystemExit) and was_stored is not None and bool(was_stored())


def _as_raised(raised: Any, outcome: Outcome) -> Outcome:
    """Return the outcome with the error's true class.

    Celery sends an unpicklable error as its nearest picklable base class, with the true class beside it.
    """
    if not isinstance(raised, type) or not issubclass(raised, BaseException) or raised is UnpickleableExceptionWrapper:
        return outcome
    true = qualified(raised)
    if true == outcome.error_type or not outcome.trace:
        return outcome
    before, found, after = outcome.trace.rpartition(f"\n{outcome.error_type}")
    return Outcome(outcome.kind, true, outcome.message, f"{before}\n{true}{after}" if found else outcome.trace)


def hard_limit(seconds: float | None) -> Outcome:
    """Return the outcome for pools that report a hard limit without an exception (gevent, eventlet)."""
    return Outcome("hard_limit", qualified(TimeLimitExceeded), _limit_exceeded((seconds,)), "")


def expired(request: Any) -> Outcome:
    """Return the outcome of an expired job.

    The message starts with the task, so that expired jobs group by task and not by time.
    """
    late = (datetime.now(request.expires.tzinfo) - request.expires).total_seconds()
    words = f"{request.type} expired {max(0.0, late):.1f} s before a worker came to it, at {request.expires.isoformat()}; it never ran"
    return Outcome("expired", qualified(TaskRevokedError), words, "")


def _limit_exceeded(args: tuple[object, ...]) -> str:
    seconds = next((a for a in args if isinstance(a, int | float)), None)
    return "hard time limit exceeded" if seconds is None else f"hard time limit of {seconds} s exceeded"


def _outcome(kind: str, error: Any, trace: str, due_at: float | None = None) -> Outcome:
    if is_a(error, UnpickleableExceptionWrapper):
        module, name = str(error.exc_module or ""), str(error.exc_cls_name)
        error_type = name if module in {"", "builtins", "__main__"} else f"{module}.{name}"
        # Text from the child, usually `Name(arguments)`, used if the traceback is not the error's own.
        message = _message(error_type, trace) or str(error.text or "")
        return Outcome(kind, error_type, message, trace, due_at)
    error_type = qualified(type(error))
    return Outcome(kind, error_type, _message(error_type, trace), trace, due_at)


def _retry(request: Any, retry: Retry, trace: str) -> Outcome:
    """Return Celery's own retry as the error that caused it, so that it joins the group of its last attempt."""
    due_at = _due_at(retry.when)
    original = _before_the_retry(trace)
    if is_a(retry, GuardRetry) and original != trace and not is_a(retry.exc, UnpickleableExceptionWrapper):
        error_type, message = _last_error(original)
        if error_type:  # the raised error, even if only a base class could be pickled
            return Outcome("retry", error_type, message, original, due_at)
    if retry.exc is not None:
        outcome = _outcome("retry", retry.exc, original, due_at)
        error_type, message = _last_error(original) if original != trace else ("", "")
        arguments = trace.rpartition("Retry")[2]  # ` in 3s: Refused('no')`, written before the error was replaced
        if error_type and f" {error_type.rpartition('.')[2]}(" in arguments:
            # The raised error, even if only a base class could be pickled.
            return Outcome("retry", error_type, message, original, due_at)
        return (
            outcome
            if outcome.message
            else _with_message(outcome, _without_name(str(retry.excs or ""), outcome.error_type))
        )
    if original != trace:  # `self.retry()` inside `except`: the traceback contains the error
        error_type, message = _last_error(original)
        if error_type:
            return Outcome("retry", error_type, message, original, due_at)
    return _outcome("retry", retry, trace, due_at)


def _with_message(outcome: Outcome, message: str) -> Outcome:
    return replace(outcome, message=message)


def _without_name(text: str, error_type: str) -> str:
    """Return `ValueError('no')` as `'no'`: an exception's repr without its name."""
    name = error_type.rpartition(".")[2]
    if text.startswith(f"{name}(") and text.endswith(")"):
        return text[len(name) + 1 : -1].rstrip(",")
    return text


def _worker_lost(request: Any, error: WorkerLostError, trace: str) -> Outcome:
    outcome = _outcome("worker_lost", error, trace)
    outcome = _with_message(outcome, _POOL_JOB.sub("", outcome.message))  # the pool's job number is of no use
    task = request.task
    retries = int(request.request_dict.get("retries") or 0)
    most = getattr(task, "max_retries", None)
    if getattr(task, "retry_on_worker_lost", False) and (most is None or retries < most):
        # Celery 5.7 publishes a retry right after this: the job is not dead.
        return replace(outcome, kind="retry", due_at=time.time() + float(task.default_retry_delay or 0))
    return outcome


def _due_at(when: object) -> float | None:
    if isinstance(when, int | float):
        # A retry in the far future, or NaN: report no time, and no number that JSON cannot represent.
        return time.time() + when if -_FARTHEST_S < when < _FARTHEST_S else None
    if isinstance(when, datetime):
        # Celery publishes a naive eta unchanged, in its own time zone: UTC by default.
        return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
    return None


def qualified(error: type) -> str:
    """Return the class name as in a traceback: no module for built-ins."""
    # Not through the metaclass, which may return anything.
    module, name = (type.__getattribute__(error, part) for part in ("__module__", "__qualname__"))
    if not isinstance(module, str) or module in ("builtins", "__main__"):
        return str(name)
    return f"{module}.{name}"


def _message(error_type: str, trace: str) -> str:
    """Return the text after the error's name at the end of its traceback; may have several lines."""
    for ending in (":", "\n"):
        at = trace.rfind(f"\n{error_type}{ending}")
        if at >= 0:
            return trace[at + len(error_type) + 2 :].strip()
    # Of an exception group, up to its first error.
    _, found, words = trace.rpartition(f"\n  | {error_type}: ")
    return words.partition("\n  +")[0].replace("\n  | ", "\n").strip() if found else ""


def _before_the_retry(trace: str) -> str:
    """Return the traceback without its last part if that only shows the requested retry."""
    # Split at the last separator: earlier ones may be the error's own chain.
    before, found, last = trace.rpartition(max(_WHILE_HANDLING, _DIRECT_CAUSE, key=trace.rfind))
    if found and "Retry" in last[last.rfind("\n", 0, len(last) - 1) :]:
        return before.rstrip("\n") + "\n"
    return trace


def _last_error(trace: str) -> tuple[str, str]:
    """Return name and message of the error at the end of a traceback; ("", "") if it cannot be read."""
    lines = trace[trace.rfind('\n  File "') + 1 :].splitlines()
    for index, line in enumerate(lines):
        if line and not line.startswith(" "):
            name, _, message = line.partition(":")
            if name.replace(".", "").replace("_", "").isalnum():
                return name, "\n".join([message.strip(), *lines[index + 1 :]]).strip()
            break
    return "", ""
