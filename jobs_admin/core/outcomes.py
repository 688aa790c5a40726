"""Outcomes of attempts that breakers count, and checks of the names and numbers in breaker documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

TASK = "#task:"  # prefix of a task key; no tenant key has it
LONGEST_KEY, LONGEST_TASK = 48, 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt, or of `n` equal ones. Times are Unix seconds."""

    ok: bool | None  # None: ended without evidence about the dependency (only useful with a ticket)
    n: int = 1
    tenant: str = ""  # "" if unknown
    task: str = ""  # "" if unknown
    host: str = ""  # "" if unknown
    subject: str = ""  # digest of task and arguments
    kind: str = ""  # connection, timeout, http 503 …
    wish_s: float | None = None  # Retry-After
    ticket: str = ""  # of a job released from hold
    started_at: float | None = None
    ended_at: float | None = None  # None: the time at which it is counted
    runtime_s: float | None = None
    attempt: int = 1
    error: str = ""  # class and message, redacted
    failed_before: int = 0  # failures as a released job


def tenant_key(tenant: str) -> str:
    """Return the stored form of a tenant: its name if short and plain, else a digest."""
    return tenant if _is_plain(tenant, LONGEST_KEY) else _digest(tenant)


def task_key(task: str) -> str:
    """Return the stored form of a task, distinct from tenants; "" if unknown."""
    return task and TASK + (task if _is_plain(task, LONGEST_TASK) else _digest(task))


def host_key(host: str) -> str:
    """Return the stored form of a host: its name if short and plain, else a digest."""
    return tenant_key(host)


def _is_plain(name: str, most: int) -> bool:
    is_short = len(name) <= most and name[:1] != "#"
    return is_short and name.isascii() and name.isprintable() and '"' not in name and "\\" not in name


def _digest(name: str) -> str:
    return "#" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def subject_digest(subject: str) -> str:
    """Return a short digest of task and arguments; "" if unknown."""
    return subject and hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def check_values(values: Iterable[Any], kind: type) -> None:
    """Raise TypeError unless all values are finite numbers of at least 0 (`float`, `int`), or strings (`str`)."""
    kinds = (int, float) if kind is float else (kind,)
    for value in values:
        if (
            isinstance(value, bool)
            or not isinstance(value, kinds)
            or (isinstance(value, int | float) and not 0 <= value < 1e15)
        ):
            raise TypeError(value)


def clip(text: str, most: int) -> str:
    """Return the start of a text that takes at most `most` characters in JSON."""
    text = text[:most]
    while len(json.dumps(text)) - 2 > most:
        text = text[: len(text) * 3 // 4]
    return text


def finite(seconds: float | None) -> float:
    """Return a delay in seconds, limited to 0 to one day; 0 for None and NaN."""
    return min(86_400.0, max(0.0, seconds)) if seconds is not None and seconds == seconds else 0.0
