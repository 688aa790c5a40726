"""Frames from RabbitMQ into messages that keep the bytes of their properties, and that no property can hurt.

py-amqp reads the headers of every message that comes; one that it cannot read (a timestamp beyond any date, tables in tables)
ends the connection, and so would every message behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

import amqp
from amqp.exceptions import UnexpectedFrame
from amqp.method_framing import _CONTENT_METHODS

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8


class Received(amqp.Message):  # type: ignore[misc]
    """A message that came. `raw_properties` is what stands behind its size in its header; nothing of that is read."""

    raw_properties: bytes = b""

    def _load_properties(self, class_id: int, buf: Any, offset: int) -> int:
        self.raw_properties = bytes(buf[offset:])
        return len(buf)

    @property
    def octets(self) -> bytes:
        body = getattr(self, "body", b"")
        return bytes(body) if not isinstance(body, str) else body.encode()


class Written(amqp.Message):  # type: ignore[misc]
    """A message whose properties are bytes already."""

    def __init__(self, body: bytes, raw_properties: bytes) -> None:
        super().__init__(body)
        self.raw_properties = raw_properties

    def _serialize_properties(self) -> bytes:
        return self.raw_properties


def handler(connection: Any, callback: Callable[..., Any]) -> Callable[[tuple[int, int, Any]], bool]:
    """As `amqp.method_framing.frame_handler`."""
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
