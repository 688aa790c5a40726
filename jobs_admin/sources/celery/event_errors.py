"""Errors in Celery's events: class, message and traceback, as the guard would report them."""

from __future__ import annotations

import ast
import re
from typing import Any

from jobs_admin.core.traces import chain_of

LONGEST_REPR = 1_100  # characters; Celery cuts a repr to 1,024

_ERROR = re.compile(r"\s*([A-Za-z_][\w.]{0,200})\(")
# Error class -> kind in the guard's report.
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
    """Return the kind of an error of this class in the guard's report."""
    return _KINDS.get(error_type.rpartition(".")[2], "exception")


def _class_name(error: str) -> str:
    found = _ERROR.match(error)
    return found[1].rpartition(".")[2] if found else ""


def error_type_of(error: str, trace: str) -> str:
    """Return the class of an error: with its module by the traceback, else by the repr."""
    chain = chain_of(trace) if trace else []
    return chain[-1].error if chain and chain[-1].error else _class_name(error)


def error_of(kind: str, error: str, trace: str) -> tuple[str, str]:
    """Return type and message of an error of this kind. `error`: its repr."""
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
    """Return the traceback of the error before Celery's own `Retry`, if the task requested a retry."""
    at = max(trace.rfind(line) for line in _BETWEEN)
    is_after = at > 0 and "\ncelery.exceptions.Retry" in trace[at:]
    return trace[:at].rstrip() + "\n" if is_after else trace


def _message(error: str) -> str:
    """Return an error's message from its repr: its only argument if that is text, else everything in parentheses."""
    if not _class_name(error):
        return error
    inner = error[error.index("(") + 1 :].rstrip()
    inner = inner.removesuffix(")").rstrip(",")
    value = literal(inner)
    return value if isinstance(value, str) else inner


def literal(text: str) -> Any:
    """Return the value of a Python literal; None for other text, such as a truncated repr."""
    if len(text) > LONGEST_REPR or text.count("(") + text.count("[") + text.count("{") > 500:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
