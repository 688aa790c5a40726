"""RabbitMQ dead letters as stored and as sent again: the bytes of properties and body.

The stored form is one line with its location, then the body:

redrive-amqp-1 {"dlq": …, "queue": …, "name": …, "exchange": …, "routing_key": …, "properties": base64} \\ body
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.amqp import fields as amqp_fields
from jobs_admin.sources.amqp.fields import Malformed, Parts
from jobs_admin.sources.amqp.sender import LARGEST_HEADERS
from jobs_admin.sources.amqp.wire import Written
from jobs_admin.sources.base import OutgoingMessage, SourceRefused

_MARK = b"redrive-amqp-1 "

# All that a replay removes from a message or adds to it; the rest keeps its bytes. Headers that the broker wrote during
# the message's life and death: true of the old run, false for the new one.
STRIPPED_HEADERS = (
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    # Further queues for copies, which have already received theirs.
    "CC",
    "BCC",
    "redrive",
)
# Time to live, counted from the first sending; the user and cluster, which RabbitMQ accepts from no one else.
STRIPPED_PROPERTIES = ("expiration", "user_id", "cluster_id")

# Member that distinguishes our own header from one copied by a consumer: a digest of the body it was sent with.
_OF_BODY = "body"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    dlq: str  # location
    queue: str  # source queue; "" if unknown
    name: str  # the copy's name there
    parts: Parts
    body: bytes


def pack(dlq: str, queue: str, name: str, exchange: str, routing_key: str, properties: bytes, body: bytes) -> bytes:
    place = {
        "dlq": dlq,
        "queue": queue,
        "name": name,
        "exchange": exchange,
        "routing_key": routing_key,
        "properties": base64.b64encode(properties).decode(),
    }
    return _MARK + json.dumps(place).encode() + b"\n" + body


def unpack(raw: bytes) -> StoredMessage:
    """Parse a stored message.

    Raises SourceRefused for another form, and for a message whose properties cannot be read.
    """
    head, separator, body = raw.partition(b"\n")
    try:
        if not head.startswith(_MARK) or not separator:
            raise ValueError("no mark")
        place = json.loads(head[len(_MARK) :])
        parts = amqp_fields.split(base64.b64decode(place["properties"]))
        return StoredMessage(str(place["dlq"]), str(place["queue"]), str(place["name"]), parts, body)
    except Malformed as error:
        raise SourceRefused(f"The message cannot be read: {error}. Nothing was sent.") from error
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise SourceRefused("What is kept is no message of RabbitMQ. Nothing was sent.") from error


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def is_own(header: Any, body: bytes) -> bool:
    """Return whether this `redrive` header was sent with this body."""
    return isinstance(header, dict) and header.get(_OF_BODY) == digest_of(body)


def arguments(parts: Parts, body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return a JSON object as keyword arguments, any other JSON as the only argument.

    Raises SourceRefused for other bodies.
    """
    kind = amqp_fields.text(parts, "content_type").partition(";")[0].strip().lower()
    coding = amqp_fields.text(parts, "content_encoding").strip().lower()
    if coding not in ("", "utf-8", "utf8", "us-ascii", "ascii"):
        raise SourceRefused(f"The body is encoded as {coding[:40]!r}: it can be replayed, not edited.")
    is_declared = kind == "application/json" or kind.endswith("+json")
    if kind and not is_declared and kind not in ("text/plain", "application/octet-stream"):
        raise SourceRefused(f"The body is {kind[:60]!r}, not JSON: it can be replayed, not edited.")
    try:
        value = json.loads(body.decode(), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The body is not JSON: it can be replayed, not edited.") from error
    if isinstance(value, dict):
        return [], value
    if not is_declared and not isinstance(value, list):  # a word or number that is JSON only by chance
        raise SourceRefused("The body does not say that it is JSON: it can be replayed, not edited.")
    return [value], {}


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def new_body(outgoing: OutgoingMessage, found: StoredMessage) -> bytes:
    """Return the stored body, with other arguments if the outgoing message has them. Raises SourceRefused."""
    if outgoing.args is None and outgoing.kwargs is None:
        return found.body
    return edit_body(found, outgoing.args, outgoing.kwargs)


def build_message(
    outgoing: OutgoingMessage,
    error_headers: Collection[str],
    build_body: Callable[[OutgoingMessage, StoredMessage], bytes] = new_body,
) -> Written:
    """Build the AMQP message to publish: the same bytes for the same input. Raises SourceRefused (with the token)."""
    try:
        found = unpack(outgoing.raw)
        body = build_body(outgoing, found)
        lineage = {**outgoing.lineage, "item": outgoing.token, "sent_as": outgoing.job_id, _OF_BODY: digest_of(body)}
        out = {name.encode() for name in (*STRIPPED_HEADERS, *error_headers)}
        parts = {name: value for name, value in found.parts.items() if name not in STRIPPED_PROPERTIES}
        parts["headers"] = amqp_fields.replace_headers(parts.get("headers", b"\0\0\0\0"), out, {"redrive": lineage})
        properties = amqp_fields.join(parts)
    except SourceRefused as error:
        raise SourceRefused(str(error), outgoing.token) from error
    except (Malformed, ValueError, RecursionError) as error:
        raise SourceRefused("The message cannot be written for RabbitMQ. Nothing was sent.", outgoing.token) from error
    if len(properties) > LARGEST_HEADERS:
        raise SourceRefused(
            f"Its headers have {len(properties):,} bytes, more than RabbitMQ takes. Nothing was sent.", outgoing.token
        )
    return Written(body, properties)


def edit_body(found: StoredMessage, new_args: list[Any] | None, new_kwargs: dict[str, Any] | None) -> bytes:
    """Return the body with these arguments; None keeps them. Raises SourceRefused if that is not possible."""
    args, kwargs = arguments(found.parts, found.body)
    is_object = not args
    args = args if new_args is None else new_args
    kwargs = kwargs if new_kwargs is None else new_kwargs
    if is_object and args:
        raise SourceRefused("Its body is a JSON object: it has keyword arguments alone. Nothing was sent.")
    if not is_object and (len(args) != 1 or kwargs):
        raise SourceRefused("Its body is one JSON value: it has one argument, and no others. Nothing was sent.")
    value = kwargs if is_object else args[0]
    if isinstance(value, float) and not math.isfinite(value):
        raise SourceRefused("JSON has no word for this number. Nothing was sent.")
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
