"""Reports of RQ's jobs, and their display. Nothing here raises for a job's content."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.arguments import value_at
from jobs_admin.core.display import Shown, shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.core.traces import chain_of
from jobs_admin.sources.rq import pickled
from jobs_admin.sources.rq.call import Call
from jobs_admin.sources.rq.job_hash import LONGEST_TEXT, RAW_BYTES, Job, pack, text_of

_RAW_HEAD = 64 * 1024
_CALL = re.compile(r"[\w.<>]+(?=\()")
_ABANDONED, _KILLED = "AbandonedJobError", "Work-horse terminated unexpectedly"
_SHOWN_HEADERS = (
    b"created_at", b"enqueued_at", b"timeout", b"result_ttl", b"failure_ttl", b"ttl", b"retries_left", b"retry_intervals",
    b"number_of_retries", b"repeats_left", b"repeat_intervals", b"dependency_ids", b"allow_dependency_failures", b"group_id",
    b"success_callback_name", b"failure_callback_name", b"stopped_callback_name", b"webhooks", b"rate_limit_key",
    b"rate_limit_concurrency",
)  # fmt: skip


def build_report(source: str, job: Job, kind: str, tenant_paths: Sequence[str] = ()) -> Envelope:
    """Build the report of the latest attempt.

    `kind`: `exception` for a final failure, `retry` for a waiting one, `success`.
    """
    lineage, call = (job.sent_record.lineage if job.sent_record else None), job.call
    args, kwargs = _shown_arguments(job, call)
    error, kind = (("", "", ""), kind) if kind == "success" else _read_error(job, kind)
    secrets = named_values([call.args, call.kwargs]) if args.redacted + kwargs.redacted else ()
    (message, in_message), (trace, in_trace) = (without_values(text, secrets) for text in error[1:])
    shown, traced, headers = shown_message(message), shown_trace(trace), _safely(headers_of(job.fields))
    raw = pack(job) if job.kind == "hash" else None
    is_cut = raw is not None and (len(raw) > RAW_BYTES or job.size > RAW_BYTES)
    is_exhausted = kind == "exception" and job.number("retries_left", "number_of_retries") is not None
    return Envelope(
        source=source,
        queue=lineage.queue if lineage else job.queue,
        task=_task(job)[:500],
        job_id=job.id,
        kind=kind,
        attempt=job.attempt,
        at=job.ended_at,
        error_type=error[0][:500],
        message=shown.text,
        max_attempts=job.max_attempts,
        due_at=job.due_at if kind == "retry" else None,
        duration_s=_duration(job),
        worker=text_of(job.fields.get(b"worker_name", b""))[:255],
        tenant=_find_tenant(call, tenant_paths),
        args=args.text,
        kwargs=kwargs.text,
        headers=headers.text,
        redacted=in_message + in_trace + sum(one.redacted for one in (args, kwargs, shown, traced, headers)),
        reason="exhausted" if is_exhausted and job.status != "stopped" else "",
        raw=raw[:_RAW_HEAD] if raw is not None and is_cut else raw,
        raw_size=max(len(raw or b""), job.size) if is_cut else len(raw or b""),
        raw_sha256=hashlib.sha256(raw).hexdigest() if raw is not None and not is_cut else "",
        trace=traced.text,
        lineage=lineage,
        made_at=job.made_at,
    )


def _read_error(job: Job, kind: str) -> tuple[tuple[str, str, str], str]:
    """Return (class, message, traceback) of the latest attempt, and its kind of ending."""
    if kind == "retry":
        return ("", "RQ stores no error of an attempt that it retries.", ""), kind
    if job.kind != "hash":
        return ("", "RQ lists this job as failed, but has no data for it.", ""), kind
    text = _error_text(job)
    if text.startswith(_KILLED) or _ABANDONED in text[:200]:
        return (_ABANDONED if _ABANDONED in text else "", text, ""), "worker_lost"
    chain = chain_of(text)
    if chain:
        return (chain[-1].error, chain[-1].message, text), kind
    if not text and job.death is not None and job.death.type == "5":
        text = "The job returned Retry more often than it allows."
    return ("", text, ""), kind


def _error_text(job: Job) -> str:
    if job.death is not None and job.death.error:
        try:
            compressed = base64.b64decode(job.death.error, validate=True)
            return text_of(zlib.decompressobj().decompress(compressed, LONGEST_TEXT))
        except (binascii.Error, ValueError, zlib.error):
            return "The stored error cannot be read."
    return job.abandoned


def _task(job: Job) -> str:
    """Return the function, with its class for a method; from the description if the call cannot be read."""
    call = job.call
    if isinstance(call.instance, dict) and "object" in call.instance:
        return f"{call.instance['object']}.{call.function}"
    if call.function:
        return call.function
    described = _CALL.match(text_of(job.fields.get(b"description", b"")[:1_000]))
    return described[0] if described else ""


def _shown_arguments(job: Job, call: Call) -> tuple[Shown, Shown]:
    if call.args is not None:
        return _safely(call.args), _safely(call.kwargs)
    if job.kind != "hash" or b"data" not in job.fields:
        return Shown("", 0), Shown("", 0)
    return _safely([f"… {len(job.fields[b'data'])} bytes, neither JSON nor a pickle that can be shown …"]), Shown(
        "{}", 0
    )


def headers_of(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return a job's facts other than its arguments, with RQ's names."""
    shown: dict[str, Any] = {}
    for name in _SHOWN_HEADERS:
        if value := fields.get(name):
            text = text_of(value[:20_000])
            parsed = untrusted.read(text) if text[:1] in "[{" or text.isdigit() else None
            shown[name.decode()] = text if parsed is None else parsed
    if meta := fields.get(b"meta"):
        shown["meta"] = _read_meta(meta)
    return shown


def _read_meta(meta: bytes) -> Any:
    if meta[:1] == b"{" and (found := untrusted.read(meta)) is not None:
        return found
    try:
        return pickled.read(meta)[0]
    except pickled.NotPickled:
        return f"… {len(meta)} bytes, neither JSON nor a pickle that can be shown …"


def _safely(value: object) -> Shown:
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _find_tenant(call: Call, paths: Sequence[str]) -> str:
    for path in paths:
        found = value_at(path, call.args or [], call.kwargs)
        if (isinstance(found, int) and not isinstance(found, bool)) or (isinstance(found, str) and found):
            return shown_message(str(found)[:200]).text
    return ""


def _duration(job: Job) -> float | None:
    started, ended = job.time("started_at"), job.time("ended_at")
    return max(0.0, ended - started) if started and ended else None
