"""Reports of Dramatiq's dead letters and retries. No content of a message raises an error here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.arguments import value_at
from jobs_admin.core.display import Shown, shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.core.traces import chain_of
from jobs_admin.sources.dramatiq.message import ATTEMPT, ATTEMPTS, Message
from jobs_admin.sources.dramatiq.wire import RAW_BYTES, StoredMessage

NO_ERROR = "Dramatiq stores no error of the last attempt, and this job has no earlier error."
_LEFT_OUT = frozenset(
    ("traceback", "redrive", "redis_message_id", ATTEMPT, ATTEMPTS)
)  # shown elsewhere, or written by Redrive
_LONGEST_TRACE = 1_000_000
_RAW_HEAD = 64 * 1024
_LATEST_MS = 32_503_680_000_000  # the year 3000


def build_report(
    source: str,
    stored: StoredMessage,
    kind: str,
    lineage: Lineage | None,
    is_first: bool,
    tenant_paths: Sequence[str] = (),
) -> Envelope:
    """Build the report of a message that died or waits for a retry.

    `lineage`: of its run. `is_first`: no run of it died before.
    """
    message = stored.message
    args, kwargs = _arguments(stored)
    error, text, trace = _error(stored)
    secrets = named_values(list(message.arguments or ())) if args.redacted + kwargs.redacted else ()
    (text, in_text), (trace, in_trace) = (without_values(one, secrets) for one in (text, trace))
    shown, traced, headers = shown_message(text), shown_trace(trace), _safely(headers_of(message))
    at = (stored.at_ms or 0) / 1000
    made_at = _made_at(message) or at if is_first else at
    is_complete = stored.is_complete and stored.size <= RAW_BYTES
    return Envelope(
        source=source,
        queue=lineage.queue if lineage else stored.queue,
        task=message.actor[:500],
        job_id=stored.job_id,
        kind=kind,
        attempt=_attempts(message, kind),
        at=known_at(stored.at_ms or 0) if kind == "exception" else at,
        error_type=error[:500],
        message=shown.text,
        max_attempts=_most_attempts(message),
        due_at=_seconds(message.options.get("eta")) if kind == "retry" else None,
        tenant=_find_tenant(message, tenant_paths),
        args=args.text,
        kwargs=kwargs.text,
        headers=headers.text,
        redacted=in_text + in_trace + sum(one.redacted for one in (args, kwargs, shown, traced, headers)),
        raw=message.raw if is_complete else message.raw[:_RAW_HEAD] or None,
        raw_size=max(stored.size, len(message.raw)),
        raw_sha256=hashlib.sha256(message.raw).hexdigest() if is_complete else "",
        trace=traced.text,
        lineage=lineage,
        made_at=None if lineage else made_at,
    )


def known_at(at_ms: float) -> float:
    """Return the time of a death in seconds. A time in the future becomes now, marked by half a millisecond.

    The desk stores no future time, so the death could not be found by its own time. Dramatiq's times are whole
    milliseconds.
    """
    now = time.time() * 1000
    return (at_ms if at_ms <= now else now // 1 - 0.5) / 1000


def build_success(
    source: str, queue: str, job_id: str, task: str, lineage: Lineage | None, attempt: int, at: float
) -> Envelope:
    """Build the report of a success: of a job that was sent, or that waited for a retry."""
    return Envelope(
        source=source,
        queue=lineage.queue if lineage else queue,
        task=task[:500],
        job_id=job_id,
        kind="success",
        attempt=attempt,
        at=at,
        lineage=lineage,
    )


def _error(stored: StoredMessage) -> tuple[str, str, str]:
    """Return class, message and traceback of the latest error that Dramatiq stored."""
    if stored.size < 0:
        return "", "Dramatiq lists this dead letter, but has no message for it.", ""
    if stored.message.is_foreign:
        return "", "This message is not JSON: another encoder wrote it.", ""
    trace = stored.message.options.get("traceback")
    if not isinstance(trace, str) or not trace:
        return "", NO_ERROR, ""
    trace = trace[-_LONGEST_TRACE:]
    chain = chain_of(trace)
    return (chain[-1].error, chain[-1].message, trace) if chain else ("", trace.strip()[-1_000:], trace)


def _attempts(message: Message, kind: str) -> int:
    """Return the number of ended attempts.

    A dead letter has one more than its retries, which exclude the last attempt.
    """
    counted = message.retries if kind == "retry" else untrusted.number(message.options.get(ATTEMPTS))
    return max(1, int(counted) if counted is not None and counted < 10**6 else message.retries + 1)


def _made_at(message: Message) -> float | None:
    return _seconds(message.fields.get("message_timestamp"))


def _seconds(value: object) -> float | None:
    """Return a time of Dramatiq (ms) in seconds; None for no valid time."""
    ms = untrusted.number(value)
    return ms / 1000 if ms is not None and 0 < ms < _LATEST_MS else None


def _most_attempts(message: Message) -> int | None:
    """Return the `max_retries` of the message plus one; None if only the actor's code sets it."""
    most = untrusted.number(message.options.get("max_retries"))
    return int(most) + 1 if most is not None and 0 <= most < 10**6 else None


def _arguments(stored: StoredMessage) -> tuple[Shown, Shown]:
    found = stored.message.arguments
    if found is not None:
        return _safely(found[0]), _safely(found[1])
    if stored.size <= 0:
        return Shown("", 0), Shown("", 0)
    return _safely([f"… {stored.size} bytes that are not Dramatiq's JSON …"]), Shown("{}", 0)


def headers_of(message: Message) -> dict[str, Any]:
    """Return the options of a message and its creation time."""
    found = {name: value for name, value in message.options.items() if name not in _LEFT_OUT}
    made = message.fields.get("message_timestamp")
    return found if made is None else {"message_timestamp": made, **found}


def _safely(value: object) -> Shown:
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _find_tenant(message: Message, paths: Sequence[str]) -> str:
    args, kwargs = message.arguments or ([], {})
    for path in paths:
        found = value_at(path, args, kwargs)
        if (isinstance(found, int) and not isinstance(found, bool)) or (isinstance(found, str) and found):
            return shown_message(str(found)[:200]).text
    return ""
