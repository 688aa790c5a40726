"""From a Celery request to the envelope that reports it: the raw message as it is, and a copy to show."""

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
from jobs_admin.worker.next_message import WAITED
from jobs_admin.worker.outcome import Outcome
from jobs_admin.worker.queues import Queues, place_of
from jobs_admin.worker.raw_message import Popped, body_of
from jobs_admin.worker.records import Entry
from jobs_admin.worker.sealing import Seal, unsealed

T = TypeVar("T")

RAW_BYTES = 16 * 1024**2
RAW_HEAD = 64 * 1024  # of a message that is larger: enough to recognise it; a replay is refused
# Arguments are read where that takes some milliseconds: it is their number that takes time, not their length.
_READ_AT_ONCE = 256 * 1024  # bytes
_MOST_READ = 32 * 1024**2  # bytes
_MOST_PIECES = 60_000
HIDDEN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "redrive", WAITED})  # unredacted copies, and our own

_MOST_INT = 2**31 - 1
HOST = socket.gethostname()


@dataclass(frozen=True, slots=True)
class Origin:
    """The part that every report of a worker shares."""

    source: str
    release: str
    tenant_paths: tuple[str, ...]
    queues: Queues = field(default_factory=Queues)
    seal: Seal = unsealed  # what encrypts the raw message of a report
    seals_for: str = ""  # id of the public key that it encrypts for; "" where it does not
    key: SigningKey | None = None  # None: reports are not signed

    def entry(self, report: Envelope) -> Entry:
        """Return the report as it leaves the worker: its message encrypted, all of it signed."""
        entry = encode(self.seal(report))
        return entry if self.key is None else sign(entry, self.key)


def queue_of(request: Any, origin: Origin) -> str:
    """The queue a job came from, or that it most likely came from. For reports; not for decisions."""
    return place_of(request, origin.queues).name


def known_queue(request: Any, origin: Origin) -> str:
    """The queue a job came from; "" where that is not sure. In the main process."""
    place = place_of(request, origin.queues)
    return place.name if place.is_sure else ""


def may_be_retried(request: Any, headers: dict[str, Any], origin: Origin) -> bool:
    """Return whether a message can come again by our hand. `headers` are as Celery holds them."""
    # `utc` is of Celery's first protocol, whose messages have no place where we could count retries.
    return "utc" not in headers and request.delivery_info.get("exchange") not in origin.queues.fanouts


def lineage_of(request: Any) -> Lineage | None:
    """Return where a replayed job comes from. Celery hands custom headers on to the message of a retry (tested), under the same id.

    None for a job that only has the header of the one that sent it.
    """
    sent = request.request_dict
    inner = sent.get("headers")
    header = sent.get("redrive") or (inner.get("redrive") if isinstance(inner, dict) else None)
    return Lineage.of_message(header, str(request.id)) if header is not None else None


def attempt_of(request: Any) -> int:
    """Executions so far in this run; the first is 1."""
    return attempt_number(request.request_dict.get("retries"))


def attempt_number(retries: Any) -> int:
    """Return what a message's header says as an attempt, counted from 1; hostile or missing: the first."""
    if not retries:
        return 1
    try:
        return min(max(0, int(retries)) + 1, _MOST_INT)
    except (TypeError, ValueError, ArithmeticError):  # int(Infinity) is an OverflowError
        return 1


def failure(
    request: Any, outcome: Outcome, origin: Origin, duration: float | None, decision: Decision | None = None
) -> Envelope:
    """The report of a job that ended badly, or will be tried again. `decision`: what a policy says of it, or would."""
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
        message=shown_error.text,
        max_attempts=_max_attempts(request.task, attempt, outcome.kind) if by is None else by.max_attempts,
        # Told as a difference to `at`: exactly what was decided, not what was left of it when this was written.
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
    """Return what a policy would have done, had it been enforced."""
    if decision.act == AGAIN:
        return f"would retry in {decision.delay_s:,.3g} s" + (f": {decision.reason}" if decision.reason else "")
    return f"would be dead: {decision.reason}"


# Our wrapper around a task's function, as Python writes a frame: so a stack is the same with and without a policy.
_OUR_FRAME = re.compile(r'  File "[^"\n]*jobs_admin[/\\]worker[/\\]retrying\.py", line \d+, in \w+\n(?:    .*\n)*')


def _without_us(trace: str) -> str:
    return _OUR_FRAME.sub("", trace)


def least(request: Any, kind: str, origin: Origin) -> Envelope:
    """The report of a job of which nothing more could be read: what it is, how it ended, and its message.

    Each part is read separately, because the one that cannot be had is not known here.
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
    """Return what can be read of a part; `nothing` where that fails."""
    try:
        return part()
    except Exception:  # the border of capture: the guard has counted and said the error that led here
        return nothing


def success(request: Any, origin: Origin, duration: float | None) -> Envelope:
    """The report that ends a trouble: small, since the message is known already."""
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
    """The broker's message. On Redis: the element of the list, byte for byte.

    Elsewhere the same shape is put together from the parts that the broker delivered.
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
                **properties,  # without the headers, which stand above
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
    """Arguments as the message has them, (None, None) where they are not JSON. Nothing is ever unpickled here.

    Of a message with more of them than a worker can read without delay: a sentence. The desk reads them all.
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
    if isinstance(body, dict):  # the first protocol, and other languages' producers
        return body.get("args"), body.get("kwargs")
    return None, None


def display_copy(value: Any) -> Shown:
    """The copy to show of what came in as JSON; empty where none can be made."""
    if value is None:
        return Shown("", 0)
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _max_attempts(task: Any, attempt: int, kind: str) -> int | None:
    """Every Celery task has `max_retries` 3, also those that never retry: only a task that does is bounded by it."""
    retries = kind == "retry" or attempt > 1 or bool(getattr(task, "autoretry_for", ()))
    if not retries:
        return 1
    most = getattr(task, "max_retries", None)
    return None if most is None else max(int(most) + 1, attempt)


def tenant_of(args: Any, kwargs: Any, paths: tuple[str, ...]) -> str:
    """Return whose job it is, by the first of the paths that is there; "" where none is."""
    for path in paths:
        value = value_at(path, args, kwargs)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return shown_message(str(value)[:200]).text
    return ""


def priority_of(priority: object) -> int | None:
    return priority if isinstance(priority, int) and abs(priority) <= _MOST_INT else None
