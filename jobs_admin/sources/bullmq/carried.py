"""Jobs of BullMQ that carry another job: the content of dead-letter and quarantine queues, recognised by its form.

Pure.

Three forms: `originalQueue, originalJobId, originalJobName, originalData, originalOptions, failureReason, failureStack,
attemptsMade, failedAt`; with `poisonPillRecord, quarantinedAt` in place of how it failed; and `originalJob`
(`job.asJSON()`), `error`, `failedAt`, which does not name the queue. What BullMQ 4.18, 5.81 and 6.7 write by `asJSON`:
`data`, `failedReason`, `stacktrace` and `returnvalue` are JSON texts in it, `opts` is an object, in short up to 5 and
in words in 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from jobs_admin.core.traces import apart
from jobs_admin.sources.bullmq.job_hash import in_short

MOST_BYTES = 2 * 16 * 1024**2  # of a copy: what carries a job of 16 MB, escaped as JSON in JSON
_MOST_KEYS = 200
_MOST_CRASHES = 100
_CRASHED = "It ended its worker {n} times, and was put into quarantine by the queue's own detector."


@dataclass(frozen=True, slots=True)
class Carried:
    """The job in a copy, as its own hash had it. Without b"name" where the copy does not contain it."""

    queue: str | None  # None: unknown
    job_id: str
    fields: dict[bytes, bytes]
    crashes: str = ""  # JSON, as `Envelope.crashes`: it is in quarantine


def find_carried(data: bytes) -> Carried | None:
    """The job that this data of another one carries; None where it carries none. Never raises; linear in the data."""
    if len(data) > MOST_BYTES or not (b'"originalData"' in data or b'"originalJob"' in data):
        return None
    try:
        parts = _members(data.decode())
        if parts is None:
            return None
        return _of_queue(parts) if "originalData" in parts else _as_json(parts)
    except ValueError:  # no JSON
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
    parts = _members(outer.get("originalJob", ""))
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
    queue = _member(parts, "queueName")  # not of `asJSON`; of `asJSONSandbox`, which has the same form
    return Carried(queue if isinstance(queue, str) and queue else None, str(job_id), _fields(fields))


# -- its parts ---------------------------------------------------------------------------------------------------


def _fields(values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Values that are text or a number, in the form of a hash."""
    found = {}
    for name, value in values.items():
        if isinstance(value, str):
            found[name.encode()] = value.encode("utf-8", "backslashreplace")
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[name.encode()] = b"%d" % value if value == int(value) else repr(value).encode()
    return found


def _crashes(record: Mapping[str, Any]) -> tuple[str, int]:
    """Crashes as JSON for an envelope, and their number. Times between the first and the last are unknown."""
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
    """A value that is JSON in a JSON text."""
    text = _member(parts, name)
    return _value(text) if isinstance(text, str) else None


def _is_id(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or (isinstance(value, int) and not isinstance(value, bool))


def _s(value: Any) -> float | None:
    """Seconds since 1970 of a date as JavaScript writes it, or of milliseconds."""
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


# -- JSON, of which only the requested parts are read ------------------------------------------------------


def _member(parts: Mapping[str, str], name: str) -> Any:
    return _value(parts.get(name))


def _value(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None


_SPACE = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(r'["{}\[\]]')
_SCALAR = re.compile(r"[^ \t\n\r,{}\[\]\":]{1,400}")


def _members(text: str) -> dict[str, str] | None:
    """The members of a JSON object, each value as it is written, so that JavaScript gets back its own digits.

    None where it is no object. However deep its values are nested, they are only passed over. Raises ValueError.
    """
    at = _past_space(text, 0)
    if not text.startswith("{", at):
        return None
    found: dict[str, str] = {}
    at = _past_space(text, at + 1)
    while len(found) < _MOST_KEYS and not text.startswith("}", at):
        if not text.startswith('"', at):
            raise ValueError("a name was expected")
        name, at = scanstring(text, at + 1, True)
        at = _past_space(text, at)
        if not text.startswith(":", at):
            raise ValueError("no value")
        begins = _past_space(text, at + 1)
        at = _end_of(text, begins)
        found[name] = text[begins:at]
        at = _past_space(text, at)
        if text.startswith(",", at):
            at = _past_space(text, at + 1)
        elif not text.startswith("}", at):
            raise ValueError("no end")
    return found


def _past_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too


def _end_of(text: str, at: int) -> int:
    if text.startswith('"', at):
        return int(scanstring(text, at + 1, True)[1])
    if not text.startswith(("{", "["), at):
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError("no value")
        return found.end()
    depth = 0
    while (mark := _MARK.search(text, at)) is not None:
        if mark[0] == '"':
            at = scanstring(text, mark.end(), True)[1]
            continue
        at = mark.end()
        depth += 1 if mark[0] in "{[" else -1
        if depth == 0:
            return at
    raise ValueError("no end")
