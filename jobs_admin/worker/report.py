"""Conversion of a Celery request to the envelope that reports it: the raw message, and a copy to show."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kombu.utils.json import dumps

from jobs_admin.core.arguments import value_at
from jobs_admin.core.display import Shown, shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope, Lineage, encode
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.core.report_signature import SigningKey, sign
from jobs_admin.worker.decision import AGAIN, Decision
from jobs_admin.worker.next_message import OWN_HEADERS
from jobs_admin.worker.outcome import Outcome
from jobs_admin.worker.queues import Queues, place_of
from jobs_admin.worker.raw_message import Popped, body_of
from jobs_admin.worker.records import Entry
from jobs_admin.worker.sealing import Seal, unsealed

T = TypeVar("T")

RAW_BYTES = 16 * 1024**2
RAW_HEAD = 64 * 1024  # of a larger message: enough to recognise it; replays are refused
# Limits for reading arguments in a few milliseconds: the number of values costs time, not their length.
_READ_AT_ONCE = 256 * 1024  # bytes
_MOST_READ = 32 * 1024**2  # bytes
_MOST_PIECES = 60_000
# unredacted copies, and our own headers
HIDDEN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "redrive"}) | OWN_HEADERS

_MOST_INT = 2**31 - 1
HOST = socket.gethostname()


@dataclass(frozen=True, slots=True)
class Origin:
    """Fields shared by all reports of a worker."""

    source: str
    release: str
    tenant_paths: tuple[str, ...]
    queues: Queues = field(default_factory=Queues)
    seal: Seal = unsealed  # encrypts the raw message of a report
    seals_for: str = ""  # id of the public key used for encryption; "" without encryption
    key: SigningKey | None = None  # None: reports are not signed

    def entry(self, report: Envelope) -> Entry:
        """Return the report as sent: message encrypted, entry signed."""
        entry = encode(self.seal(report))
        return entry if self.key is None else sign(entry, self.key)


def queue_of(request: Any, origin: Origin) -> str:
    """Return a job's certain or most likely queue. For reports, not for decisions."""
    return place_of(request, origin.queues).name


def digest_of(request: Any) -> str:
    """Return a hash that differs for jobs of other tasks or arguments."""
    body = request.message.body
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b"")
    return hashlib.sha256(str(request.type).encode("utf-8", "surrogatepass") + b"\0" + body).hexdigest()[:16]


def known_queue(request: Any, origin: Origin) -> str:
    """Return a job's queue; "" if not certain. In the main process."""
    place = place_of(request, origin.queues)
    return place.name if place.is_sure else ""


def may_be_retried(request: Any, origin: Origin, *, is_first: bool) -> bool:
    """Return whether Redrive can redeliver a message.

    `is_first`: Celery's protocol 1, whose messages cannot count retries.
    """
    return not is_first and request.delivery_info.get("exchange") not in origin.queues.fanouts


def lineage_of(request: Any) -> Lineage | None:
    """Return a replayed job's lineage; None for a job that only inherited the header of its sender.

    Celery copies custom headers to a retry's message under the same id (tested).
    """
    sent = request.request_dict
    inner = sent.get("headers")
    header = sent.get("redrive") or (inner.get("redrive") if isinstance(inner, dict) else None)
    return Lineage.of_message(header, str(request.id)) if header is not None else None


def attempt_of(request: Any) -> int:
    """Return the number of this attempt in its run, counted from 1."""
    return attempt_number(request.request_dict.get("retries"))


def attempt_number(retries: Any) -> int:
    """Return a header's retry count as an attempt, counted from 1; 1 for a missing or invalid value."""
    if not retries:
        return 1
    try:
        return min(max(0, int(retries)) + 1, _MOST_INT)
    except (TypeError, ValueError, ArithmeticError):  # int(Infinity) raises OverflowError
        return 1


def failure(
    request: Any, outcome: Outcome, origin: Origin, duration: float | None, decision: Decision | None = None
) -> Envelope:
    """Return the report of a job that failed or will be retried.

    `decision`: a policy's decision, enforced or observed.
    """
    raw = raw_message(request.message)
    args, kwargs = arguments_of(request.message)
    shown_args, shown_kwargs = display_copy(args), display_copy(kwargs)
    own_headers = {k: v for k, v in (request.message.headers or {}).items() if k not in HIDDEN_HEADERS}
    headers = display_copy(own_headers)
    hidden = shown_args.redacted + shown_kwargs.redacted + headers.redacted
    secrets = named_values(args, kwargs, own_headers) if hidden else ()
    message, in_message = without_values(outcome.message, secrets)
    trace, in_trace = without_values(outcome.trace, secrets)
    shown_error, shown_stack = shown_message(message), shown_trace(trace, _without_us)
    attempt = attempt_of(request)
    by = None if decision is None or decision.is_observed else decision
    at = time.time()
    return Envelope(
        **_common(request, origin),
        kind=outcome.kind,
        attempt=attempt,
        at=at,
        error_type=outcome.error_type[:500],
        event_id=outcome.event_id,
        message=shown_error.text,
        max_attempts=_max_attempts(request.task, attempt, outcome.kind) if by is None else by.max_attempts,
        # Relative to `at`: exactly the decided delay, not what is left of it at this moment.
        due_at=at + by.delay_s if by and outcome.kind == "retry" else outcome.due_at,
        duration_s=duration,
        tenant=tenant_of(args, kwargs, origin.tenant_paths),
        priority=priority_of(request.delivery_info.get("priority")),
        args=shown_args.text,
        kwargs=shown_kwargs.text,
        headers=headers.text,
        redacted=hidden + in_message + in_trace + shown_error.redacted + shown_stack.redacted,
        late_ack=not request.acknowledged,
        raw_size=len(raw),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        raw=raw if len(raw) <= RAW_BYTES else raw[:RAW_HEAD],
        trace=shown_stack.text,
        policy=decision.policy if decision else "",
        reason=by.reason if by else "",
        escalate=by.escalate if by else False,
        crashes=by.records if by else "",
        observed="" if decision is None or by else _would(decision),
    )


def _would(decision: Decision) -> str:
    """Return what an observed policy would have done."""
    if decision.act == AGAIN:
        return f"would retry in {decision.delay_s:,.3g} s" + (f": {decision.reason}" if decision.reason else "")
    return f"would be dead: {decision.reason}"


# Frame of our wrapper in a traceback, removed so that a stack is the same with and without a policy.
_OUR_FRAME = re.compile(r'  File "[^"\n]*jobs_admin[/\\]worker[/\\]retrying\.py", line \d+, in \w+\n(?:    .*\n)*')


def _without_us(trace: str) -> str:
    return _OUR_FRAME.sub("", trace)


def least(request: Any, kind: str, origin: Origin) -> Envelope:
    """Return the minimal report of a job of which nothing more could be read: name, kind and message.

    Each part is read separately, because it is unknown which one fails.
    """
    raw = or_nothing(lambda: raw_message(request.message), None)
    return Envelope(
        source=origin.source,
        queue=or_nothing(lambda: queue_of(request, origin), ""),
        task=or_nothing(lambda: str(request.type)[:500], ""),
        job_id=or_nothing(lambda: str(request.id), ""),
        kind=kind,
        attempt=or_nothing(lambda: attempt_of(request), 1),
        at=time.time(),
        message="Redrive could not read how this job ended; the worker's log says why. Its message is kept whole.",
        worker=or_nothing(lambda: str(request.hostname), ""),
        host=HOST,
        release=origin.release,
        lineage=or_nothing(lambda: lineage_of(request), None),
        raw_size=len(raw or b""),
        raw=raw if raw is None or len(raw) <= RAW_BYTES else raw[:RAW_HEAD],
    )


def or_nothing(part: Callable[[], T], nothing: T) -> T:
    """Return the part, or `nothing` if reading it fails."""
    try:
        return part()
    except Exception:  # the guard has already counted and logged the error that led here
        return nothing


def success(request: Any, origin: Origin, duration: float | None) -> Envelope:
    """Return the report of a success after trouble: small, because the message is already known."""
    return Envelope(
        **_common(request, origin),
        kind="success",
        attempt=attempt_of(request),
        at=time.time(),
        duration_s=duration,
        late_ack=not request.acknowledged,
    )


def _common(request: Any, origin: Origin) -> dict[str, Any]:
    return {
        "source": origin.source,
        "queue": queue_of(request, origin),
        "task": str(request.type)[:500],
        "job_id": str(request.id),
        "worker": str(request.hostname),
        "host": HOST,
        "release": origin.release,
        "lineage": lineage_of(request),
    }


def raw_message(message: Any) -> bytes:
    """Return the broker's message. On Redis: the list element, byte for byte.

    On other brokers, the same structure is built from the delivered parts.
    """
    payload = getattr(message, "_raw", None)
    if isinstance(payload, Popped):
        return payload.element
    if payload is None:
        properties = {name: value for name, value in message.properties.items() if name != "application_headers"}
        payload = {
            "body": base64.b64encode(body_of(message)).decode(),
            "content-encoding": message.content_encoding,
            "content-type": message.content_type,
            "headers": message.headers,
            "properties": {
                **properties,  # without the headers, which are above
                "delivery_info": {k: message.delivery_info.get(k) for k in ("exchange", "routing_key")},
                "body_encoding": "base64",
                "delivery_tag": message.delivery_tag,
            },
        }
    text: str = dumps(payload)  # type: ignore[no-untyped-call]
    return text.encode("utf-8", "surrogatepass")


def _is_soon_read(body: Any) -> bool:
    if not isinstance(body, str | bytes) or len(body) <= _READ_AT_ONCE:
        return True
    marks: tuple[Any, ...] = (",", "[", "{") if isinstance(body, str) else (b",", b"[", b"{")
    return len(body) <= _MOST_READ and sum(map(body.count, marks)) <= _MOST_PIECES


def arguments_of(message: Any) -> tuple[Any, Any]:
    """Return the message's arguments; (None, None) if they are not JSON. Nothing is unpickled.

    If there are too many for a worker to read without delay, return a note instead. The desk reads them all.
    """
    if message.content_type != "application/json":
        return None, None
    if not _is_soon_read(message.body):
        note = f"… {len(message.body)} bytes of arguments, too many to read in a worker …"
        return [note], {}
    try:
        body = json.loads(message.body)
    except (ValueError, TypeError, RecursionError):
        return None, None
    if isinstance(body, list) and len(body) >= 2:
        return body[0], body[1]
    if isinstance(body, dict):  # protocol 1, and producers in other languages
        return body.get("args"), body.get("kwargs")
    return None, None


def display_copy(value: Any) -> Shown:
    """Return the copy to show of a JSON value; empty if none can be made."""
    if value is None:
        return Shown("", 0)
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _max_attempts(task: Any, attempt: int, kind: str) -> int | None:
    """Every Celery task has `max_retries` 3, even if it never retries: it only limits tasks that do."""
    retries = kind == "retry" or attempt > 1 or bool(getattr(task, "autoretry_for", ()))
    if not retries:
        return 1
    most = getattr(task, "max_retries", None)
    return None if most is None else max(int(most) + 1, attempt)


def tenant_of(args: Any, kwargs: Any, paths: tuple[str, ...]) -> str:
    """Return the job's tenant by the first path found; "" if there is none."""
    for path in paths:
        value = value_at(path, args, kwargs)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return shown_message(str(value)[:200]).text
    return ""


def priority_of(priority: object) -> int | None:
    return priority if isinstance(priority, int) and abs(priority) <= _MOST_INT else None
