"""AMQP parts of a stored message: body, headers and properties.

Retries and replays store a message in the form in which kombu writes messages to Redis (`worker/report.py:
raw_message`), and restore it on RabbitMQ from that.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

# Properties set by a producer. Without `user_id`, which RabbitMQ only accepts from that user, and `cluster_id`, which
# is RabbitMQ's own.
PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "priority",
    "delivery_mode",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)

# Header types that JSON cannot represent, by the names that kombu 5.3 to 5.7 writes.
_RESTORED: dict[str, Callable[[Any], Any]] = {
    "bytes": str.encode,
    "base64": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "decimal": Decimal,
}


@dataclass(frozen=True, slots=True)
class Parts:
    body: bytes | str
    headers: dict[str, Any]
    properties: dict[str, Any]  # those of PROPERTIES that the message has


def parts(raw: bytes) -> Parts:
    """Parse a stored message.

    Raises ValueError, TypeError, KeyError, AttributeError or RecursionError for any other text.
    """
    document = json.loads(raw, object_hook=_restored)
    properties = dict(document.get("properties") or {})
    body = document["body"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if not isinstance(body, bytes | str):
        raise TypeError("the body is not text")
    properties |= {"content_type": document.get("content-type"), "content_encoding": document.get("content-encoding")}
    return Parts(
        body,
        dict(document.get("headers") or {}),
        {name: properties[name] for name in PROPERTIES if properties.get(name) is not None},
    )


def _restored(value: dict[str, Any]) -> Any:
    if value.keys() != {"__type__", "__value__"}:
        return value
    name, content = value["__type__"], value["__value__"]
    try:
        return _RESTORED[name](content)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return value  # the producer's own header
