"""Retry settings of a live Celery app, as reported by its workers. No secrets.

`document` writes and `read` parses the JSON report. A report is untrusted: every value is checked and bounded, and an
invalid value counts as not reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from jobs_admin.core import signature, untrusted
from jobs_admin.core.text import representable


@dataclass(frozen=True, slots=True, order=True)
class Where:
    """Location of a finding. Empty fields do not apply: a setting of a complete app has a source and no task."""

    source: str = ""
    queue: str = ""
    task: str = ""
    policy: str = ""  # name

    def __str__(self) -> str:
        if self.policy:
            return f"policy {self.policy}"
        return " · ".join(filter(None, (self.source, self.task or (f"queue {self.queue}" if self.queue else ""))))


VERSION = 1
MOST_TASKS = 2_000
MOST_BYTES = 512_000
_LONGEST_NAME = 300
_LONGEST_QUOTE = 300
_MOST_PARTS = 50  # calls, classes, clients of one task


@dataclass(frozen=True, slots=True)
class RetryCall:
    """A `self.retry(…)` call in a task's own code."""

    quoted: str  # source text without strings
    countdown: str | None = None  # expression with module constants substituted; None: default_retry_delay
    is_eta: bool = False  # waits until a time that the code does not show
    max_retries: str | None = None  # expression, if the call has one
    is_plain: bool = True  # no other arguments or queue: an enforced policy replaces the call


@dataclass(frozen=True, slots=True)
class ClientRetries:
    """A client with its own retries that the task's code uses."""

    library: str  # tenacity, urllib3, httpx …
    name: str  # name in the code
    attempts: int  # total, including the first


@dataclass(frozen=True, slots=True)
class Task:
    """Effective retry options of a task, from the app's settings, annotations and its own options. Times in seconds."""

    name: str
    queue: str = ""  # by its routes; "" if a function of the app decides
    max_retries: int | None = 3  # None: unlimited
    default_retry_delay: float = 180
    autoretry_for: tuple[str, ...] = ()  # qualified error classes
    dont_autoretry_for: tuple[str, ...] = ()
    retry_backoff: float = 0  # 0: off
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    autoretry_max_retries: int | None = None  # of retry_kwargs; None: max_retries
    autoretry_countdown: float | None = None  # of retry_kwargs
    idle_backoff: bool = False  # retry_backoff is set but unused
    calls: tuple[RetryCall, ...] = ()
    is_unread: bool = False  # its code calls retry, and its source is not available
    clients: tuple[ClientRetries, ...] = ()
    acks_late: bool = False
    reject_on_worker_lost: bool = False
    retry_on_worker_lost: bool = False
    time_limit: float | None = None
    soft_time_limit: float | None = None
    rate_limit: str = ""
    stores_result: bool = False
    expires: float | None = None  # seconds after sending
    signature: str | None = None  # arguments (`core/signature.py`); None: not reported


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    is_durable: bool = True
    kind: str = "classic"  # of RabbitMQ: classic, quorum, stream
    delivery_limit: int | None = None  # of RabbitMQ's quorum queues, if the app sets one
    delays_at_broker: bool = False  # native delayed delivery: delayed jobs do not wait in a worker


@dataclass(frozen=True, slots=True)
class App:
    """Settings of an app. Times in seconds."""

    broker: str = ""  # transport: redis, amqp, sqs …
    broker_mark: str = ""  # equal for apps with the same broker and database; does not reveal the address
    visibility_timeout: float | None = None  # None: not supported by this broker
    result_backend: str = ""  # its type; "": none
    result_expires: float | None = None  # None: never expires
    prefetch_multiplier: int = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """Configuration of one app, as reported identically by some of its workers."""

    source: str
    app: App = App()
    queues: tuple[Queue, ...] = ()
    tasks: tuple[Task, ...] = ()
    left_out: int = 0  # number of tasks omitted from the report
    # Workers that reported it; not part of the report.
    workers: tuple[str, ...] = ()
    consumed: tuple[str, ...] = ()  # queues they consume
    modes: frozenset[str] = frozenset()  # their highest modes: capture, observe, enforce

    def queue(self, name: str) -> Queue | None:
        return next((queue for queue in self.queues if queue.name == name), None)


def document(found: Configuration) -> str:
    """Return the JSON report, without defaults and without facts that heartbeats contain."""
    given = {
        "v": VERSION,
        "app": unusual(found.app),
        "queues": [unusual(queue) for queue in found.queues],
        "tasks": [unusual(task) for task in found.tasks],
        "left_out": found.left_out,
    }
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def read(text: str | bytes, source: str) -> Configuration | None:
    """Return the configuration in a report; None for any other text, and for incompatible versions."""
    given = untrusted.read_object(text)
    if given.get("v") != VERSION:
        return None
    return Configuration(
        source,
        build_part(App, given.get("app")) or App(),
        all_of(Queue, given.get("queues"), MOST_TASKS),
        all_of(Task, given.get("tasks"), MOST_TASKS),
        left_out=_integer(given.get("left_out")) or 0,
    )


# -- one value -----------------------------------------------------------------------------------------------------

T = TypeVar("T")
_PARTS: dict[str, type[Any]] = {"calls": RetryCall, "clients": ClientRetries}


def unusual(part: Any) -> dict[str, Any]:
    """Return the fields that differ from the class's defaults."""
    given = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) != f.default}
    return {name: [unusual(one) for one in value] if name in _PARTS else value for name, value in given.items()}


def all_of(kind: type[T], given: Any, most: int) -> tuple[T, ...]:
    if not isinstance(given, list):
        return ()
    return tuple(one_made for one in given[:most] if (one_made := build_part(kind, one)) is not None)


def build_part(kind: type[T], given: Any) -> T | None:
    """Return an instance of `kind`; None if a field without default is missing.

    A value of the wrong type counts as missing.
    """
    if not isinstance(given, Mapping):
        return None
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in given and (value := _value(field.name, str(field.type), given[field.name])) is not _MISSING:
            values[field.name] = value
    try:
        return kind(**values)
    except TypeError:
        return None


_MISSING = object()


def _value(name: str, kind: str, given: Any) -> Any:
    if name in _PARTS:
        return all_of(_PARTS[name], given, _MOST_PARTS)
    if kind.endswith("| None") and given is None:
        return None
    kind = kind.removesuffix(" | None")
    if kind == "bool":
        return given if isinstance(given, bool) else _MISSING
    if name == "signature":  # a truncated signature would refuse valid calls
        return given if isinstance(given, str) and len(given) <= signature.LONGEST and given.isprintable() else _MISSING
    if kind == "str":
        most = _LONGEST_QUOTE if name in ("quoted", "countdown", "max_retries") else _LONGEST_NAME
        return representable(given)[:most] if isinstance(given, str) else _MISSING
    if kind == "tuple[str, ...]":
        named = given if isinstance(given, list) else []
        return tuple(representable(one)[:_LONGEST_NAME] for one in named[:_MOST_PARTS] if isinstance(one, str))
    number = _number(given)
    if number is None:
        return _MISSING
    return int(number) if kind == "int" else number


def _integer(given: Any) -> int | None:
    number = _number(given)
    return None if number is None else int(number)


def _number(given: Any) -> float | None:
    """Return the number, limited to 0 … 2**31 - 1; None for anything else."""
    number = untrusted.number(given)
    return None if number is None else min(max(number, 0), 2**31 - 1)
