"""The body that a message of RabbitMQ carried, kept beside what kombu made of it.

kombu takes a compressed body apart and keeps no other, and leaves the header that says so: put together again, the
message would be unreadable. What the broker delivered is the truth.
"""

from __future__ import annotations

from typing import Any

_BODY = "_redrive_body"


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
