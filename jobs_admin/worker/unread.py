"""Envelopes of messages that no task accepted: bytes, queue and error.

Bodies are not decoded here, and error messages are only read from errors of known libraries: an error raised while
decoding a body may be of a class that the body chose.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from kombu.utils.json import dumps

from jobs_admin.core.display import shown_message
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.worker import report
from jobs_admin.worker.outcome import qualified
from jobs_admin.worker.report import Origin

UNKNOWN_FORMAT = "UnknownFormat"  # Celery only warns here, so there is no error to name
_OF_LIBRARIES = ("builtins", "json", "binascii", "zlib", "lzma", "_bz2", "kombu", "celery", "amqp", "yaml", "msgpack")
# Fields that a broker adds to a message during its life: the same message may come with or without them.
_OF_THE_BROKER = ("redelivered", "x-death", "x-delivery-count")
_LONGEST_ID = 255


def message_envelope(message: Any, kind: str, error_type: str, words: str, origin: Origin, worker: str) -> Envelope:
    """Return the report of a message that kombu could read at least in part."""
    headers = message.headers if isinstance(message.headers, dict) else {}
    raw = report.or_nothing(lambda: report.raw_message(message), None)
    # The arguments are shown only if declared as JSON.
    args, kwargs = (
        report.or_nothing(lambda: report.arguments_of(message), (None, None))
        if kind == "unknown_task"
        else (None, None)
    )
    shown_args, shown_kwargs = report.display_copy(args), report.display_copy(kwargs)
    shown_headers = report.display_copy({k: v for k, v in headers.items() if k not in report.HIDDEN_HEADERS})
    shown = shown_message(words)
    return Envelope(
        **_common(kind, error_type, origin, worker),
        queue=queue_of(message, origin),
        task=task_of(message),
        job_id=id_of(message),
        lineage=Lineage.of_message(headers.get("redrive"), id_of(message)),
        attempt=report.attempt_number(headers.get("retries")),
        message=shown.text,
        tenant=report.tenant_of(args, kwargs, origin.tenant_paths),
        priority=_priority(message),
        args=shown_args.text,
        kwargs=shown_kwargs.text,
        headers=shown_headers.text,
        redacted=sum(one.redacted for one in (shown, shown_args, shown_kwargs, shown_headers)),
        late_ack=True,  # the broker has it until we have reported it
        **_raw_fields(raw),
    )


def element_envelope(
    element: bytes, payload: Any, queue: str, kind: str, error_type: str, words: str, origin: Origin, worker: str
) -> Envelope:
    """Return the report of an element that is no message.

    It is no longer in a queue: kombu removes elements before it parses them.
    """
    headers = payload.get("headers") if isinstance(payload, dict) else None
    headers = headers if isinstance(headers, dict) else {}
    task, job_id = headers.get("task"), headers.get("id")
    shown = shown_message(words)
    return Envelope(
        **_common(kind, error_type, origin, worker),
        queue=queue,
        task=task[:500] if isinstance(task, str) else "",
        # It cannot be delivered again, so each is a separate failure, even if identical.
        job_id=str(job_id) if _is_id(job_id) else f"element-{uuid.uuid4()}",
        attempt=report.attempt_number(headers.get("retries")),
        message=shown.text,
        redacted=shown.redacted,
        late_ack=False,
        **_raw_fields(element),
    )


def words_of(error: BaseException | None) -> tuple[str, str]:
    """Return class and message of an error.

    The message of a class outside known libraries is omitted: reading it would run its code.
    """
    inner = error.args[0] if error is not None and len(error.args) == 1 else None
    if error is None:
        return "", ""
    if not _is_of_a_library(error) or (isinstance(inner, BaseException) and not _is_of_a_library(inner)):
        return qualified(type(error)), "(its text is not asked for: its class is not known)"
    return qualified(type(error)), str(error)[:2_000]


def queue_of(message: Any, origin: Origin) -> str:
    """Return the certain or most likely queue; "" if unknown."""
    return report.or_nothing(lambda: origin.queues.find_place(message).name, "")


def task_of(message: Any) -> str:
    """Return the task by its header, or by a body that Celery has already decoded; "" without either."""
    for place in (message.headers, _decoded(message)):
        task = place.get("task") if isinstance(place, Mapping) else None
        if isinstance(task, str) and task:
            return task[:500]
    return ""


def id_of(message: Any) -> str:
    """Return the job's id.

    Without one, a value that is stable across redeliveries: its tag on Redis, a hash of its bytes elsewhere.
    """
    for place in (message.headers, _decoded(message)):
        job_id = place.get("id") if isinstance(place, Mapping) else None
        if _is_id(job_id):
            return str(job_id)
    tag = message.delivery_tag
    if _is_id(tag):  # a numeric tag is a position in a channel, not an identity
        return f"message-{tag}"[:_LONGEST_ID]
    return f"message-{_digest(message)}"


def _digest(message: Any) -> str:
    body = message.body
    found = hashlib.sha256(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b""))
    for fields in (message.headers, message.properties):
        found.update(report.or_nothing(partial(_stable_bytes, fields), b""))
    return found.hexdigest()[:32]


def _stable_bytes(fields: Any) -> bytes:
    """Return the fields as bytes, without the broker's own."""
    text: str = dumps({k: v for k, v in fields.items() if k not in _OF_THE_BROKER})  # type: ignore[no-untyped-call]
    return text.encode()


def _decoded(message: Any) -> Any:
    """Return the body if Celery decoded it to find the task (protocol 1), else None."""
    return getattr(message, "_decoded_cache", None)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID


def _is_of_a_library(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _OF_LIBRARIES


def _priority(message: Any) -> int | None:
    properties = message.properties
    return report.priority_of(properties.get("priority") if isinstance(properties, dict) else None)


def _common(kind: str, error_type: str, origin: Origin, worker: str) -> dict[str, Any]:
    return {
        "source": origin.source,
        "kind": kind,
        "error_type": error_type[:500],
        "at": time.time(),
        "worker": worker,
        "host": report.HOST,
        "release": origin.release,
    }


def _raw_fields(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        return {}
    return {
        "raw_size": len(raw),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
        "raw": raw if len(raw) <= report.RAW_BYTES else raw[: report.RAW_HEAD],
    }
