"""Reports of SQS dead letters. SQS stores no error, only that a message was received too often."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.display import shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.celery import message as celery_message
from jobs_admin.sources.rabbitmq.death import TASK_HEADERS, HeaderNames, find_error, first_text
from jobs_admin.sources.sqs import messages
from jobs_admin.sources.sqs.messages import StoredMessage
from jobs_admin.sources.sqs.queues import DeadQueue, name_of

# Attributes with an error, as Lambda, EventBridge and forwarders set them, and headers that RabbitMQ consumers use.
WORDS = HeaderNames(errors=("ErrorMessage", "ERROR_MESSAGE", "error.message", "ErrorType", "error.type"))
STRIPPED = frozenset({*WORDS.stripped, "ErrorCode", "ERROR_CODE", "EXHAUSTED_RETRY_CONDITION"})
_TASK_ATTRIBUTES = ("shoryuken_class", "EventType", "eventType", "JavaType", *TASK_HEADERS)
# JSON body members that contain the task: Laravel, Active Job, EventBridge and custom bodies.
_TASK_MEMBERS = ("displayName", "job_class", "detail-type", "task", "job", "event_type", "eventType", "event", "type")
_TASK = re.compile(r"[\w.:/\\@ -]{1,200}")
_LONGEST_ID = 255


def origin_of(message: Mapping[str, Any], dead: DeadQueue, is_aws: bool) -> str:
    """Return the source queue of a dead letter; "" if unknown.

    AWS names the source queue of each message that a redrive policy moved, and no other. Emulators may name none: then
    it is the only source queue of the dead-letter queue.
    """
    named = name_of(str(message.get("Attributes", {}).get(messages.ORIGIN, "")))
    return named or (dead.of[0] if len(dead.of) == 1 and not is_aws else "")


def lineage_of(one: StoredMessage) -> Lineage | None:
    """Return the lineage of a message that a replay sent; None for any other message."""
    lineage = Lineage.from_header(messages.lineage_header(one.attributes, one.body))
    sent_as = lineage.sent_as if lineage is not None else None
    return lineage if sent_as and len(sent_as) <= _LONGEST_ID and sent_as.isprintable() else None


def build_envelope(
    source: str,
    one: StoredMessage,
    message: Mapping[str, Any],
    lineage: Lineage | None,
    receives: int | None,
    now: float,
) -> Envelope:
    """Build the report of a dead letter.

    `receives`: `maxReceiveCount` of the redrive policy, which does not change. SQS's own count includes receives by
    Redrive.
    """
    raw = messages.pack(one)
    task, args, kwargs, headers = _content(one)
    kind, error_type, text, trace = _error(one, receives)
    arguments = [shown_json(value) if value is not None else None for value in (args, kwargs)]
    secrets = named_values(args, kwargs) if any(part and part.redacted for part in arguments) else ()
    (text, in_text), (trace, in_trace) = without_values(text, secrets), without_values(trace, secrets)
    shown_text, shown = shown_message(text), shown_trace(trace)
    shown_headers = shown_json(headers)
    redacted = sum(part.redacted for part in (shown_text, shown, shown_headers, *arguments) if part)
    return Envelope(
        source=source,
        queue=one.queue or one.dlq,
        task=task,
        job_id=str(lineage.sent_as) if lineage is not None else one.id,
        kind=kind,
        attempt=receives or 1,
        max_attempts=receives,
        at=_died_at(message) or now,
        error_type=error_type[:255],
        message=shown_text.text,
        args=arguments[0].text if arguments[0] else "",
        kwargs=arguments[1].text if arguments[1] else "",
        headers=shown_headers.text,
        redacted=in_text + in_trace + redacted,
        lineage=lineage,
        raw=raw,
        raw_size=len(raw),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        trace=shown.text,
    )


def shown_headers(one: StoredMessage) -> dict[str, Any]:
    """Return the attributes of SQS and of the producer, and Celery's headers."""
    texts = {
        name: value.get("StringValue", f"<{len(value.get('BinaryValue', b'')):,} bytes>")
        for name, value in one.attributes.items()
        if name != messages.OURS
    }
    celery = messages.celery_bytes(one.body)
    return one.system | texts | (celery_message.shown_headers(celery_message.parse(celery[0])) if celery else {})


def _content(one: StoredMessage) -> tuple[str, Any, Any, dict[str, Any]]:
    """Return task, args, kwargs (None if they cannot be read) and headers."""
    headers = shown_headers(one)
    if (celery := messages.celery_bytes(one.body)) is not None:
        task = str(celery_message.parse(celery[0])["headers"]["task"])
    else:
        task = first_text(headers, _TASK_ATTRIBUTES) or _task_in(one.body)
    if pointer := messages.s3_pointer(one.body):
        return task, [pointer], None, headers
    try:
        args, kwargs = messages.arguments(one.body)
    except SourceRefused:
        return task, (None if celery else [one.body]), None, headers
    return task, args, kwargs, headers


def _task_in(body: str) -> str:
    document = untrusted.read_object(body)
    if document.get("Type") == "Notification" and isinstance(document.get("TopicArn"), str):  # of SNS
        return name_of(document["TopicArn"])[:200]
    found = (document.get(name) for name in _TASK_MEMBERS)
    return next((one for one in found if isinstance(one, str) and _TASK.fullmatch(one)), "")


def _error(one: StoredMessage, receives: int | None) -> tuple[str, str, str, str]:
    """Return kind, error type, message and traceback."""
    attributes = {name: value.get("StringValue") for name, value in one.attributes.items()}
    if (error := find_error(attributes, WORDS)) is not None:
        return "exception", *error
    if receives is None:
        text = f"The message is in {one.dlq}. SQS stores no reason."
    else:
        times = "1 receive" if receives == 1 else f"{receives} receives"
        text = f"SQS moved the message to {one.dlq} after {times} without a delete. SQS stores no error."
    if messages.s3_pointer(one.body):
        text += " Its body is in S3, which Redrive does not read."
    return "exception", "Unexplained" if receives is None else "MaxReceiveCount", text, ""


def _died_at(message: Mapping[str, Any]) -> float | None:
    """Return the latest known time before the death, in Unix seconds; None if unknown.

    SQS does not store the time of a move.
    """
    given = message.get("Attributes", {})
    found = [untrusted.integer(given.get(name)) for name in ("ApproximateFirstReceiveTimestamp", "SentTimestamp")]
    moments = [untrusted.moment(ms / 1000) for ms in found if ms]
    return max((one.timestamp() for one in moments if one is not None), default=None)
