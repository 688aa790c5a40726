"""Messages out of a queue of RabbitMQ, fetched one by one and many on the way at a time; and the queue's declared
settings.

Fetched, not consumed: a consumer that leaves takes an auto-delete queue with it, and one that comes may hold back
others. What was fetched and not acknowledged is in its old place again as soon as its channel is closed (classic
queues).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from amqp import spec
from amqp.exceptions import AMQPError, PreconditionFailed

from jobs_admin.sources.amqp.wire import Received, Wire

_MOST_ON_THE_WAY = 50
_BYTES_ON_THE_WAY = 4_000_000
_ANSWERS = [spec.Basic.GetOk, spec.Basic.GetEmpty]
_NO_TYPE = "redrive-which"  # no queue is of this type, so a declaration never creates one
_MOST_QUESTIONS = 24
_DIFFERS = re.compile(
    r"inequivalent arg '([\w-]+)' for queue .* but current is "
    r"(?:the value '(.*)' of type '(\w+)'|none|'((?!true'|false')\w+)'|'(true|false)')\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Taken:
    tag: int
    redelivered: bool
    message: Received
    exchange: str
    routing_key: str


def fetch(channel: Any, queue: str, most: int, most_bytes: float = float("inf")) -> Generator[Taken, None, None]:
    """Up to `most` messages, and a little more than `most_bytes`, none of them acknowledged; ends where the queue has none that
    is ready."""
    at_once, left, size, on_the_way = 1, most, 0, 0
    try:
        while left > 0 and size < most_bytes:
            at_once = min(at_once, left)
            for _ in range(at_once):
                channel.send_method(spec.Basic.Get, "Bsb", (0, queue, False))
                on_the_way += 1
            largest, is_empty = 1, False
            while on_the_way:
                answer = channel.wait(_ANSWERS, returns_tuple=True)
                on_the_way -= 1
                if not answer or len(answer) < 2:
                    is_empty = True
                    continue
                tag, redelivered, exchange, routing_key, _, message = answer
                largest, size = max(largest, message.body_size), size + message.body_size
                yield Taken(tag, bool(redelivered), message, exchange, routing_key)
            if is_empty:
                return
            left -= at_once
            at_once = max(1, min(at_once * 2, _MOST_ON_THE_WAY, _BYTES_ON_THE_WAY // largest))
    except GeneratorExit:
        for _ in range(on_the_way):  # else they would be taken for answers to the next request
            channel.wait(_ANSWERS, returns_tuple=True)
        raise


def read_settings(wire: Wire, queue: str) -> dict[str, Any]:
    """Settings that the queue was declared with, without the `x-`: `queue-type` (`classic`, `quorum`, `stream` …),
    `message-ttl`, `delivery-limit`. Not those of policies. Empty where they are unknown: without the right to
    configure the queue, or without the queue.

    RabbitMQ reveals a queue's settings only to a declaration that differs, one difference at a time: so a queue of an
    impossible type is declared. Nothing is made or changed by that. Raises as `Wire`.
    """
    declared: dict[str, Any] = {"x-queue-type": _NO_TYPE}
    options = {"durable": True, "auto_delete": False, "exclusive": False}
    channel = wire.channel()
    try:
        return _probe_settings(wire, channel, queue, declared, options)
    finally:
        if wire.is_open:
            channel.close()


def _probe_settings(
    wire: Wire, channel: Any, queue: str, declared: dict[str, Any], options: dict[str, bool]
) -> dict[str, Any]:
    for _ in range(_MOST_QUESTIONS):
        try:
            channel.queue_declare(queue, arguments=declared, **options)
        except PreconditionFailed as error:
            found = _DIFFERS.search(str(error))
            if found is None:
                return {}
            name, value, kind, bare, current = found.groups()
            if name == "x-queue-type":
                del declared["x-queue-type"]
                found_settings = {name.removeprefix("x-"): value for name, value in declared.items()}
                return found_settings | options | {"queue-type": value or bare or "classic"}
            if name in options and current:
                options[name] = current == "true"
            elif name.startswith("x-") and value is not None:
                declared[name] = _typed(value, kind)
            else:
                return {}
        except AMQPError:
            if not wire.is_open:
                raise
            return {}
        else:
            return {}
    return {}


def _typed(value: str, kind: str) -> Any:
    if kind in ("longstr", "shortstr"):
        return value
    if kind == "bool":
        return value == "true"
    try:
        return int(value)
    except ValueError:
        return value
