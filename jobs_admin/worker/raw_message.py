"""The bytes of a message as the broker had them, kept beside what kombu made of it: on Redis the element of a list, on
RabbitMQ the body.

kombu parses the JSON of an element and forgets the text. Written again it has the same meaning, not the same bytes:
producers in other languages put no space behind a colon, and leave UTF-8 as it is. And of an element that it cannot
take it says so with an error, when the element is in no list any more: that ends the worker, or its connection.

kombu decompresses a compressed body and keeps no other, and leaves the header that says so: put together again, the
message would be unreadable. What the broker delivered is the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

# (element, what JSON made of it or None, queue, error) -> whether that is the end of it. Else the error goes on.
Refused = Callable[[bytes, Any, str, Exception], bool]
_BODY = "_redrive_body"


class Popped(dict[str, Any]):
    """The payload, as kombu passes it on; with the bytes that it was read from, and the queue that it lay in."""

    __slots__ = ("element", "queue")
    element: bytes
    queue: str


def keep_elements(channel: Any, refused: Refused = lambda *_: False) -> bool:
    """Keep the element of each message of this channel. Costs a reference, and no call.

    `refused` is called with an element that kombu cannot make a message of; with no other, and for no other error.
    False, and nothing changed, for a channel that is not kombu's on Redis. A kombu that reads in another way than the
    one this was written for (5.7) leaves its messages without an element; it is not kept from working.
    """
    read = getattr(channel, "handlers", {}).get("BRPOP")
    deliver = getattr(channel.connection, "_deliver", None)
    if read is None or deliver is None or getattr(channel, "redrive_keeps", False):
        return False
    between: list[tuple[bytes, str]] = []  # an element between its arrival and its delivery, in one call of `read_on`

    def read_on(**options: Any) -> Any:
        client = channel.client  # of this channel alone; only BRPOP is read with it
        if "parse_response" not in vars(client):
            client.parse_response = noting(client.parse_response)
        try:
            return read(**options)
        except Exception as error:
            if between and not _is_json(between[0][0]) and refused(between[0][0], None, between[0][1], error):
                return True
            raise
        finally:
            # What was not delivered (not JSON, a lost connection) must not stick to the next message.
            between.clear()

    def noting(parse_response: Any) -> Any:
        def parse_and_note(connection: Any, command: Any, **options: Any) -> Any:
            answer = parse_response(connection, command, **options)
            if command == "BRPOP" and answer and len(answer) == 2 and isinstance(answer[1], bytes):
                queue: str = bytes_to_str(answer[0])  # type: ignore[no-untyped-call]
                between[:] = [(answer[1], queue.rsplit(channel.sep, 1)[0])]
            return answer

        return parse_and_note

    def deliver_on(message: Any, queue: Any) -> Any:
        if not between:
            return deliver(message, queue)
        element, _ = between.pop()
        if type(message) is dict:
            message = Popped(message)
            message.element, message.queue = element, queue
        try:
            return deliver(message, queue)
        except Exception as error:
            # Where it can be taken the error is the connection's, or of what was done with the message.
            if _can_be_taken(channel, message) or not refused(element, message, queue, error):
                raise

    channel.handlers["BRPOP"] = read_on
    channel.connection._deliver = deliver_on
    channel.redrive_keeps = True
    return True


def _is_json(element: bytes) -> bool:
    """As kombu reads it. Asked only after that went wrong."""
    try:
        loads(bytes_to_str(element))  # type: ignore[no-untyped-call]
    except Exception:  # whatever a decoder of kombu's raises for what is in it
        return False
    return True


def _can_be_taken(channel: Any, payload: Any) -> bool:
    """Return whether kombu could make a message of it and write that down as taken. Asked only after something went wrong."""
    try:
        message = channel.Message(payload, channel=channel)
        message.delivery_info["exchange"], message.delivery_info["routing_key"]
        dumps(payload)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return isinstance(message.delivery_tag, str | bytes | int | float) and isinstance(message.headers, dict)


def keep_bodies(channel: Any) -> bool:
    """Keep the body that each message of this channel came with. Costs a reference, and no call.

    False, and nothing changed, for a channel that is not kombu's on RabbitMQ.
    """
    read = getattr(channel, "message_to_python", None)
    if read is None or not hasattr(channel, "basic_publish_confirm") or "message_to_python" in vars(channel):
        return False

    def read_on(delivered: Any) -> Any:
        message = read(delivered)
        setattr(message, _BODY, delivered.body)
        return message

    channel.message_to_python = read_on
    return True


def body_of(message: Any) -> bytes:
    """As the broker delivered it, where that was kept."""
    body = getattr(message, _BODY, None)
    if body is None:
        body = message.body
    if not isinstance(body, str):
        return bytes(body)
    try:  # amqp has decoded it by the name that the message gives
        return body.encode(message.content_encoding or "utf-8")
    except (LookupError, UnicodeError):
        return body.encode("utf-8", "surrogatepass")
