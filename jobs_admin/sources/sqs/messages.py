"""Stored form of an SQS message, its body and attributes, and the entry that sends it again.

The stored form is one line with its queues, id and attributes, then the body:

redrive-sqs-1 {"dlq": …, "queue": …, "id": …, "system": {…}, "attributes": {…}} \\
body
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.sources.base import OutgoingMessage, SourceRefused
from jobs_admin.sources.celery import message as celery_message
from jobs_admin.sources.rabbitmq import messages as plain_body

_MARK = b"redrive-sqs-1 "
OURS = "redrive"  # the message attribute with the lineage of a replay
_MOST_ATTRIBUTES = 10  # per message, in SQS
# SQS's own attributes that are stored; the others count the old run.
GROUP, DEDUPLICATION = "MessageGroupId", "MessageDeduplicationId"
ORIGIN = "DeadLetterQueueSourceArn"  # only if a redrive policy moved the message
_STORED = (GROUP, DEDUPLICATION, ORIGIN, "SentTimestamp", "AWSTraceHeader")
_POINTERS = ("software.amazon.payloadoffloading.PayloadS3Pointer", "com.amazon.sqs.javamessaging.MessageS3Pointer")

Attributes = dict[str, dict[str, Any]]  # in the form of the SDK


@dataclass(frozen=True, slots=True)
class StoredMessage:
    dlq: str  # dead-letter queue that it was read from
    queue: str  # source queue; "" if unknown
    id: str
    system: dict[str, str]
    attributes: Attributes
    body: str


def from_sdk(message: Mapping[str, Any], dlq: str, queue: str) -> StoredMessage:
    given = message.get("Attributes", {})
    system = {name: str(given[name]) for name in _STORED if name in given}
    attributes = {name: dict(value) for name, value in message.get("MessageAttributes", {}).items()}
    return StoredMessage(dlq, queue, str(message["MessageId"]), system, attributes, str(message.get("Body", "")))


def pack(one: StoredMessage) -> bytes:
    attributes = {
        name: {"DataType": value.get("DataType", "String"), **_text_of(value)} for name, value in one.attributes.items()
    }
    head = {"dlq": one.dlq, "queue": one.queue, "id": one.id, "system": one.system, "attributes": attributes}
    return _MARK + json.dumps(head).encode() + b"\n" + one.body.encode("utf-8", "surrogatepass")


def _text_of(value: Mapping[str, Any]) -> dict[str, str]:
    if "BinaryValue" in value:
        return {"BinaryValue": base64.b64encode(bytes(value["BinaryValue"])).decode()}
    return {"StringValue": str(value.get("StringValue", ""))}


def unpack(raw: bytes) -> StoredMessage:
    """Parse a stored message. Raises SourceRefused for another form."""
    head, separator, body = raw.partition(b"\n")
    try:
        if not head.startswith(_MARK) or not separator:
            raise ValueError("no mark")
        place = json.loads(head[len(_MARK) :])
        attributes: Attributes = {}
        for name, value in place["attributes"].items():
            is_binary = "BinaryValue" in value
            content = base64.b64decode(value["BinaryValue"]) if is_binary else str(value["StringValue"])
            attributes[name] = {
                "DataType": str(value["DataType"]),
                "BinaryValue" if is_binary else "StringValue": content,
            }
        system = {str(name): str(value) for name, value in place["system"].items()}
        text = body.decode("utf-8", "surrogatepass")
        return StoredMessage(str(place["dlq"]), str(place["queue"]), str(place["id"]), system, attributes, text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise SourceRefused("The stored message is not an SQS message. Nothing was sent.") from error


# The body

_IN_S3 = "The body is in S3 ({}): it can be replayed, not edited."


def s3_pointer(body: str) -> dict[str, Any] | None:
    """Return the pointer to a body that the extended client put into S3; None for any other body."""
    if not body.lstrip().startswith("["):
        return None
    value = untrusted.read(body)
    is_pointer = isinstance(value, list) and len(value) == 2 and value[0] in _POINTERS and isinstance(value[1], dict)
    return value[1] if is_pointer else None


def s3_address(pointer: Mapping[str, Any]) -> str:
    return f"s3://{untrusted.text(pointer.get('s3BucketName'), 100)}/{untrusted.text(pointer.get('s3Key'), 300)}"


def celery_bytes(body: str) -> tuple[bytes, bool] | None:
    """Return the Celery message in a body that kombu wrote, and whether it was in base64; None for any other body."""
    text = body.strip()
    is_encoded = not text.startswith("{")
    try:
        found = base64.b64decode(text, validate=True) if is_encoded else text.encode()
        celery_message.parse(found)
    except (SourceRefused, ValueError, binascii.Error):
        return None
    return found, is_encoded


def arguments(body: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in a body. Raises SourceRefused if they cannot be edited."""
    if pointer := s3_pointer(body):
        raise SourceRefused(_IN_S3.format(s3_address(pointer)))
    if (celery := celery_bytes(body)) is not None:
        found = celery_message.body_of(celery_message.parse(celery[0]))
        return found.args, found.kwargs
    return plain_body.arguments({}, _encoded(body))


def edit_body(body: str, args: list[Any] | None, kwargs: dict[str, Any] | None) -> str:
    """Return the body with these arguments; None keeps the present ones.

    Raises SourceRefused if they cannot be edited.
    """
    arguments(body)
    if (celery := celery_bytes(body)) is None:
        return plain_body.edit_body(plain_body.StoredMessage("", "", "", {}, _encoded(body)), args, kwargs).decode()
    message = celery_message.parse(celery[0])
    celery_message.replace_arguments(message, args, kwargs)
    text = json.dumps(message)
    return base64.b64encode(text.encode()).decode() if celery[1] else text


def _encoded(body: str) -> bytes:
    return body.encode("utf-8", "surrogatepass")


# Sending


def digest_of(body: str) -> str:
    return plain_body.digest_of(_encoded(body))


def lineage_header(attributes: Attributes, body: str) -> dict[str, Any] | None:
    """Return the lineage in a message's attributes; None if it was written for another body."""
    header = untrusted.read_object(attributes.get(OURS, {}).get("StringValue"))
    return header if plain_body.is_own(header, _encoded(body)) else None


def build_entry(source: str, outgoing: OutgoingMessage, stripped: frozenset[str], largest: int = 0) -> dict[str, Any]:
    """Build the batch entry of a message, the same for the same input. Raises SourceRefused (with the token).

    `stripped`: attributes with the error of the last run, to omit; they stay if a redrive policy moved the message,
    because then the producer set them. `largest`: maximum message size of the queue in bytes; 0 if unknown.
    """
    try:
        found = unpack(outgoing.raw)
        is_edited = outgoing.args is not None or outgoing.kwargs is not None
        body = edit_body(found.body, outgoing.args, outgoing.kwargs) if is_edited else found.body
        out = {OURS} if ORIGIN in found.system else {OURS, *stripped}
        attributes = {name: value for name, value in found.attributes.items() if name not in out}
        entry = {"Id": str(outgoing.token), "MessageBody": body, "MessageAttributes": attributes}
        if len(attributes) < _MOST_ATTRIBUTES:
            lineage = {**outgoing.lineage, "item": outgoing.token, "sent_as": outgoing.job_id, "body": digest_of(body)}
            ours = {OURS: {"DataType": "String", "StringValue": json.dumps(lineage)}}
            marked = entry | {"MessageAttributes": attributes | ours}
            entry = marked if not largest or size_of(marked) <= largest else entry
        return entry | _group(source, outgoing, found)
    except SourceRefused as error:
        raise SourceRefused(str(error), outgoing.token) from error
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The message cannot be encoded for SQS. Nothing was sent.", outgoing.token) from error


def _group(source: str, outgoing: OutgoingMessage, found: StoredMessage) -> dict[str, str]:
    group = found.system.get(GROUP, "")
    if not outgoing.queue.endswith(".fifo"):
        return {GROUP: group} if group else {}
    if not group:
        raise SourceRefused("The message has no group ID, which a FIFO queue requires. Nothing was sent.")
    # A new id for each run of a job: SQS drops a message whose id it received in the last five minutes, such as a
    # second copy.
    lineage = outgoing.lineage
    run = json.dumps([source, lineage.get("queue"), lineage.get("job_id"), lineage.get("run")])
    return {GROUP: group, DEDUPLICATION: "redrive-" + hashlib.sha256(run.encode()).hexdigest()[:40]}


def size_of(entry: Mapping[str, Any]) -> int:
    """Return the size of an entry in bytes, as SQS counts it against the limit of a batch."""
    attributes: Attributes = entry["MessageAttributes"]
    values = (value.get("BinaryValue") or value.get("StringValue", "").encode() for value in attributes.values())
    names = sum(len(name) + len(value["DataType"]) for name, value in attributes.items())
    return len(_encoded(entry["MessageBody"])) + names + sum(map(len, values))
