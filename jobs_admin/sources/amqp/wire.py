"""A connection to RabbitMQ: publishes batches with a known outcome per message, and fetches messages and settings of
queues.

The broker confirms messages one by one, but they are awaited together: waiting for each takes a round trip and a disk
write of the broker (1,100/s instead of 7,000/s with batches of 50).
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from struct import unpack_from
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed, UnexpectedFrame
from amqp.method_framing import _CONTENT_METHODS
from kombu.connection import Connection

from jobs_admin.sources.amqp import fields as amqp_fields

ANSWER_S = 4.0  # for connecting, and per request
_LONGEST_NAME = 255  # bytes, of a queue


class Blocked(Exception):
    """The broker does not read published messages: it is out of memory or disk space."""


@dataclass(slots=True)
class Published:
    """Outcomes of published messages, by their tokens."""

    confirmed: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)  # no such queue; not stored by the broker
    turned_away: set[int] = field(default_factory=set)  # temporarily, by the broker or the queue; not stored
    unwritten: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    error: Exception | None = None  # why some are unwritten or unknown


class Wire:
    """Connection for one thread at a time. Raises AMQPError, OSError (including timeouts) or Blocked; close it then."""

    def __init__(self, url: str, ssl: Any = False) -> None:
        connection: Any = Connection(url, connect_timeout=ANSWER_S, heartbeat=0, ssl=ssl)  # type: ignore[no-untyped-call]
        connection.transport_options = {
            "on_blocked": self._on_blocked,
            "on_unblocked": self._on_unblocked,
            "frame_handler": handler,
        }
        self._is_blocked = False
        self._connection: amqp.Connection = connection.transport.establish_connection()
        self._connection.transport.sock.settimeout(ANSWER_S)
        self._probe_channel: Any = None
        self._channel: Any = self._connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._nowhere = f"redrive.nowhere.{uuid.uuid4()}"
        self._is_proven = False  # since the last publish
        self._number = 0  # of the last message: the broker counts the same way, from 1
        self._waiting: dict[int, int] = {}  # number -> token of unconfirmed messages
        self._returned: set[int] = set()
        self._turned_away: set[int] = set()

    def close(self) -> None:
        """Close without waiting. Never raises."""
        with contextlib.suppress(Exception):
            self._connection.collect()

    def depth(self, queue: str) -> int | None:
        """Return the number of ready messages in a queue: 0 if it does not exist, None if the broker does not know
        now.
        """
        with contextlib.suppress(NotFound):
            return self._declared(queue)
        return 0 if not self.has(queue) else None

    def ready(self, queue: str) -> int | None:
        """Return the number of ready messages like `depth`, but None if the queue does not exist."""
        with contextlib.suppress(NotFound):
            return self._declared(queue)
        return None

    def has(self, queue: str) -> bool:
        """Return whether the queue exists; True also for one that is unavailable now, on a node that is down."""
        try:
            self._declared(queue)
        except NotFound as error:
            return "no queue" not in str(error)
        return True

    @property
    def server(self) -> tuple[str, str]:
        """Product and version reported by the server."""
        properties = self._connection.server_properties or {}
        return str(properties.get("product", "")), str(properties.get("version", ""))

    @property
    def is_open(self) -> bool:
        return bool(self._connection.connected)

    def channel(self) -> Any:
        """Return another channel, not for publishing. The caller must close it."""
        return self._connection.channel()

    def _declared(self, queue: str) -> int:
        # Return the passively declared queue's message count. An empty name would mean the queue declared last.
        if not 0 < len(queue.encode(errors="ignore")) <= _LONGEST_NAME or _has_halves(queue):
            raise NotFound("no queue can have this name")
        channel = self._probe_channel = self._probe_channel or self._connection.channel()
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except AMQPError:
            # The broker closed the channel and the library reopened it: it stays open until closed.
            self._probe_channel = None
            with contextlib.suppress(AMQPError, OSError):
                channel.close()
            raise

    def prove(self) -> None:
        """Check that the broker accepts messages now: test messages to no queue must be returned."""
        if self._is_proven and not self._is_blocked:
            return
        # Twice: during an alarm, the broker accepts the first message of a connection and then stops reading.
        for _ in range(2):
            self._write(0, self._nowhere, amqp.Message(b""))
            self._wait(ANSWER_S, while_blocked=False)
            if self._is_blocked:
                raise Blocked
        self._is_proven = True

    def rest(self) -> None:
        """Mark the connection as idle: it may break before its next use."""
        self._is_proven = False

    def publish(self, messages: Mapping[int, tuple[str, amqp.Message]], within_s: float) -> Published:
        """Publish token -> (queue, message), in this order, each directly to its queue. Never raises.

        Messages without an answer after `within_s` seconds (a busy disk) count as unknown.

        Each message has its token in its `redrive` header, which identifies a returned message.
        """
        ended = Published()
        self._returned, self._turned_away = set(), set()
        written: set[int] = set()
        self._is_proven = False
        try:
            with contextlib.suppress(TimeoutError):  # reads pending frames, such as a close by the broker
                self._connection.drain_events(timeout=0)
            for token, (queue, message) in messages.items():
                if self._is_blocked:
                    break
                written.add(token)  # recorded first: the outcome of a partial write is unknown
                self._write(token, queue, message)
            self._wait(within_s)
            if self._is_blocked:
                raise Blocked
        except Exception as error:  # of any kind: the caller must learn the outcome of each message
            ended.error = error
        ended.unwritten = messages.keys() - written
        ended.unknown = set(self._waiting.values())
        ended.returned = self._returned - ended.unknown
        ended.turned_away = self._turned_away
        ended.confirmed = written - ended.unknown - ended.returned - ended.turned_away
        return ended

    def _write(self, token: int, queue: str, message: amqp.Message) -> None:
        self._number += 1
        self._waiting[self._number] = token
        self._channel.basic_publish(message, exchange="", routing_key=queue, mandatory=True)

    def _wait(self, within_s: float, while_blocked: bool = True) -> None:
        """Wait until all messages are confirmed. Raises TimeoutError."""
        ends = time.monotonic() + within_s
        while self._waiting and (while_blocked or not self._is_blocked):
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=min(1.0, left))

    def _ended(self, number: int, multiple: bool) -> set[int]:
        numbers = [n for n in self._waiting if n <= number] if multiple else [number]
        return {self._waiting.pop(n) for n in numbers if n in self._waiting}

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._ended(number, multiple)

    def _on_nack(self, number: int, multiple: bool) -> None:
        self._turned_away |= self._ended(number, multiple)

    def _on_return(self, why: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        if routing_key != self._nowhere:
            self._returned.add(_token_of(message))

    def _on_blocked(self, why: str) -> None:
        self._is_blocked = True

    def _on_unblocked(self) -> None:
        self._is_blocked = False


def _token_of(message: Any) -> int:
    headers = amqp_fields.decode(amqp_fields.split(message.raw_properties)["headers"])
    return int(headers["redrive"]["item"])


def _has_halves(text: str) -> bool:
    """Return whether a text contains a lone surrogate, which no broker accepts."""
    return any("\ud800" <= c <= "\udfff" for c in text)


# Reader of RabbitMQ's frames that keeps the bytes of properties and cannot fail on their content.
# py-amqp parses the headers of every incoming message; one that it cannot parse (an impossible timestamp, nested
# tables) ends the connection, and would do so again for every message after it.

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8


class Received(amqp.Message):  # type: ignore[misc]
    """An incoming message. `raw_properties`: the header's bytes after its size, not parsed."""

    raw_properties: bytes = b""

    def _load_properties(self, class_id: int, buf: Any, offset: int) -> int:
        self.raw_properties = bytes(buf[offset:])
        return len(buf)

    @property
    def octets(self) -> bytes:
        body = getattr(self, "body", b"")
        return bytes(body) if not isinstance(body, str) else body.encode()


class Written(amqp.Message):  # type: ignore[misc]
    """A message whose properties are already bytes."""

    def __init__(self, body: bytes, raw_properties: bytes) -> None:
        super().__init__(body)
        self.raw_properties = raw_properties

    def _serialize_properties(self) -> bytes:
        return self.raw_properties


def handler(connection: Any, callback: Callable[..., Any]) -> Callable[[tuple[int, int, Any]], bool]:
    """Return a frame handler like `amqp.method_framing.frame_handler`."""
    partial: dict[int, Received] = {}

    def on_frame(frame: tuple[int, int, Any]) -> bool:
        kind, channel, buf = frame
        connection.bytes_recv += 1
        if kind == _HEARTBEAT:
            return False
        message = partial.get(channel)
        if kind == _METHOD and message is None:
            method = unpack_from(">HH", buf, 0)
            if method in _CONTENT_METHODS:
                partial[channel] = Received(frame_method=method, frame_args=buf)
                return False
            callback(channel, method, buf, None)
            return True
        if kind == _HEADER and message is not None:
            message.inbound_header(buf)
        elif kind == _BODY and message is not None:
            message.inbound_body(buf)
        else:
            raise UnexpectedFrame(f"Received frame {kind} out of turn")
        if not message.ready:
            return False
        del partial[channel]
        callback(channel, message.frame_method, message.frame_args, message)
        return True

    return on_frame


# Fetching of messages from a RabbitMQ queue, one by one with many requests in flight; and reading of a queue's declared
# settings.
# Fetched, not consumed: a leaving consumer deletes an auto-delete queue, and a new one may block others. Messages
# fetched and not acknowledged return to their place as soon as the channel is closed (classic queues).

_MOST_ON_THE_WAY = 50
_BYTES_ON_THE_WAY = 4_000_000
_ANSWERS = [spec.Basic.GetOk, spec.Basic.GetEmpty]
_NO_TYPE = "redrive-which"  # no queue has this type, so the declaration never creates one
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
    """Yield up to `most` messages, and slightly more than `most_bytes`, unacknowledged; ends when none is ready."""
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
        for _ in range(on_the_way):  # otherwise they would be read as answers to the next request
            channel.wait(_ANSWERS, returns_tuple=True)
        raise


def read_settings(wire: Wire, queue: str) -> dict[str, Any]:
    """Return the settings that the queue was declared with, without `x-`: `queue-type` (`classic`, `quorum`, `stream`
    …), `message-ttl`, `delivery-limit`. Policies are not included. Empty if unknown: without permission to configure
    the queue, or without the queue.

    RabbitMQ reveals a queue's settings only to a differing declaration, one difference at a time, so a queue of an
    impossible type is declared. This creates and changes nothing. Raises like `Wire`.
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
