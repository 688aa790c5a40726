"""Retry settings of one live Celery app, as its workers report them. No secrets.

`document` and `read` are the two ends of the wire (JSON). A report is hostile text: every value is checked and bounded, and an
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
    """An empty field says nothing: a setting of a whole app has a source and no task."""

    source: str = ""
    queue: str = ""
    task: str = ""
    policy: str = ""  # its name

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
    """One `self.retry(…)` in a task's own code."""

    quoted: str  # as it is written, strings left out
    countdown: str | None = None  # the expression, constants of its module filled in; None: default_retry_delay
    is_eta: bool = False  # waits until a moment, which cannot be told from the code
    max_retries: str | None = None  # the expression, where the call says one
    is_plain: bool = True  # no other arguments, no other queue: an enforced policy decides in its place


@dataclass(frozen=True, slots=True)
class ClientRetries:
    """A client with retries of its own that the task's code uses."""

    library: str  # tenacity, urllib3, httpx …
    name: str  # as the code calls it
    attempts: int  # in all, the first included


@dataclass(frozen=True, slots=True)
class Task:
    """The retry options of a task after the app's settings, annotations and its own options are merged. Seconds."""

    name: str
    queue: str = ""  # by its routes; "" where a function of the app decides
    max_retries: int | None = 3  # None: without end
    default_retry_delay: float = 180
    autoretry_for: tuple[str, ...] = ()  # qualified names of error classes
    dont_autoretry_for: tuple[str, ...] = ()
    retry_backoff: float = 0  # 0: off
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    autoretry_max_retries: int | None = None  # of retry_kwargs; None: max_retries
    autoretry_countdown: float | None = None  # of retry_kwargs
    idle_backoff: bool = False  # retry_backoff is set, and nothing reads it
    calls: tuple[RetryCall, ...] = ()
    is_unread: bool = False  # its code calls retry and cannot be read
    clients: tuple[ClientRetries, ...] = ()
    acks_late: bool = False
    reject_on_worker_lost: bool = False
    retry_on_worker_lost: bool = False
    time_limit: float | None = None
    soft_time_limit: float | None = None
    rate_limit: str = ""
    stores_result: bool = False
    expires: float | None = None  # seconds after it was sent
    signature: str | None = None  # the arguments that it takes (`core/signature.py`); None: not reported


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    is_durable: bool = True
    kind: str = "classic"  # of RabbitMQ: classic, quorum, stream
    delivery_limit: int | None = None  # of RabbitMQ's quorum queues, where the app sets one
    delays_at_broker: bool = False  # native delayed delivery: a countdown does not wait in a worker


@dataclass(frozen=True, slots=True)
class App:
    """Settings of the whole app. Seconds."""

    broker: str = ""  # the transport: redis, amqp, sqs …
    broker_mark: str = ""  # the same for apps on one broker and database; tells nothing of its address
    visibility_timeout: float | None = None  # None: this broker has none
    result_backend: str = ""  # its kind; "" is none
    result_expires: float | None = None  # None: never
    prefetch_multiplier: int = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of one app, as some of its workers reported it, all of them the same."""

    source: str
    app: App = App()
    queues: tuple[Queue, ...] = ()
    tasks: tuple[Task, ...] = ()
    left_out: int = 0  # tasks beyond what is told
    # Of the workers that told it; not part of the text.
    workers: tuple[str, ...] = ()
    consumed: tuple[str, ...] = ()  # the queues that they take jobs from
    modes: frozenset[str] = frozenset()  # how far each may go: capture, observe, enforce

    def queue(self, name: str) -> Queue | None:
        return next((queue for queue in self.queues if queue.name == name), None)


def document(found: Configuration) -> str:
    """Return the JSON that workers report: without defaults, and without facts that heartbeats carry."""
    given = {
        "v": VERSION,
        "app": unusual(found.app),
        "queues": [unusual(queue) for queue in found.queues],
        "tasks": [unusual(task) for task in found.tasks],
        "left_out": found.left_out,
    }
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def read(text: str | bytes, source: str) -> Configuration | None:
    """Return what `document` wrote; None where it is no such text, or of a version that means something else."""
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


# -- one value ----------------------------------------------------------------------------------------------------

T = TypeVar("T")
_PARTS: dict[str, type[Any]] = {"calls": RetryCall, "clients": ClientRetries}


def unusual(part: Any) -> dict[str, Any]:
    """The fields that are not as the class has them."""
    given = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) != f.default}
    return {name: [unusual(one) for one in value] if name in _PARTS else value for name, value in given.items()}


def all_of(kind: type[T], given: Any, most: int) -> tuple[T, ...]:
    if not isinstance(given, list):
        return ()
    return tuple(one_made for one in given[:most] if (one_made := build_part(kind, one)) is not None)


def build_part(kind: type[T], given: Any) -> T | None:
    """Return one of `kind`; None where a field without default is missing. A value of the wrong kind counts as missing."""
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
    if name == "signature":  # a part of one would refuse what the task takes
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
    """Return the value within 0 and the largest signed 32-bit number; None where it is no number."""
    number = untrusted.number(given)
    return None if number is None else min(max(number, 0), 2**31 - 1)
