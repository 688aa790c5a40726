"""Parsed stream entries, fit for the tables: text that both databases accept, lengths and numbers within limits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs_admin import config
from jobs_admin.core import envelope as wire
from jobs_admin.core import keys, search_terms, untrusted
from jobs_admin.core.fingerprint import NO_RULES, Fingerprint, Rules, fingerprint
from jobs_admin.core.text import representable
from jobs_admin.core.trace_context import event_id, find_trace
from jobs_admin.core.traces import stack
from jobs_admin.sources.base import Source, SourceRefused
from jobs_admin.trust import Cause, ReportRefused, Trust, unsealing

_MOST_INT = 2**31 - 1
_MOST_BIGINT = 2**63 - 1
_MOST_PAYLOAD = 16 * 2**20
_HEAD_OF_PAYLOAD = 64 * 1024
_MOST_TRACE = 256 * 1024
_MOST_TEXT = 64 * 1024
_MOST_CRASHES = 100

# Precedence among reports of the same attempt. `lost` is a guess: any report by a worker overrules it.
LOST = "lost"
_RANK_OF_KIND = {LOST: 0, "retry": 1, "success": 3}


class NotOurs(ValueError):
    """The entry cannot be filed under any source. Nothing was changed; store it raw."""


@dataclass(frozen=True, slots=True)
class Report:
    """An attempt that ended."""

    entry_id: bytes
    key_id: str  # id of the key that signed it; "" if unsigned
    source: str
    queue: str  # with `first_job_id` identifies the failure: of run 1
    first_job_id: str
    ran_on: str  # queue of this run
    job_id: str  # of this run
    run: int
    has_lineage: bool
    item: int | None
    attempt: int
    kind: str
    task: str
    ended_at: datetime  # by the worker's clock, but at most the time of arrival
    due_at: datetime | None
    delay_s: float | None
    duration_s: float | None
    error_type: str
    message: str
    reason: str
    observed: str  # what a policy in mode observe would have done
    escalate: bool  # on-call is to be notified of this end
    fingerprint: Fingerprint | None  # None for a success
    stack: str
    stack_sha256: str  # "" without a trace
    stack_terms: str  # its search terms; "" if they are known to be stored
    max_attempts: int | None
    worker: str
    host: str
    release: str
    tenant: str
    priority: int | None
    labels: str
    args: str
    kwargs: str
    headers: str
    redacted: int
    policy: str
    event_id: str | None
    crashes: str | None  # JSON list of the crashes of a quarantined job; None for all others
    sealed: bytes | None  # the raw message, encrypted
    raw_size: int
    raw_sha256: str
    is_raw_complete: bool
    is_chord_member: bool
    is_seen: bool  # the desk saw it in the system's events: a report of the guard on the same attempt has more detail
    is_formless: bool  # not a message of its queue system: it can be stored, not sent
    expires_at: datetime | None
    made_at: datetime | None  # when the job was made, if its system may reuse its id
    terms: str  # text of the search index, without its stack

    @property
    def name(self) -> tuple[str, str, str]:
        return self.source, self.queue, self.first_job_id

    @property
    def rank(self) -> tuple[int, int, int]:
        return rank(self.run, self.attempt, self.kind)


def rank(run: int, attempt: int, kind: str) -> tuple[int, int, int]:
    """Return the rank of an attempt: the highest decides the state of the failure, whichever arrives first."""
    return run, attempt, _RANK_OF_KIND.get(kind, 2)


def parse_report(
    entry_id: bytes,
    entry: dict[bytes, bytes],
    now: datetime,
    seal: Callable[[bytes], bytes],
    rules: Rules = NO_RULES,
    known_stacks: Container[str] = frozenset(),
    stream: str = "",
    trust: Trust | None = None,
) -> Report:
    """Return the report in an entry that arrived at `now`; `seal` encrypts its raw message.

    `stream`: the source of its stream, which must be that of the report; "": none.

    Expensive work is done here, before the transaction: on SQLite all other writers wait for its end. `known_stacks`:
    hashes of stacks that are probably stored already. `trust`: verifies its signature; None for entries that the desk
    itself read in the source. Raises NotOurs, ReportRefused or envelope.Unreadable for an entry that has to be stored
    raw.
    """
    # In one function: each branch is the default of one field.

    # Before parsing: a report without a required signature is limited like refused reports, whatever it contains.
    key_id = trust.check(entry, stream, now) if trust and stream else ""
    envelope = wire.decode(entry)
    source = _text(envelope.source, 63)
    if not keys.valid_source(source):
        raise NotOurs(f"{source!r} is not a valid source name: use a-z, 0-9, - and _")
    if stream and source != stream:
        raise _foreign_source_error(source, stream, trust)
    if trust and not stream:
        key_id = trust.check(entry, source, now)
    envelope = unsealing.opened(envelope)
    queue, job_id = _text(envelope.queue, 200), _text(envelope.job_id, 255)
    if not job_id:
        raise NotOurs("the report names no job")
    lineage = envelope.lineage
    kind = envelope.kind
    ended_at = min(_moment(envelope.at) or now, now)
    # The delay is a difference of two readings of one clock, which need not be correct.
    delay_s = _difference(envelope.due_at, envelope.at) if kind == "retry" else None
    trace = _text(envelope.trace, _MOST_TRACE)
    name = {
        "source": source,
        "queue": _text(lineage.queue, 200) if lineage else queue,
        "first_job_id": _text(lineage.job_id, 255) if lineage else job_id,
        "job_id": job_id,
    }
    shown = {
        "task": _text(envelope.task, 255),
        "error_type": _text(envelope.error_type, 255),
        "message": _text(envelope.message, _MOST_TEXT),
        "worker": _text(envelope.worker, 255),
        "host": _text(envelope.host, 255),
        "release": _text(envelope.release, 100),
        "tenant": _text(envelope.tenant, 200),
        "args": _text(envelope.args, _MOST_TEXT),
        "kwargs": _text(envelope.kwargs, _MOST_TEXT),
    }
    known_as = {"headers": _text(envelope.headers, _MOST_TEXT), "event_id": event_id(envelope.event_id) or None}
    is_success = kind == "success"
    stack_text = "" if is_success else stack(trace, shown["message"])
    stack_sha256 = hashlib.sha256(stack_text.encode()).hexdigest() if stack_text else ""
    raw, is_complete = envelope.raw, envelope.is_raw_complete
    if raw is not None and len(raw) > _MOST_PAYLOAD:
        raw, is_complete = raw[:_HEAD_OF_PAYLOAD], False
    return Report(
        **name,
        **shown,
        **known_as,
        entry_id=entry_id,
        key_id=key_id,
        ran_on=queue,
        run=min(lineage.run, _MOST_INT) if lineage else 1,
        has_lineage=lineage is not None,
        item=lineage.item if lineage and lineage.item is not None and 0 < lineage.item <= _MOST_BIGINT else None,
        attempt=min(envelope.attempt, _MOST_INT),
        kind=kind,
        ended_at=ended_at,
        due_at=_add_seconds(ended_at, delay_s or 0.0) if kind == "retry" else None,
        delay_s=delay_s,
        duration_s=_difference(envelope.duration_s, 0.0),
        reason=_text(envelope.reason, 200),
        observed=_text(envelope.observed, 200),
        escalate=envelope.escalate is True and kind not in ("retry", "success"),
        fingerprint=(
            None
            if is_success
            else fingerprint(shown["error_type"], shown["message"], trace, rules, name | shown, stack_text)
        ),
        stack=stack_text,
        stack_sha256=stack_sha256,
        stack_terms="" if not stack_text or stack_sha256 in known_stacks else search_terms.stack_document(stack_text),
        max_attempts=_natural_number(envelope.max_attempts) or None,
        priority=_integer(envelope.priority),
        labels=_text(" ".join(map(str, envelope.labels)), 200),
        redacted=_natural_number(envelope.redacted),
        policy=_text(envelope.policy, 120),
        crashes=_parse_crashes(envelope.crashes) if kind not in ("retry", "success") else None,
        sealed=None if raw is None else seal(raw),
        raw_size=max(_natural_number(envelope.raw_size), len(raw or b"")),
        raw_sha256=_text(envelope.raw_sha256, 64),
        is_raw_complete=is_complete,
        made_at=_moment(envelope.made_at),
        is_seen=envelope.is_seen is True and trust is None,
        **_message_facts(source, raw if is_complete else None, kind),
        terms="" if is_success else document_without_stack(name | shown | known_as),
    )


def _foreign_source_error(source: str, stream: str, trust: Trust | None) -> ValueError:
    """Return the error for a report that names a source other than that of its stream."""
    why = f"the report names the source {source!r} and came on the stream of {stream!r}"
    if trust is None:
        return NotOurs(why)
    return ReportRefused(stream, Cause.SIGNATURE if stream in trust.sources else Cause.UNKNOWN, why)


def document_without_stack(failure: Mapping[str, Any]) -> str:
    """Return the text of the search index for a failure, or for the report that it shows, without its stack."""
    trace = find_trace(failure["headers"])
    return search_terms.document(
        error_type=failure["error_type"],
        message=failure["message"],
        job_ids=[failure["first_job_id"], failure["job_id"]],
        names={name: failure[name] for name in search_terms.NAMED},
        args=failure["args"],
        kwargs=failure["kwargs"],
        other_ids=[trace.trace_id if trace else "", failure["event_id"] or ""],
    )


def _message_facts(source: str, raw: bytes | None, kind: str) -> dict[str, Any]:
    """Return facts that only the adapter of the message's queue system can read in it."""
    if raw is not None:
        # Without an adapter nothing is known of the message: the source only reports, or its address is invalid.
        with suppress(KeyError, SourceRefused):
            adapter = config.adapter(source)
            return {
                "is_chord_member": adapter.is_chord_member(raw),
                "expires_at": adapter.expires_at(raw),
                "is_formless": kind in wire.UNREAD and not _has_headers(adapter, raw),
            }
    return {"is_chord_member": False, "expires_at": None, "is_formless": False}


def _has_headers(adapter: Source, raw: bytes) -> bool:
    try:
        adapter.headers(raw)
    except (SourceRefused, ValueError):
        return False
    return True


def _parse_crashes(text: Any) -> str | None:
    """Return the last crashes as JSON, oldest first, reduced to words and numbers; None if there are none."""
    found = [
        {
            "how": _text(one.get("how"), 20),
            "at": _number(one.get("at")),
            "seen_at": _number(one.get("seen_at")),
            "worker": _text(one.get("worker"), 255),
            "said": _text(one.get("said"), 200),
            "alone": one.get("alone") is True,
            "beside": _natural_number(one.get("beside")),
        }
        for one in untrusted.read_objects(text if isinstance(text, str) else None)
    ]
    found.sort(key=lambda crash: crash["seen_at"] or 0.0)  # a worker may report one late
    return json.dumps(found[-_MOST_CRASHES:]) if found else None


def _number(value: Any) -> float | None:
    return float(value) if _finite(value) else None


def _text(value: Any, most: int) -> str:
    return "" if value is None else representable(value if isinstance(value, str) else str(value))[:most]


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False


def _difference(later: Any, earlier: Any) -> float | None:
    """Return the difference in seconds; 0 if the order is wrong, None if unknown."""
    if not (_finite(later) and _finite(earlier)):
        return None
    between = float(later) - float(earlier)
    return max(0.0, between) if math.isfinite(between) else None


def _integer(value: Any) -> int | None:
    return int(value) if _finite(value) and abs(value) <= _MOST_INT else None


def _natural_number(value: Any) -> int:
    return max(0, _integer(value) or 0)


def _moment(seconds: Any) -> datetime | None:
    return untrusted.moment(seconds)


def _add_seconds(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=min(seconds, (untrusted.LAST - at).total_seconds()))
