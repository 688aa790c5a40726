"""Queue of a job, by its delivery or else by the bindings of the queues.

A routing key is no queue: a topic exchange routes thousands of keys to one queue, and two queues may share a key. A
retry returns to its job's queue, and policies match by it, so certain queues are distinguished from likely ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs_admin.worker.raw_message import Popped

MARK = "redrive_queue"  # header on the way to the pool: the job's queue, "" if not certain
_FIRST = "redrive_first_protocol"  # header on the way to the pool, if the message is of Celery's protocol 1
_PLACE = (
    "_redrive_place"  # request attribute: the place, looked up once because consumer tags change with the connection
)
_MOST_TAGS = 10_000
_WILDCARDS = {"#": ".*?", "*": r"[^\.]+"}  # as in kombu


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    is_sure: bool


@lru_cache(maxsize=1000)
def _sure(name: str) -> Place:
    """Return a certain place, cached because it is needed per job."""
    return Place(name, True)


@dataclass(frozen=True, slots=True)
class Bound:
    """Binding: messages of one exchange that one queue receives."""

    exchange: str
    kind: str  # of the exchange: direct, topic, fanout, …
    key: str
    queue: str


class Queues:
    """Queues of one worker, for any thread of its main process."""

    def __init__(
        self, bound: Callable[[], Iterable[Bound]] = tuple, consumed: Callable[[], Collection[str]] = tuple
    ) -> None:
        """`bound`: bindings of all queues known to the app.

        `consumed`: names of the queues that this worker consumes.
        """
        self._read = bound
        self._bound = tuple(bound())
        self._consumed = consumed
        self._consumer: Any = None
        self._tags: dict[str, str] = {}  # including tags of closed connections: their jobs may still run
        # Exchanges that give each worker a copy: such a message has no queue to return to.
        self.fanouts = frozenset(one.exchange for one in self._bound if one.kind == "fanout")

    def connected(self, consumer: Any) -> None:
        """Read the bindings after each connection to the broker, before the first message. `consumer` is kombu's."""
        self._bound = tuple(self._read())
        # On other brokers, a tag in a message was written by its producer.
        is_amqp = hasattr(consumer.channel, "basic_publish_confirm")
        self._consumer = consumer if is_amqp else None

    def find_place(self, message: Any) -> Place:
        """Return a message's place: its Redis list, the consumer that RabbitMQ delivered it to, or else its routing."""
        payload = getattr(message, "_raw", None)
        if isinstance(payload, Popped) and payload.queue:
            return _sure(payload.queue)
        delivery = message.delivery_info or {}
        exchange, key = str(delivery.get("exchange") or ""), str(delivery.get("routing_key") or "")
        if exchange in self.fanouts:
            return Place(
                next((one.queue for one in self._bound if (one.exchange, one.key) == (exchange, key)), key), False
            )
        name = self._by_tag(delivery.get("consumer_tag"))
        return Place(name, True) if name else self._routed(exchange, key)

    def remember(self) -> None:
        """Store the consumer tags before a queue is cancelled: kombu then forgets its tag, but its messages may
        still come.
        """
        if self._consumer is not None:
            self._tags.update({active: name for name, active in list(self._consumer._active_tags.items())})

    def _by_tag(self, tag: object) -> str:
        if self._consumer is None or not isinstance(tag, str):
            return ""
        if tag not in self._tags:
            if len(self._tags) > _MOST_TAGS:
                self._tags.clear()
            self.remember()
        return self._tags.get(tag, "")

    def _routed(self, exchange: str, key: str) -> Place:
        if not exchange:  # default exchange: a routing key is a queue's name
            name = key.partition("\x06\x16")[0]  # `emails\x06\x163` is the list of one priority of `emails`
            return Place(name, bool(name))
        candidates = [one for one in self._bound if one.exchange == exchange]
        fitting = {one.queue for one in candidates if one.key == key or (one.kind == "topic" and _takes(one.key, key))}
        ours = fitting.intersection(self._consumed())
        is_read = all(one.kind in ("direct", "topic") for one in candidates)
        return Place(min(ours or fitting, default=key), is_read and len(ours) == 1)


def place_of(request: Any, queues: Queues) -> Place:
    """Return a job's place, in the main process."""
    found: Place | None = getattr(request, _PLACE, None)
    if found is None:
        found = queues.find_place(request.message)
        setattr(request, _PLACE, found)
    return found


def hand_over(request: Any, place: Place) -> None:
    """Pass the place to the process that runs the job, so that both use the same policy."""
    request.request_dict[MARK] = place.name if place.is_sure else ""  # overwrite any value in the message
    request.request_dict[_FIRST] = is_first_protocol(request.message)


def is_first_protocol(message: Any) -> bool:
    """Return whether a message lacks the headers of Celery's protocol 2, so its retries cannot be counted in it."""
    return not (isinstance(message.headers, dict) and message.headers.get("task"))


def handed_over(context: Any) -> tuple[str, bool]:
    """Return a job's queue ("" if not certain), and whether its message is of Celery's protocol 1, in the process that
    runs it.

    Call it once, before the task's code runs: Celery would copy the marks to the message of a retry.
    """
    if isinstance(context.headers, dict):
        for mark in (MARK, _FIRST):
            context.headers.pop(mark, None)
    name, is_first = vars(context).pop(MARK, ""), vars(context).pop(_FIRST, False)
    return name if isinstance(name, str) else "", is_first is True


def bound_in(app: Any) -> list[Bound]:
    """Return the bindings known to a Celery app. Does not connect."""
    found = []
    for name, queue in list(app.amqp.queues.items()):
        own = (queue.exchange, queue.routing_key or name)
        for exchange, key in (own, *((one.exchange, one.routing_key or "") for one in queue.bindings or ())):
            found.append(
                Bound(getattr(exchange, "name", "") or "", getattr(exchange, "type", "") or "direct", str(key), name)
            )
    return found


def _takes(pattern: str, key: str) -> bool:
    return _compiled(pattern).fullmatch(key) is not None


@lru_cache(1_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(r"\.".join(_WILDCARDS.get(word, re.escape(word)) for word in pattern.split(".")))
