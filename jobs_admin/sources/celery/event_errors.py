"""Errors in Celery's events: their class, message and traceback, as the guard would report them."""

from __future__ import annotations

import ast
import re
from typing import Any

from jobs_admin.core.traces import chain_of

LONGEST_REPR = 1_100  # characters; Celery cuts a repr to 1,024

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


def kind_of(error_type: str) -> str:
    """The kind in the guard's report of an error of this class."""
    return _KINDS.get(error_type.rpartition(".")[2], "exception")


def _class_name(error: str) -> str:
    found = _ERROR.match(error)
    return found[1].rpartition(".")[2] if found else ""


def error_type_of(error: str, trace: str) -> str:
    """The class of an error: as its traceback names it, with its module, else as its repr does."""
    chain = chain_of(trace) if trace else []
    return chain[-1].error if chain and chain[-1].error else _class_name(error)


def error_of(kind: str, error: str, trace: str) -> tuple[str, str]:
    """Type and message of an error of this kind. `error` is its repr."""
    if kind == "expired":
        return "celery.exceptions.TaskRevokedError", error
    error_type = error_type_of(error, trace)
    chain = chain_of(trace) if trace else []
    message = chain[-1].message if chain and chain[-1].error else _message(error)
    if kind == "hard_limit":
        seconds = _SECONDS.search(error) or _SECONDS.search(message)
        limit = f"hard time limit of {seconds[1]} s exceeded" if seconds else "hard time limit exceeded"
        return _LIMITS[kind], limit
    if kind == "soft_limit" and message in ("", "SoftTimeLimitExceeded()"):
        return error_type, "soft time limit exceeded"
    return error_type, message


def without_retry(trace: str) -> str:
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
    if len(text) > LONGEST_REPR or text.count("(") + text.count("[") + text.count("{") > 500:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
