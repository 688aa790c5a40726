"""BullMQ jobs that contain another job: the content of dead-letter and quarantine queues, recognised by its structure.

Pure.

Three forms: `originalQueue, originalJobId, originalJobName, originalData, originalOptions, failureReason, failureStack,
attemptsMade, failedAt`; the same with `poisonPillRecord, quarantinedAt` instead of the failure; and `originalJob`
(`job.asJSON()`), `error`, `failedAt`, which does not name the queue. In `asJSON` of BullMQ 4.18, 5.81 and 6.7, `data`,
`failedReason`, `stacktrace` and `returnvalue` are JSON texts, and `opts` is an object, with short names up to 5 and
long ones in 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs_admin.core.traces import apart
from jobs_admin.sources.bullmq.job_hash import in_short
from jobs_admin.sources.json_members import members

MOST_BYTES = 2 * 16 * 1024**2  # per copy: a job of 16 MB, escaped as JSON within JSON
_MOST_CRASHES = 100
_CRASHED = "It ended its worker {n} times, and was put into quarantine by the queue's own detector."


@dataclass(frozen=True, slots=True)
class Carried:
    """Job contained in a copy, with the fields of its own hash. Without b"name" if the copy does not contain it."""

    queue: str | None  # None: unknown
    job_id: str
    fields: dict[bytes, bytes]
    crashes: str = ""  # JSON, as in `Envelope.crashes`: the job is in quarantine


def find_carried(data: bytes) -> Carried | None:
    """Return the job contained in another job's data; None if there is none. Never raises; linear in the data."""
    if len(data) > MOST_BYTES or not (b'"originalData"' in data or b'"originalJob"' in data):
        return None
    try:
        parts = members(data.decode())
        if parts is None:
            return None
        return _of_queue(parts) if "originalData" in parts else _as_json(parts)
    except ValueError:  # not JSON
        return None


def _of_queue(parts: Mapping[str, str]) -> Carried | None:
    queue, job_id = _member(parts, "originalQueue"), _member(parts, "originalJobId")
    record = _value(parts.get("poisonPillRecord"))
    if not isinstance(queue, str) or not queue or not _is_id(job_id):
        return None
    if record is None and not {"failureReason", "failedAt", "originalJobName"} & set(parts):
        return None
    options = _value(parts.get("originalOptions"))
    options = options if isinstance(options, dict) else {}
    fields: dict[str, Any] = {
        "data": parts["originalData"],
        "opts": json.dumps(in_short(options), separators=(",", ":")),
        "parentKey": _parent_key(options.get("parent")),
        "priority": options.get("priority"),
    }
    name = _member(parts, "originalJobName")
    if isinstance(name, str):
        fields["name"] = name
    if isinstance(record, dict):
        crashes, n = _crashes(record)
        fields |= {
            "failedReason": _CRASHED.format(n=n),
            "atm": n,
            "finishedOn": _ms(_member(parts, "quarantinedAt")) or _ms(record.get("lastCrashAt")),
        }
        return Carried(queue, str(job_id), _fields(fields), crashes)
    stack = _member(parts, "failureStack")
    fields |= {
        "failedReason": _member(parts, "failureReason"),
        "stacktrace": json.dumps(apart(stack)) if isinstance(stack, str) and stack else None,
        "atm": _member(parts, "attemptsMade"),
        "finishedOn": _ms(_member(parts, "failedAt")),
    }
    return Carried(queue, str(job_id), _fields(fields))


def _as_json(outer: Mapping[str, str]) -> Carried | None:
    parts = members(outer.get("originalJob", ""))
    if parts is None or "data" not in parts or not _is_id(job_id := _member(parts, "id")):
        return None
    if not {"error", "failedAt"} & set(outer):
        return None
    data = _value(parts["data"]) if parts["data"].startswith('"') else parts["data"]
    options = _value(parts.get("opts"))
    options = options if isinstance(options, dict) else {}
    parent = parts.get("parent")
    fields = {
        "data": data,
        "opts": json.dumps(in_short(options), separators=(",", ":")),
        "name": _member(parts, "name"),
        "timestamp": _member(parts, "timestamp"),
        "priority": options.get("priority"),
        "failedReason": _member(outer, "error") or _inner(parts, "failedReason"),
        "stacktrace": _member(parts, "stacktrace"),
        "atm": _member(parts, "attemptsMade"),
        "ats": _member(parts, "attemptsStarted"),
        "stc": _member(parts, "stalledCounter"),
        "finishedOn": _member(parts, "finishedOn") or _ms(_member(outer, "failedAt")),
        "processedOn": _member(parts, "processedOn"),
        "parentKey": _member(parts, "parentKey"),
        "parent": parent if parent and parent.startswith("{") else None,
        "rjk": _member(parts, "repeatJobKey"),
        "deid": _member(parts, "deduplicationId"),
    }
    queue = _member(parts, "queueName")  # not in `asJSON`, but in `asJSONSandbox`, which has the same form
    return Carried(queue if isinstance(queue, str) and queue else None, str(job_id), _fields(fields))


# -- parts ---------------------------------------------------------------------------------------------------------


def _fields(values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the text and number values, in the form of a hash."""
    found = {}
    for name, value in values.items():
        if isinstance(value, str):
            found[name.encode()] = value.encode("utf-8", "backslashreplace")
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[name.encode()] = b"%d" % value if value == int(value) else repr(value).encode()
    return found


def _crashes(record: Mapping[str, Any]) -> tuple[str, int]:
    """Return the crashes as JSON for an envelope, and their number. Times between the first and last are unknown."""
    count = record.get("crashCount")
    n = (
        max(1, int(count))
        if isinstance(count, int | float) and not isinstance(count, bool) and abs(count) < 10**6
        else 1
    )
    times: list[float | None] = [None] * min(n, _MOST_CRASHES)
    times[0] = _s(record.get("firstCrashAt"))
    times[-1] = _s(record.get("lastCrashAt")) or times[-1]
    crashes = [{"how": "lost", "seen_at": at, "said": "as the queue's own detector recorded it"} for at in times]
    return json.dumps(crashes), n


def _parent_key(parent: Any) -> str | None:
    if isinstance(parent, dict) and isinstance(parent.get("id"), str) and isinstance(parent.get("queue"), str):
        return f"{parent['queue']}:{parent['id']}"
    return None


def _inner(parts: Mapping[str, str], name: str) -> Any:
    """Return a value that is JSON within a JSON text."""
    text = _member(parts, name)
    return _value(text) if isinstance(text, str) else None


def _is_id(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or (isinstance(value, int) and not isinstance(value, bool))


def _s(value: Any) -> float | None:
    """Return a JavaScript date, or milliseconds, in Unix seconds."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value[:40])
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10**14:
            return value / 1000
    except (ValueError, OverflowError):
        pass
    return None


def _ms(value: Any) -> int | None:
    at = _s(value)
    return round(at * 1000) if at is not None else None


# -- JSON, parsed only in the requested parts ------------------------------------------------------------------


def _member(parts: Mapping[str, str], name: str) -> Any:
    return _value(parts.get(name))


def _value(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
