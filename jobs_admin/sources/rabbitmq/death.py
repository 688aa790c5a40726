"""Facts of a RabbitMQ dead letter: its queue, why it died, its attempts, and its job.

`x-death` is the broker's record: a table per queue and reason, latest first, with count and time. Producers that
forward a failed message themselves leave no such record, and put the error into their own headers.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs_admin.core.display import shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.sources.amqp import fields as amqp_fields
from jobs_admin.sources.amqp.fields import Malformed, Parts
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages

# Headers in which forwarders of a failed message put the error: Spring, MassTransit, NServiceBus, Symfony, and custom
# code.
TRACE_HEADERS = (
    "x-exception-stacktrace", "x-error-stack", "x-stack-trace", "x-stacktrace", "stack-trace", "stacktrace", "stack",
    "error-stack", "traceback", "x-traceback", "MT-Fault-StackTrace", "NServiceBus.ExceptionInfo.StackTrace",
)  # fmt: skip
MESSAGE_HEADERS = (
    "x-exception-message", "x-error-message", "x-error", "error-message", "error", "x-last-error", "last-error", "exception",
    "MT-Fault-Message", "NServiceBus.ExceptionInfo.Message",
)  # fmt: skip
TYPE_HEADERS = (
    "x-exception-type", "x-error-type", "x-exception-class", "x-error-class", "error-type", "exception-type",
    "MT-Fault-ExceptionType", "NServiceBus.ExceptionInfo.ExceptionType",
)  # fmt: skip
QUEUE_HEADERS = ("x-original-queue", "x-source-queue", "original-queue", "NServiceBus.FailedQ")
ATTEMPT_HEADERS = ("x-attempts", "x-attempt", "attempts", "attempt")
RETRY_HEADERS = ("x-retry-count", "x-retries", "retry-count", "retries")  # attempts - 1
TASK_HEADERS = ("x-task", "task", "x-event-type", "event-type", "event", "__TypeId__")
OURS = "redrive"

_LARGEST = 16 * 2**20  # bytes of a stored message; of a larger one only the head is stored
_HEAD = 64 * 1024
_LONGEST_ID = 120
_BY_CONSUMERS = ("rejected", "delivery_limit")
_VOLATILE = (b"x-delivery-count", b"x-acquired-count")  # change when a message is merely fetched
_TYPE = re.compile(r"(?:Traceback|Caused by: |Uncaught )?\s*([A-Za-z_$][\w$]*(?:[.\\]+[A-Za-z_$][\w$]*)*)(?::|\s*\Z)")


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message from a dead-letter queue."""

    properties: bytes
    body: bytes
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """Names of headers in which a source's producers report errors and tasks, in search order."""

    errors: tuple[str, ...] = ()  # message, trace or type, by the last part of the name
    tasks: tuple[str, ...] = ()

    @property
    def stripped(self) -> tuple[str, ...]:
        """Headers that a replay omits: the error of the previous run."""
        return (*self.errors, *TRACE_HEADERS, *MESSAGE_HEADERS, *TYPE_HEADERS)


@dataclass(frozen=True, slots=True)
class Death:
    queue: str  # source queue; "" if unknown
    reason: str  # rejected, delivery_limit, expired, maxlen; "" if RabbitMQ did not move it
    count: int
    at: float | None
    routing_key: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A parsed dead letter."""

    found: RawMessage
    parts: Parts
    headers: Mapping[str, Any]
    death: Death
    attempt: int
    base: str  # identifies the job, but not among completely equal ones
    lineage: Lineage | None
    why_unread: str = ""


def parse(found: RawMessage, dlq: str, of: str) -> DeadLetter:
    """Parse a message from `dlq`. `of`: the queue in which it died, if the message names none. Never raises."""
    try:
        parts = amqp_fields.split(found.properties)
        headers = amqp_fields.decode(parts["headers"]) if "headers" in parts else {}
    except (Malformed, RecursionError) as error:
        death = Death(of, "", 1, None, "", 0)
        return DeadLetter(
            found, {}, {}, death, 1, _digest(dlq.encode(), found.properties, found.body), None, str(error)
        )
    ours = headers.get(OURS)
    lineage = Lineage.from_header(ours) if rabbitmq_messages.is_own(ours, found.body) else None
    if lineage is not None and not _is_id(lineage.sent_as):
        lineage = None
    death = _death(headers, of or first_text(headers, QUEUE_HEADERS).partition("@")[0])
    attempt = _attempt(headers, death)
    base = _base(found, parts, death, lineage)
    return DeadLetter(found, parts, headers, death, attempt, base, lineage)


def _death(headers: Mapping[str, Any], otherwise: str) -> Death:
    entries = headers.get("x-death")
    deaths = [
        one for one in (entries if isinstance(entries, list) else []) if isinstance(one, dict) and one.get("queue")
    ]
    deliveries = _count(headers.get("x-delivery-count"))
    if not deaths:
        return Death(otherwise, "", 1, None, "", deliveries)
    first = headers.get("x-first-death-queue")
    # The queue in which a consumer gave it up; queues in which it only waited for a retry are not its source.
    by_consumers = [one for one in deaths if one.get("reason") in _BY_CONSUMERS]
    among = by_consumers or deaths
    it = next((one for one in among if one["queue"] == first), among[0])
    keys = it.get("routing-keys")
    return Death(
        str(it["queue"]),
        str(it.get("reason") or ""),
        max(1, _count(it.get("count"))),
        _seconds(deaths[0].get("time")),
        str(keys[0]) if isinstance(keys, list) and keys else "",
        deliveries,
    )


def _attempt(headers: Mapping[str, Any], death: Death) -> int:
    attempts = [_count(headers.get(name)) for name in ATTEMPT_HEADERS]
    retried = [_count(headers.get(name)) for name in RETRY_HEADERS]
    reported = max([*attempts, *(n + 1 for n in retried if n)], default=0)
    # A queue with a delivery limit delivered it this often before its last.
    handed_out = death.deliveries if death.reason == "delivery_limit" else 0
    counted = death.count if death.reason in _BY_CONSUMERS else 1
    return max(1, reported, handed_out, counted)


def _base(found: RawMessage, parts: Parts, death: Death, lineage: Lineage | None) -> str:
    if lineage is not None:
        return str(lineage.sent_as)
    name = amqp_fields.text(parts, "message_id")
    origin = death.queue.encode("utf-8", "backslashreplace")
    if name:
        # A producer with its own message ids sends the same job again under its id: its deaths are attempts of one job.
        shown = "".join(c if c.isprintable() else "?" for c in name[:_LONGEST_ID])
        return f"{shown}.{_digest(origin, name.encode('utf-8', 'surrogatepass'), found.body)[:16]}"
    stable = (
        {**parts, "headers": amqp_fields.replace_headers(parts["headers"], _VOLATILE)} if "headers" in parts else parts
    )
    return _digest(origin, amqp_fields.join(stable), found.body)[:32]


def _is_id(value: str | None) -> bool:
    return bool(value) and len(str(value)) <= 2 * _LONGEST_ID and str(value).isprintable()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(struct.pack(">Q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def build_envelope(one: DeadLetter, job_id: str, source: str, dlq: str, words: HeaderNames, now: float) -> Envelope:
    """Return the report of a dead letter. `job_id`: `one.base`, or with its number among equals."""
    found, death = one.found, one.death
    raw = rabbitmq_messages.pack(
        dlq, death.queue, name_of(job_id, one.attempt), found.exchange, found.routing_key, found.properties, found.body
    )
    kind, error_type, error_text, trace = _error(one, dlq, words)
    args, kwargs = _arguments(one)
    arguments = [shown_json(value) if value is not None else None for value in (args, kwargs)]
    secrets = named_values(args, kwargs) if any(part and part.redacted for part in arguments) else ()
    (error_text, in_message), (trace, in_trace) = without_values(error_text, secrets), without_values(trace, secrets)
    message, shown = shown_message(error_text), shown_trace(trace)
    headers = shown_json(shown_headers(one.parts, one.headers, words))
    return Envelope(
        source=source,
        queue=death.queue or dlq,
        task=first_text(one.headers, (*words.tasks, *TASK_HEADERS))
        or amqp_fields.text(one.parts, "type")
        or _task_of_key(one, dlq),
        job_id=job_id,
        kind=kind,
        attempt=one.attempt,
        at=death.at or _sent_at(one.parts) or now,
        error_type=error_type[:255],
        message=message.text,
        priority=amqp_fields.number(one.parts, "priority"),
        args=arguments[0].text if arguments[0] else "",
        kwargs=arguments[1].text if arguments[1] else "",
        headers=headers.text,
        redacted=in_message + in_trace + sum(part.redacted for part in (message, shown, headers, *arguments) if part),
        lineage=one.lineage if one.lineage and one.lineage.sent_as == job_id else None,
        raw=raw if len(raw) <= _LARGEST else raw[:_HEAD],
        raw_size=len(raw),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        trace=shown.text,
    )


def name_of(job_id: str, attempt: int) -> str:
    """Return the name of one death of a job."""
    return f"{job_id}|{attempt}"


def is_too_large(found: RawMessage) -> bool:
    """Return whether a message is too large to be stored in full (a little less than 16 MB, with its headers)."""
    return len(found.body) + 2 * len(found.properties) > _LARGEST - 4096


def shown_headers(parts: Parts, headers: Mapping[str, Any], words: HeaderNames) -> dict[str, Any]:
    """Return headers and properties to show beside the arguments, without the trace and our own."""
    hidden = {OURS, *TRACE_HEADERS, *(name for name in words.errors if _header_role(name) == "trace")}
    texts = {
        name: amqp_fields.text(parts, name)
        for name in ("content_type", "message_id", "correlation_id", "reply_to", "type", "app_id")
        if name in parts
    }
    return texts | {name: value for name, value in headers.items() if name not in hidden}


def _error(one: DeadLetter, dlq: str, words: HeaderNames) -> tuple[str, str, str, str]:
    """Return kind, type, message and trace."""
    death, where = one.death, one.death.queue or dlq
    if one.why_unread:
        return "undecodable", "Malformed", f"A message in {dlq} cannot be read: {one.why_unread}.", ""
    if (error := find_error(one.headers, words)) is not None:
        return "exception", *error
    if death.reason == "expired":
        return "expired", "Expired", f"It waited in {where} for longer than it may, so RabbitMQ took it out.", ""
    if death.reason == "delivery_limit":
        text = f"RabbitMQ handed it out {one.attempt} times from {where}: each time its consumer died, or put it back."
        return "worker_lost", "DeliveryLimit", text, ""
    if death.reason == "maxlen":
        return "rejected", "QueueFull", f"{where} was full, so RabbitMQ took it out before it ran.", ""
    if death.reason == "rejected":
        return "rejected", "Rejected", f"A consumer of {where} rejected it, and left no error.", ""
    return "rejected", "Unexplained", f"It is in {dlq}, without a reason.", ""


def find_error(headers: Mapping[str, Any], words: HeaderNames) -> tuple[str, str, str] | None:
    """Return type, message and trace of the error in these headers; None without one."""
    of = {
        what: tuple(name for name in words.errors if _header_role(name) == what)
        for what in ("message", "trace", "type")
    }
    trace = first_text(headers, (*of["trace"], *TRACE_HEADERS), "stack")
    error_text = first_text(headers, (*of["message"], *MESSAGE_HEADERS), "message")
    kind_of_error = first_text(headers, (*of["type"], *TYPE_HEADERS)) or _named_type(headers, of["message"])
    if not (trace or error_text or kind_of_error):
        return None
    return kind_of_error or _type_in(trace, error_text), error_text or _last_words(trace), trace


def _header_role(name: str) -> str:
    lowered = name.lower()
    if any(word in lowered for word in ("stack", "trace")):
        return "trace"
    return "type" if lowered.endswith(("type", "class", "name")) else "message"


def first_text(headers: Mapping[str, Any], names: Sequence[str], member: str = "message") -> str:
    """Return the first of these headers with text; for an error table, its `member`."""
    for name in names:
        value = headers.get(name)
        if isinstance(value, dict):
            value = value.get(member)
        if isinstance(value, list):
            value = "\n".join(map(str, value))
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    return ""


def _named_type(headers: Mapping[str, Any], more: Sequence[str]) -> str:
    tables = (headers.get(name) for name in (*more, *MESSAGE_HEADERS))
    return next((str(one["name"]) for one in tables if isinstance(one, dict) and isinstance(one.get("name"), str)), "")


def _type_in(trace: str, message: str) -> str:
    """Return the error's class if the trace or message starts with it, or a Python trace ends with it."""
    lines = [line for line in trace.strip().splitlines()[:1] + trace.strip().splitlines()[-1:] if line[:1].strip()]
    for line in (*reversed(lines), message):
        found = _TYPE.match(line)
        if found and re.search(r"(?:Error|Exception|Fault|Failure|Timeout)\w*\Z", found[1]):
            return found[1]
    return "Error"


def _last_words(trace: str) -> str:
    lines = trace.strip().splitlines()
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line.partition(": ")[2] or line


def _arguments(one: DeadLetter) -> tuple[Any, Any]:
    if one.why_unread:
        return None, None
    try:
        return rabbitmq_messages.arguments(one.parts, one.found.body)
    except SourceRefused:
        pass
    try:
        text = one.found.body.decode()
    except UnicodeDecodeError:
        return None, None
    return [text], None


def _task_of_key(one: DeadLetter, dlq: str) -> str:
    """Return the task name from an event's routing key; "" if the key is only a queue's name."""
    key = one.death.routing_key or one.found.routing_key
    return key if key not in (one.death.queue, dlq, "#") else ""


def _sent_at(parts: Parts) -> float | None:
    seconds = amqp_fields.number(parts, "timestamp")
    return float(seconds) if seconds and seconds < 2**33 else None


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _count(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return min(value, 2**31 - 1) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
