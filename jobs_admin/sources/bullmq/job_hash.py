"""BullMQ jobs by their hash: the report to file, and the message to send again.

Fields of a job's hash, measured with BullMQ 4.18, 5.81 and 6.7: `atm` (before 5 `attemptsMade`), executions that ended;
`stc`, number of stalls; `defa` and `failedReason`, the reason of the failure; `stacktrace`, one text per execution that
threw, latest last. Any field may contain anything: nothing here raises for a job's content except SourceRefused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from jobs_admin.core.arguments import value_at
from jobs_admin.core.display import Shown, shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.core.traces import error_of, stack_of
from jobs_admin.sources.base import SourceRefused

# Notes of the Node agent (`clients/node`) about an attempt, in the job's own hash. The agent decides before BullMQ
# moves the job, so every reader of the job also has the note. It identifies its execution by the start time that BullMQ
# wrote: a note of an earlier execution does not apply.

NOTE = b"redriveNote"
_MOST_BYTES = 100_000  # a hundred crashes take about 30,000


def add_note(report: Envelope, fields: Mapping[bytes, bytes]) -> Envelope:
    """Return the report with the worker's note.

    Anyone may write into a hash: anything but a valid note is ignored, and nothing raises.
    """
    note = _note(fields)
    if note is None:
        return report
    found: dict[str, Any] = {name: _text(note, name, most) for name, most in _TEXTS.items()}
    extended = replace(report, **{name: value for name, value in found.items() if value})
    if report.kind == "success" or not extended.policy or extended.observed:
        return extended
    most = note.get("max_attempts")
    if isinstance(most, int) and not isinstance(most, bool) and 0 < most <= 1_000:
        extended = replace(extended, max_attempts=most)
    if report.kind == "retry":
        return extended
    extended = replace(extended, reason=_text(note, "reason", 300), escalate=note.get("escalate") is True)
    crashes = note.get("crashes")
    if isinstance(crashes, list) and crashes and all(isinstance(one, dict) for one in crashes):
        # Its text is an exit code or a signal; secrets are redacted as everywhere.
        shown = [one | {"said": shown_message(str(one.get("said", ""))[:200]).text} for one in crashes[:100]]
        return replace(extended, kind="worker_lost", crashes=json.dumps(shown))
    return extended


_TEXTS = {"worker": 255, "host": 255, "release": 100, "policy": 80, "observed": 300}


def _note(fields: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    text = fields.get(NOTE)
    if not text or len(text) > _MOST_BYTES:
        return None
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    began = fields.get(b"processedOn", b"")
    if not isinstance(note, dict) or note.get("v") != 1 or str(note.get("of")).encode("utf-8", "replace") != began:
        return None
    return note


def _text(note: dict[str, Any], name: str, most: int) -> str:
    value = note.get(name)
    return value[:most] if isinstance(value, str) else ""


Fields = Mapping[bytes, bytes]

# Everything a job needs to run again. Results of an execution (`failedReason`, `finishedOn`, `stacktrace` …) are not
# included.
STORED_FIELDS = (
    *(b"name", b"data", b"opts", b"timestamp", b"delay", b"priority"),
    *(b"parentKey", b"parent", b"rjk", b"deid", b"nrjid", b"pb", b"tm", b"omc"),
)
# Also read from a failed job.
REPORTED_FIELDS = (
    *(b"failedReason", b"defa", b"stacktrace", b"finishedOn", b"processedOn"),
    *(b"attemptsMade", b"atm", b"ats", b"stc", b"redrive", NOTE),
)
STALLED = "job stalled more than allowable limit"
DROPPED = (
    "BullMQ dropped it at once (removeOnFail: true): only that it failed is known, and it cannot be sent again. "
    "Set removeOnFail: {count: 1000} where it is added."
)
_UNRECOVERABLE = "UnrecoverableError"
_UNKNOWN_TYPE = "Error"

RAW_BYTES = 16 * 1024**2
RAW_HEAD = 64 * 1024  # of a larger job: enough to recognise it; replays are refused
_READ_BYTES = 4 * 1024**2  # of longer data, only the start is shown, as text
_TEXT_SHOWN = 16_000
_HEAD_BYTES = 1024**2
_MOST_STACKS = 1_000
_REMEMBERED = 16_000  # characters of an error; 256 errors are cached
_MOST_INT = 2**31 - 1

# `opts` in a hash -> names in BullMQ's documentation (`optsDecodeMap` of 5.81 and 6.7; `tm` and `omc` are telemetry).
_IN_WORDS = {
    "de": "deduplication",
    "fpof": "failParentOnFailure",
    "cpof": "continueParentOnFailure",
    "idof": "ignoreDependencyOnFailure",
    "rdof": "removeDependencyOnFailure",
    "kl": "keepLogs",
}
_IN_SHORT = {word: short for short, word in _IN_WORDS.items()}


# -- stored messages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Stored part of a job, enough to restore it."""

    major: int  # of the BullMQ it was read from
    queue: str
    job_id: str
    fields: dict[bytes, bytes]
    # If read from a copy: the dead-letter queue, the id there, and the creation time by its hash ("": unknown).
    copy: tuple[str, str, str] | None = None
    more: dict[str, Any] = field(default_factory=dict)


def pack(message: Message) -> bytes:
    """Encode a message: a line that lists the fields, then each field's original bytes, so that 16 MB of data stay
    16 MB.
    """
    head_fields = {
        "bullmq": message.major,
        "queue": message.queue,
        "id": message.job_id,
        "fields": [[_escaped(name), len(value)] for name, value in message.fields.items()],
    }
    if message.copy:
        head_fields["copy"] = list(message.copy)
    head = json.dumps(head_fields | message.more, ensure_ascii=True, separators=(",", ":")).encode()
    return b"".join([head, b"\n", *message.fields.values()])


def unpack(raw: bytes) -> Message:
    """Decode a message. Raises SourceRefused for another form, and for a truncated one."""
    end = raw.find(b"\n", 0, _HEAD_BYTES)
    try:
        head_fields = json.loads(raw[: max(0, end)])
        fields: dict[bytes, bytes] = {}
        at = end + 1
        for name, size in head_fields.pop("fields"):
            fields[_bytes(name)] = raw[at : at + size]
            at += size
        if at != len(raw):
            raise SourceRefused("The captured job is not whole. Nothing was sent.")
        copy = head_fields.pop("copy", None)
        return Message(
            int(head_fields.pop("bullmq")),
            str(head_fields.pop("queue")),
            str(head_fields.pop("id")),
            fields,
            (str(copy[0]), str(copy[1]), str(copy[2]) if len(copy) > 2 else "") if copy else None,
            head_fields,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError) as error:
        raise SourceRefused("The captured message is not a job of BullMQ or Bull. Nothing was sent.") from error


def _escaped(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def arguments(raw: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return a job's data as arguments: an object as keyword arguments, else as the only argument.

    Raises SourceRefused.
    """
    return _as_arguments(_parsed(unpack(raw).fields.get(b"data", b"")))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The job's data is not JSON, so it cannot be read. It can be sent as it is.") from error


def _as_arguments(data: Any) -> tuple[list[Any], dict[str, Any]]:
    return ([], data) if isinstance(data, dict) else ([data], {})


def encode_edited(args: list[Any] | None, kwargs: dict[str, Any] | None) -> bytes | None:
    """Return the job's data with these arguments, in JavaScript's JSON form; None without an edit.

    Raises SourceRefused.
    """
    if args is None and kwargs is None:
        return None
    if args:
        if kwargs or len(args) > 1:
            raise SourceRefused("A job of BullMQ or Bull has one value: an object, or one argument. Nothing was sent.")
        return _compact(args[0])
    return _compact(kwargs or {})


def _compact(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JavaScript also escapes
        return json.dumps(value, separators=(",", ":")).encode()


# -- reports -----------------------------------------------------------------------------------------------------


def build_report(
    source: str,
    queue: str,
    job_id: str,
    fields: Fields,
    major: int,
    *,
    kind: str = "exception",
    lineage: Lineage | None = None,
    before: tuple[int, int] = (0, 0),
    at: float | None = None,
    due_at: float | None = None,
    size: int | None = None,
    crashes: str = "",
    copy: tuple[str, str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    flow: Mapping[str, Any] | None = None,
    tenant_paths: Sequence[str] = (),
) -> Envelope:
    """Build the report of one attempt of the job with this hash.

    `kind`: `exception` for a final failure, `retry` for a waiting one (with `due_at`, Unix seconds), `success`.

    `before`: executions and stack traces counted when we sent it, which do not belong to this run. `at`: end of the
    attempt, if not in the hash (Unix seconds). `size`: bytes of data too large to be read. `crashes`: JSON, if it is in
    quarantine because it crashed its workers. `copy`, `more`: of the message. `flow`: its known children, for display.
    """
    # In one function: each branch is the default of one field.
    succeeded = kind == "success"
    options = options_of(fields)
    reason = text_of(fields.get(b"failedReason") or fields.get(b"defa") or b"")
    stacks = stacks_of(fields)
    trace = stacks[-1] if stacks and not succeeded else ""
    args, kwargs, value = _shown_data(fields.get(b"data"), size)
    secrets = named_values(value) if args.redacted + kwargs.redacted else ()
    (reason, in_reason), (trace, in_trace) = without_values(reason, secrets), without_values(trace, secrets)
    error_type, shown, traced = _error_shown(reason, trace)
    headers = _safely({**headers_of(fields), **(flow or {})})
    attempt = max(1, executions(fields, before))
    most = _at_most(options.get("attempts")) or 1
    is_lost = bool(crashes) or reason == STALLED
    if kind == "exception" and is_lost:
        kind = "worker_lost"
    stored = {name: fields[name] for name in STORED_FIELDS if fields.get(name) is not None}
    raw = pack(Message(major, queue, job_id, stored, copy, dict(more or {})))
    raw_size = len(raw) + (size or 0) if b"data" not in stored else len(raw)
    envelope = Envelope(
        source=source,
        queue=lineage.queue if lineage else queue,
        task=text_of(fields.get(b"name", b""))[:500],
        job_id=job_id,
        kind=kind,
        attempt=attempt,
        at=at or _seconds(fields.get(b"finishedOn")) or _seconds(fields.get(b"processedOn")) or 0.0,
        error_type="" if succeeded or (is_lost and error_type == _UNKNOWN_TYPE) else error_type[:500],
        message="" if succeeded else shown.text,
        max_attempts=most,
        due_at=due_at,
        duration_s=_duration(fields),
        worker=text_of(fields.get(b"pb", b""))[:255],
        tenant=_find_tenant(value, tenant_paths),
        priority=_at_most(fields.get(b"priority")) or _at_most(options.get("priority")) or None,
        args=args.text,
        kwargs=kwargs.text,
        headers=headers.text,
        redacted=in_reason + in_trace + sum(one.redacted for one in (args, kwargs, shown, traced, headers)),
        reason=_why(error_type, attempt, most) if kind == "exception" else "",
        crashes=crashes,
        raw=raw if raw_size <= RAW_BYTES else raw[:RAW_HEAD],
        raw_size=raw_size,
        raw_sha256=hashlib.sha256(raw).hexdigest() if raw_size == len(raw) else "",
        trace=traced.text,
        lineage=lineage,
        made_at=made_at(fields),
    )
    return add_note(envelope, fields)


def build_dropped_report(
    source: str,
    queue: str,
    job_id: str,
    reason: str,
    at: float,
    *,
    name: str = "",
    attempt: int = 1,
    lineage: Lineage | None = None,
) -> Envelope:
    """Build the report of a job that BullMQ dropped at once, from its queue's events: that it failed, and how to
    store the next one.
    """
    message = shown_message(reason)
    return Envelope(
        source=source,
        queue=lineage.queue if lineage else queue,
        task=name[:500],
        job_id=job_id,
        kind="worker_lost" if reason == STALLED else "exception",
        attempt=max(1, attempt),
        at=at,
        error_type=_error(reason, "")[0],
        message=message.text,
        redacted=message.redacted,
        reason=DROPPED,
        lineage=lineage,
    )


def executions(fields: Fields, before: tuple[int, int] = (0, 0)) -> int:
    """Return the number of executions that ended since `before` (counted, stack traces), regardless of resets.

    Retrying a job in BullMQ may reset `atm` but keeps its stack traces, and `stackTraceLimit` may keep few of these. So
    neither alone is the count.
    """
    counted = _at_most(fields.get(b"atm")) or _at_most(fields.get(b"attemptsMade")) or 0
    return max(counted - before[0], len(stacks_of(fields)) - before[1])


def ended_at(fields: Fields) -> float | None:
    """Return the end of its last attempt, by its worker's clock, in Unix seconds. None: unknown."""
    return _seconds(fields.get(b"finishedOn"))


def made_at(fields: Fields) -> float | None:
    """Return the time when it was added, in Unix seconds. None: unknown."""
    return _seconds(fields.get(b"timestamp"))


def stacks_of(fields: Fields) -> list[str]:
    stacks = _json(fields.get(b"stacktrace") or b"[]")
    return [str(stack) for stack in stacks[-_MOST_STACKS:]] if isinstance(stacks, list) else []


def options_of(fields: Fields) -> dict[str, Any]:
    """Return a job's options with BullMQ's documented names; {} if they are not a JSON object."""
    options = _json(fields.get(b"opts") or b"{}")
    return {_IN_WORDS.get(n, str(n)): value for n, value in options.items()} if isinstance(options, dict) else {}


def in_short(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the short names of a hash. Short names stay."""
    return {_IN_SHORT.get(name, name): value for name, value in options.items()}


def parent_of(fields: Fields) -> dict[str, str] | None:
    """Return queue and id of the parent job that waits for this one (a flow); None without one."""
    parent = _json(fields.get(b"parent") or b"null")
    if isinstance(parent, dict) and isinstance(parent.get("id"), str) and isinstance(parent.get("queueKey"), str):
        key, job_id = parent["queueKey"], parent["id"]
    else:
        key, _, job_id = text_of(fields.get(b"parentKey", b"")).rpartition(":")
    return {"queue": key.rpartition(":")[2], "id": job_id} if key and job_id else None


def headers_of(fields: Fields) -> dict[str, Any]:
    """Return a job's facts other than its data, with long names."""
    shown: dict[str, Any] = {"opts": options_of(fields)}
    for name, word in (
        (b"atm", "attemptsMade"),
        (b"attemptsMade", "attemptsMade"),
        (b"ats", "attemptsStarted"),
        (b"stc", "stalledCounter"),
        (b"timestamp", "timestamp"),
        (b"delay", "delay"),
    ):
        if number := _number(fields.get(name)):
            shown[word] = int(number)
    for name, word in ((b"rjk", "repeatJobKey"), (b"deid", "deduplicationId"), (b"defa", "deferredFailure")):
        if fields.get(name):
            shown[word] = text_of(fields[name])[:_TEXT_SHOWN]
    if parent := parent_of(fields):
        shown["parent"] = parent
    return shown


def _error_shown(reason: str, trace: str) -> tuple[str, Shown, Shown]:
    """Return class, message and stack for display.

    Cached, because all 45,000 jobs that die in one outage have the same, and it takes longer than everything else.
    """
    if len(reason) + len(trace) <= _REMEMBERED:
        return _remembered_error(reason, trace)
    return _remembered_error.__wrapped__(reason, trace)


@lru_cache(maxsize=256)
def _remembered_error(reason: str, trace: str) -> tuple[str, Shown, Shown]:
    error_type, message = _error(reason, trace)
    return error_type, shown_message(message), shown_trace(trace)


def _error(reason: str, trace: str) -> tuple[str, str]:
    """Return class and message.

    The stack trace starts with both, `Class: message`; the reason is usually only the message.
    """
    read = stack_of(trace)
    kind, message = (read.error, read.message) if read else error_of(trace)
    if not kind:
        kind, _ = error_of(reason)
    return kind or (_UNKNOWN_TYPE if reason or trace else ""), reason or message.partition("\n")[0]


def _why(error_type: str, attempt: int, most: int) -> str:
    if error_type == _UNRECOVERABLE:
        return "permanent"
    return "exhausted" if attempt >= most else ""


# -- display -----------------------------------------------------------------------------------------------------


def _shown_data(data: bytes | None, size: int | None) -> tuple[Shown, Shown, Any]:
    """Return positional and keyword arguments for display, and the value itself.

    Data that is not JSON, or too long, is shown as text.
    """
    if data is None and size is None:
        return Shown("", 0), Shown("", 0), None
    if data is None or len(data) > _READ_BYTES:
        length = size if data is None else len(data)
        return _as_text(data or b"", f"… {length} bytes of data, too many to show …")
    try:
        value = json.loads(data)
        args, kwargs = _as_arguments(value)
        return shown_json(args), shown_json(kwargs), value
    except (ValueError, RecursionError):
        return _as_text(data, "… data that is no JSON …")


def _as_text(data: bytes, notice: str) -> tuple[Shown, Shown, Any]:
    beginning = [text_of(data[:_TEXT_SHOWN])] if data else []
    return _safely([*beginning, notice]), Shown("{}", 0), None


def _safely(value: object) -> Shown:
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _find_tenant(value: Any, paths: Sequence[str]) -> str:
    """Return a job's tenant by the first path (`kwargs.customer_id`) found; "" if there is none."""
    args, kwargs = _as_arguments(value)
    for path in paths:
        found = value_at(path, args, kwargs)
        is_number = isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63
        if is_number or (isinstance(found, str) and found):
            return shown_message(str(found)[:200]).text
    return ""


# -- untrusted values ------------------------------------------------------------------------------------------------


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _json(value: bytes) -> Any:
    """Return a JSON value; None if it is not JSON or too long."""
    if len(value) > _READ_BYTES:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float | None:
    """Return a number; None if it is not one or impossible."""
    if not isinstance(value, int | float | bytes) or (isinstance(value, bytes) and len(value) > 40):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and abs(found) <= 2**53 else None


def _at_most(value: object) -> int | None:
    """Return a natural number: 0 for negative ones, and at most a column's maximum."""
    found = _number(value)
    return None if found is None else min(max(0, int(found)), _MOST_INT)


def _seconds(milliseconds: bytes | None) -> float | None:
    found = _number(milliseconds)
    return found / 1000 if found else None


def _duration(fields: Fields) -> float | None:
    begun, ended = _number(fields.get(b"processedOn")), _number(fields.get(b"finishedOn"))
    return max(0.0, ended - begun) / 1000 if begun and ended else None
