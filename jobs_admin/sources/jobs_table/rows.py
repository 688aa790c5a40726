"""Rows of a jobs table: the report of an attempt, and the stored message."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs_admin.core import display, traces
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.jobs_table.names import Names

MOST_PAYLOAD = 15 * 2**20  # of a larger one only the start is read, and no complete message is stored
HEAD_OF_PAYLOAD = 64 * 1024
_MOST_ERROR = 1_000_000  # characters that are read

_TYPE = re.compile(
    r"\s*(?:Uncaught )?((?:[A-Za-z_$][\w$]*[.:]{1,2})*[\w$]*"
    r"(?:Error|Exception|Timeout|Interrupt|Fault|Failure|Warning|Exit))(?: \[[\w.]+\])?(?::\s|$)"
)
_PYTHON = ("Traceback (most recent call last)", "+ Exception Group Traceback (most recent call last)")
_LONGEST_TYPE = 1_000  # characters of a line searched for a class
_FRAME = re.compile(r"^\s+at \S|^\s+File \"", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Record of the latest time that we sent a job."""

    lineage: Lineage | None
    attempts: int  # counted as made then
    made_at: float | None = None  # creation time in the row then; None if it had none


@dataclass(frozen=True, slots=True)
class Job:
    """Values read from a row. Times are Unix seconds; None if the table has none."""

    id: str
    status: str
    attempts: int
    max_attempts: int | None
    updated_at: float
    due_at: float | None = None
    locked_at: float | None = None
    locked_by: str = ""
    created_at: float | None = None
    queue: str = ""
    type: str = ""
    error: str = ""
    error_type: str = ""  # from its own column, if there is one
    tenant: str = ""
    priority: int | None = None
    payload: str | bytes | None = None  # only the start if it is too large
    payload_size: int = 0
    sent: SentRecord | None = None  # our latest sending
    is_another: bool = False  # another job than the one we sent under this id


def outcome(job: Job, names: Names, now: float) -> str:
    """Return the outcome of the latest attempt; "" if there is nothing to report."""
    if job.status == names.failed:
        return "exception"
    if job.status == names.pending and names.preset.has_retries and is_retry(job):
        return "retry"
    if job.status == names.running and is_stale(job, names, now):
        return "lost"
    if job.status == names.completed and job.sent is not None:
        return "success"
    return ""


def is_retry(job: Job) -> bool:
    """Return whether a row waits for a retry, rather than for a first attempt sent by us or others."""
    if job.attempts < 1 or (job.sent is not None and job.attempts == job.sent.attempts):
        return False
    return job.max_attempts is None or job.attempts < job.max_attempts


def is_stale(job: Job, names: Names, now: float) -> bool:
    return job.locked_at is not None and job.locked_at < now - names.stale_after_s


def ended_at(job: Job, kind: str, names: Names) -> float:
    """Return the end of the attempt, Unix seconds; for a lost one, the time it was given up."""
    return (job.locked_at or job.updated_at) + names.stale_after_s if kind == "lost" else job.updated_at


def build_report(source: str, job: Job, kind: str, names: Names) -> Envelope:
    """Return the report of an attempt with this outcome."""
    # The column counts failed attempts: a lost or successful attempt is one more.
    is_beyond = kind in ("lost", "success") and not names.attempts_at_start
    if kind == "success":  # its message is already stored
        return Envelope(
            source=source, queue=job.queue, task=job.type or names.table, job_id=job.id, kind=kind,
            attempt=max(1, job.attempts + is_beyond), at=job.updated_at, max_attempts=job.max_attempts, tenant=job.tenant,
            priority=job.priority, lineage=job.sent.lineage if job.sent else None,
        )  # fmt: skip
    args, kwargs, value = _shown_payload(job.payload, nests_arguments=names.preset.nests_arguments)
    headers = display.shown_json(
        {"table": names.table, "id": job.id, "status": job.status}
        | ({"locked_by": job.locked_by} if job.locked_by else {})
    )
    raw, size = pack(job, names)
    envelope = Envelope(
        source=source,
        queue=job.queue,
        task=job.type or names.table,
        job_id=job.id,
        kind=kind,
        attempt=max(1, job.attempts + is_beyond),
        at=job.updated_at,
        max_attempts=job.max_attempts,
        tenant=job.tenant,
        priority=job.priority,
        args=args.text,
        kwargs=kwargs.text,
        headers=headers.text,
        redacted=args.redacted + kwargs.redacted + headers.redacted,
        raw_size=size,
        raw_sha256=hashlib.sha256(raw).hexdigest() if size == len(raw) else "",
        made_at=job.created_at,
        lineage=job.sent.lineage if job.sent else None,
        raw=raw,
    )
    if kind == "lost":
        text = (
            f"Its row is {names.running}, and its lock is older than {names.stale_after_s:g} s: "
            "its worker is gone or hangs."
        )
        return replace(envelope, at=ended_at(job, kind, names), message=text, worker=job.locked_by, reason="stale lock")
    error_type, message, trace = error(job.error)
    error_type = job.error_type.removeprefix("builtins.").removeprefix("__main__.") or error_type
    secrets = named_values(value) if args.redacted + kwargs.redacted else ()
    (message, in_message), (trace, in_trace) = without_values(message, secrets), without_values(trace, secrets)
    shown, shown_stack = display.shown_message(message), display.shown_trace(trace)
    return replace(
        envelope,
        error_type=error_type[:255],
        message=shown.text,
        trace=shown_stack.text if trace else "",
        redacted=envelope.redacted + in_message + in_trace + shown.redacted + (shown_stack.redacted if trace else 0),
        due_at=(job.due_at if job.due_at is not None else job.updated_at) if kind == "retry" else None,
        worker=job.locked_by,
    )


def error(text: str) -> tuple[str, str, str]:
    """Return class, message and stack in an error's text; "" for missing parts."""
    text = text[:_MOST_ERROR].strip()
    first, _, below = text.partition("\n")
    trace = ""
    if text.startswith(_PYTHON):
        trace, first = text, text.rstrip().rpartition("\n")[2]
        if (chain := traces.chain_of(text)) and chain[-1].error:
            return chain[-1].error, chain[-1].message or chain[-1].error, trace
    elif below and _FRAME.search(below):
        trace = text
    found = _TYPE.match(first[:_LONGEST_TYPE])
    if found is None:
        return "", first if trace else text, trace
    message = first if trace else text
    return found[1], message[found.end() :].strip() or message, trace


def pack(job: Job, names: Names) -> tuple[bytes, int]:
    """Return the stored message of a row, with everything needed to send and edit it, and its untruncated length."""
    payload: Any = job.payload
    if isinstance(payload, bytes):
        payload = {"base64": base64.b64encode(payload).decode()}
    fields = {"jobs_table": 1, "table": names.table, "id": job.id, "type": job.type, "payload": payload}
    if names.preset.nests_arguments:
        fields["nests_arguments"] = True
    raw = json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode()
    left_out = 0 if job.payload is None else max(0, job.payload_size - MOST_PAYLOAD)
    return raw, len(raw) + left_out


def unpack(raw: bytes) -> Mapping[str, Any]:
    """Parse a stored message. Raises SourceRefused if it is not ours."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The captured message is not from a jobs table.") from error
    if not isinstance(fields, dict) or fields.get("jobs_table") != 1 or "payload" not in fields:
        raise SourceRefused("The captured message is not from a jobs table.")
    return fields


def arguments(raw: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the payload as arguments: an object as keyword arguments, a list as positional ones, any other value
    as one. Raises SourceRefused.
    """
    fields = unpack(raw)
    payload = fields["payload"]
    try:
        value: Any = json.loads(payload) if isinstance(payload, str) else None
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The payload of this job is not JSON, so it cannot be edited.") from error
    if not isinstance(payload, str):
        raise SourceRefused("The payload of this job is not text, so it cannot be edited.")
    if fields.get("nests_arguments"):
        if not _is_nested(value):
            raise SourceRefused("The payload of this job has no args and kwargs, so it cannot be edited.")
        return value["args"], value["kwargs"]
    if isinstance(value, dict):
        return [], value
    return (value, {}) if isinstance(value, list) else ([value], {})


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("args"), list) and isinstance(value.get("kwargs"), dict)


def edit_payload(raw: bytes, args: list[Any] | None, kwargs: dict[str, Any] | None) -> str:
    """Return the payload with these arguments, in its original structure. Raises SourceRefused if they do not fit."""
    had_args, had_kwargs = arguments(raw)
    fields = unpack(raw)
    value = json.loads(fields["payload"])
    new_args = had_args if args is None else args
    new_kwargs = had_kwargs if kwargs is None else kwargs
    new: Any
    if fields.get("nests_arguments"):
        fits, new = True, {**value, "args": new_args, "kwargs": new_kwargs}
    elif isinstance(value, dict):
        fits, new = not new_args, new_kwargs
    elif isinstance(value, list):
        fits, new = not new_kwargs, new_args
    else:
        fits, new = not new_kwargs and len(new_args) == 1, (new_args or [None])[0]
    if not fits:
        raise SourceRefused(
            "The payload of this job is one JSON value: an object has only named arguments, a list only others."
        )
    return json.dumps(new, ensure_ascii=False, separators=(",", ":"))


def _shown_payload(payload: str | bytes | None, *, nests_arguments: bool) -> tuple[display.Shown, display.Shown, Any]:
    """Return positional and keyword arguments for display, and the value itself; None if it is not JSON."""
    nothing = display.Shown("[]", 0), display.Shown("{}", 0)
    if payload is None:
        return *nothing, None
    if isinstance(payload, bytes):
        return display.shown_json([f"<{len(payload)} bytes>"]), nothing[1], None
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        value = payload
    if nests_arguments and _is_nested(value):
        return display.shown_json(value["args"]), display.shown_json(value["kwargs"]), value
    if isinstance(value, dict):
        return nothing[0], display.shown_json(value), value
    return display.shown_json(value if isinstance(value, list) else [value]), nothing[1], value
