"""The queue that a job came from: by its delivery, and where that names none, by the bindings of the queues.

A routing key is no queue: a topic exchange takes thousands of them to one, and two queues may share one. A retry goes
back to the queue that the job came from, and policies match by it; so a sure queue is marked apart from one that is
only likely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs_admin.worker.raw_message import Popped

MARK = (
    "redrive_queue"  # among a job's headers on their way to the pool: the queue it came from, "" where that is not sure
)
_PLACE = (
    "_redrive_place"  # on a request: where it came from, asked once, since a consumer's tags change with its connection
)
_MOST_TAGS = 10_000
_WILDCARDS = {"#": ".*?", "*": r"[^\.]+"}  # as kombu reads them


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    is_sure: bool


@lru_cache(maxsize=1000)
def _sure(name: str) -> Place:
    """Asked once a job."""
    return Place(name, True)


@dataclass(frozen=True, slots=True)
class Bound:
    """The messages that one queue gets from one exchange."""

    exchange: str
    kind: str  # of the exchange: direct, topic, fanout, …
    key: str
    queue: str


class Queues:
    """The queues of one worker; used in any thread of its main process."""

    def __init__(
        self, bound: Callable[[], Iterable[Bound]] = tuple, consumed: Callable[[], Collection[str]] = tuple
    ) -> None:
        """`bound`: of all queues that the app knows. `consumed`: the names of those that this worker takes jobs from."""
        self._read = bound
        self._bound = tuple(bound())
        self._consumed = consumed
        self._consumer: Any = None
        self._tags: dict[str, str] = {}  # also those of connections that are no more: their jobs may still run
        # Exchanges that give each worker a copy: such a message lies in no queue that it could go back to.
        self.fanouts = frozenset(one.exchange for one in self._bound if one.kind == "fanout")

    def connected(self, consumer: Any) -> None:
        """After each connection to the broker, before the first message. `consumer` is kombu's."""
        self._bound = tuple(self._read())
        # Elsewhere a tag in a message is what its producer wrote into it.
        is_amqp = hasattr(consumer.channel, "basic_publish_confirm")
        self._consumer = consumer if is_amqp else None

    def find_place(self, message: Any) -> Place:
        """Return where a message came from: its list on Redis, the consumer that RabbitMQ gave it to, else how it was routed."""
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
        """Before a queue is not consumed any more: its consumer's tag is forgotten then, and its messages may still come."""
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
        if not exchange:  # the default exchange, where a routing key is a queue's name
            name = key.partition("\x06\x16")[0]  # `emails\x06\x163` is the list of one priority of `emails`
            return Place(name, bool(name))
        candidates = [one for one in self._bound if one.exchange == exchange]
        fitting = {one.queue for one in candidates if one.key == key or (one.kind == "topic" and _takes(one.key, key))}
        ours = fitting.intersection(self._consumed())
        is_read = all(one.kind in ("direct", "topic") for one in candidates)
        return Place(min(ours or fitting, default=key), is_read and len(ours) == 1)


def place_of(request: Any, queues: Queues) -> Place:
    """Return the place of a job, in the main process."""
    found: Place | None = getattr(request, _PLACE, None)
    if found is None:
        found = queues.find_place(request.message)
        setattr(request, _PLACE, found)
    return found


def hand_over(request: Any, place: Place) -> None:
    """To the process that runs the job, so that both sides go by the same policy."""
    request.request_dict[MARK] = place.name if place.is_sure else ""  # whatever the message said there


def handed_over(context: Any) -> str:
    """In the process that runs the job: the queue it came from, "" where that is not sure.

    To be asked once, before the task's code runs: Celery would hand the mark on to the message of a retry.
    """
    if isinstance(context.headers, dict):
        context.headers.pop(MARK, None)
    name = vars(context).pop(MARK, "")
    return name if isinstance(name, str) else ""


def bound_in(app: Any) -> list[Bound]:
    """Return what a Celery app knows of its queues. Connects to nothing."""
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
