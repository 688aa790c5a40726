"""Raw bytes of a message, stored beside kombu's parsed message: on Redis the list element, on RabbitMQ the body.

kombu parses an element's JSON and drops the text. Serialised again, it has the same meaning but other bytes: producers
in other languages write no space after a colon and do not escape UTF-8. For an element that it cannot parse, kombu
raises an error after the element has left the list, which ends the worker or its connection.

kombu decompresses a compressed body, drops the original and leaves the header that names the compression, so a rebuilt
message would be unreadable. The delivered bytes are the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

# (element, parsed JSON or None, queue, error) -> whether it was handled. If not, the error is raised.
Refused = Callable[[bytes, Any, str, Exception], bool]
_BODY = "_redrive_body"


class Popped(dict[str, Any]):
    """Payload for kombu, with the bytes it was parsed from and its queue."""

    __slots__ = ("element", "queue")
    element: bytes
    queue: str


def keep_elements(channel: Any, refused: Refused = lambda *_: False) -> bool:
    """Store the element of each message of this channel. Costs a reference per message, and no call.

    `refused` is called with elements that kombu cannot turn into a message, and for no other error. Returns False,
    without a change, if the channel is not kombu's on Redis. A kombu that reads differently from 5.7, for which this
    was written, delivers messages without an element and works on.
    """
    read = getattr(channel, "handlers", {}).get("BRPOP")
    deliver = getattr(channel.connection, "_deliver", None)
    if read is None or deliver is None or getattr(channel, "redrive_keeps", False):
        return False
    between: list[tuple[bytes, str]] = []  # elements between arrival and delivery, within one call of `read_on`

    def read_on(**options: Any) -> Any:
        client = channel.client  # belongs to this channel and only reads BRPOP
        if "parse_response" not in vars(client):
            client.parse_response = noting(client.parse_response)
        try:
            return read(**options)
        except Exception as error:
            if between and not _is_json(between[0][0]) and refused(between[0][0], None, between[0][1], error):
                return True
            raise
        finally:
            # An undelivered element (not JSON, lost connection) must not be attached to the next message.
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
            # If kombu can take the element, the error is the connection's or the handler's.
            if _can_be_taken(channel, message) or not refused(element, message, queue, error):
                raise

    channel.handlers["BRPOP"] = read_on
    channel.connection._deliver = deliver_on
    channel.redrive_keeps = True
    return True


def _is_json(element: bytes) -> bool:
    """Return whether kombu can parse it. Called only after an error."""
    try:
        loads(bytes_to_str(element))  # type: ignore[no-untyped-call]
    except Exception:  # any error that kombu's decoder raises
        return False
    return True


def _can_be_taken(channel: Any, payload: Any) -> bool:
    """Return whether kombu could make a message of it and record its delivery. Called only after an error."""
    try:
        message = channel.Message(payload, channel=channel)
        message.delivery_info["exchange"], message.delivery_info["routing_key"]
        dumps(payload)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return isinstance(message.delivery_tag, str | bytes | int | float) and isinstance(message.headers, dict)


def keep_bodies(channel: Any) -> bool:
    """Store the original body of each message of this channel. Costs a reference per message, and no call.

    Returns False, without a change, if the channel is not kombu's on RabbitMQ.
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
    """Return the body as delivered, if it was stored."""
    body = getattr(message, _BODY, None)
    if body is None:
        body = message.body
    if not isinstance(body, str):
        return bytes(body)
    try:  # amqp decoded it by the message's encoding
        return body.encode(message.content_encoding or "utf-8")
    except (LookupError, UnicodeError):
        return body.encode("utf-8", "surrogatepass")
