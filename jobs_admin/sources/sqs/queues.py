"""Queues of an SQS source: discovery of source queues and their dead-letter queues, attributes and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from jobs_admin.core import untrusted
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.sqs.settings import Settings
from jobs_admin.sources.sqs.wire import NoSuchQueue, Wire

MOST_QUEUES = 500  # per prefix
_AT_ONCE = 8  # requests: SQS has no call for several queues
_FOUND_FOR_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Attributes of one queue. Counts are approximate: SQS has no exact ones."""

    visible: int
    in_flight: int
    delayed: int
    retention_s: int
    target: str  # its dead-letter queue; "" without a redrive policy
    max_receives: int | None  # None without a redrive policy

    @property
    def count(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class DeadQueue:
    name: str
    of: tuple[str, ...] = ()  # source queues: their redrive policy names it


@dataclass(frozen=True, slots=True)
class Found:
    queues: tuple[str, ...]  # without dead-letter queues
    dead: tuple[DeadQueue, ...]
    max_receives: Mapping[str, int | None]  # by queue
    unread: Mapping[str, str]  # queues whose redrive policy cannot be read, and why
    left_out: int = 0  # queues above MOST_QUEUES
    live: tuple[
        str, ...
    ] = ()  # of `queues`: named by redrive policies, but jobs may be waiting there (`Queues.is_live`)


States = dict[str, QueueState | SourceRefused]


class Queues:
    """Queues of one source. Thread-safe. Raises like `Wire.call`."""

    def __init__(self, wire: Wire, settings: Settings) -> None:
        self._wire, self._settings = wire, settings
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}
        self._largest: dict[str, int] = {}
        self._found: tuple[float, Found] | None = None

    def find(self) -> Found:
        """Return the queues of the source, cached for a minute."""
        with self._lock:
            found = self._found
        if found is None or time.monotonic() - found[0] > _FOUND_FOR_S:
            found = time.monotonic(), self._discover()
            with self._lock:
                self._found = found
        return found[1]

    def ping(self) -> None:
        """Raise SourceUnreachable if SQS does not answer. A missing or denied queue is an answer."""
        name = next(iter((*self._settings.queues, *self._settings.dead)), "")
        try:
            if name:
                self._wire.call("get_queue_url", QueueName=name)
            else:
                self._wire.call("list_queues", QueueNamePrefix=self._settings.prefix, MaxResults=1)
        except SourceRefused:
            pass

    def url(self, name: str) -> str:
        """Return the URL of a queue. Raises NoSuchQueue."""
        with self._lock:
            url = self._urls.get(name)
        return url or self.prove(name)

    def prove(self, name: str) -> str:
        """Request the URL of a queue even if it is cached, which also replaces a stale connection.

        Raises NoSuchQueue.
        """
        try:
            url = str(self._wire.call("get_queue_url", QueueName=name)["QueueUrl"])
        except NoSuchQueue as error:
            self.forget(name)
            raise NoSuchQueue(f"{self._wire.where} has no queue {name!r}.") from error
        with self._lock:
            self._urls[name] = url
        return url

    def forget(self, name: str) -> None:
        with self._lock:
            self._urls.pop(name, None)

    def states(self, names: Iterable[str]) -> States:
        """Return the state of each queue, or the refusal. Raises SourceUnreachable."""
        wanted = list(dict.fromkeys(names))
        return dict(zip(wanted, _at_once(self._state, wanted), strict=True))

    def is_live(self, name: str, state: QueueState | SourceRefused | None) -> bool:
        """Return whether the target of a redrive policy may hold waiting jobs, as a retry queue does.

        Such a queue is not drained.
        """
        if name in self._settings.dead:
            return False
        return name in self._settings.queues or (isinstance(state, QueueState) and bool(state.target))

    def largest(self, name: str) -> int:
        """Return the maximum message size of a queue in bytes; 0 if unknown. Raises SourceUnreachable."""
        if name not in self._largest:
            self._state(name)
        return self._largest.get(name, 0)

    def _state(self, name: str) -> QueueState | SourceRefused:
        try:
            given = self._wire.call("get_queue_attributes", QueueUrl=self.url(name), AttributeNames=["All"])
        except SourceRefused as error:
            self.forget(name)
            self._largest.setdefault(name, 0)
            return error
        values: dict[str, str] = given.get("Attributes", {})
        policy = untrusted.read_object(values.get("RedrivePolicy"))
        most = untrusted.integer(str(policy.get("maxReceiveCount", "")))
        self._largest[name] = untrusted.integer(values.get("MaximumMessageSize")) or 0
        return QueueState(
            visible=untrusted.integer(values.get("ApproximateNumberOfMessages")) or 0,
            in_flight=untrusted.integer(values.get("ApproximateNumberOfMessagesNotVisible")) or 0,
            delayed=untrusted.integer(values.get("ApproximateNumberOfMessagesDelayed")) or 0,
            retention_s=untrusted.integer(values.get("MessageRetentionPeriod")) or 0,
            target=name_of(str(policy.get("deadLetterTargetArn", ""))),
            max_receives=most,
        )

    def _discover(self) -> Found:
        names = list(self._settings.queues)
        left_out = 0
        if self._settings.prefix:
            listed = list(self._listed())
            names += listed[:MOST_QUEUES]
            left_out = max(0, len(listed) - MOST_QUEUES)
        states = self.states(names)
        targets = {name: state.target for name, state in states.items() if isinstance(state, QueueState)}
        named = self._settings.dead or tuple(dict.fromkeys(one for one in targets.values() if one))
        if not self._settings.dead:
            states |= self.states(name for name in named if name not in states)
        live = tuple(name for name in named if self.is_live(name, states.get(name)))
        dead = [name for name in named if name not in live]
        origins = _at_once(lambda name: self._origins(name, targets), dead)
        found = tuple(DeadQueue(name, of) for name, of in zip(dead, origins, strict=True))
        all_names = dict.fromkeys((*names, *live, *(one for of in origins for one in of)))
        others = [name for name in all_names if name not in dead]
        states |= self.states(name for name in others if name not in states)
        receives = {name: state.max_receives for name, state in states.items() if isinstance(state, QueueState)}
        unread = {name: str(states[name]) for name in names if name not in receives and not self._settings.dead}
        return Found(tuple(others), found, receives, unread, left_out, live)

    def _listed(self) -> Iterator[str]:
        pages = self._pages("list_queues", "QueueUrls", QueueNamePrefix=self._settings.prefix, MaxResults=1000)
        return (name_of(url, "/") for url in pages)

    def _origins(self, dead: str, targets: dict[str, str]) -> tuple[str, ...]:
        try:
            pages = self._pages("list_dead_letter_source_queues", "queueUrls", QueueUrl=self.url(dead))
            return tuple(sorted(name_of(url, "/") for url in pages))
        except SourceRefused:  # missing permission: use the known redrive policies
            return tuple(sorted(name for name, target in targets.items() if target == dead))

    def _pages(self, operation: str, member: str, **given: object) -> Iterator[str]:
        token: str | None = ""
        while token is not None:
            answer = self._wire.call(operation, **given, **({"NextToken": token} if token else {}))
            yield from answer.get(member, [])
            token = answer.get("NextToken")


def _at_once(call: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """Call for each queue in parallel. Return the answers in order."""
    if len(names) < 2:
        return [call(name) for name in names]
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(names)))
    try:
        return list(pool.map(call, names))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a hanging call does not delay another's error


def name_of(address: str, separator: str = ":") -> str:
    """Return the name of a queue: the last part of its ARN or URL."""
    return address.rpartition(separator)[2]
