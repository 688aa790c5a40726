"""What a stream entry says, made fit for the tables: text both databases take, lengths and numbers in bounds."""

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
from jobs_admin.core import keys, terms, untrusted
from jobs_admin.core.fingerprint import NO_RULES, Fingerprint, Rules, fingerprint
from jobs_admin.core.text import representable
from jobs_admin.core.traces import stack
from jobs_admin.sources.base import Source, SourceRefused
from jobs_admin.trust import Cause, Refused, Trust, unsealing

_MOST_INT = 2**31 - 1
_MOST_BIGINT = 2**63 - 1
_MOST_PAYLOAD = 16 * 2**20
_HEAD_OF_PAYLOAD = 64 * 1024
_MOST_TRACE = 256 * 1024
_MOST_TEXT = 64 * 1024
_MOST_CRASHES = 100

# What a later report of the same attempt overrules. `lost` is only our guess: any word from a worker is better.
LOST = "lost"
_STANDING = {LOST: 0, "retry": 1, "success": 3}


class NotOurs(ValueError):
    """The entry cannot be filed under any source. Nothing was changed; keep it raw."""


@dataclass(frozen=True, slots=True)
class Report:
    """One attempt that ended."""

    entry_id: bytes
    key_id: str  # of the key that signed it; "" where it is not signed
    source: str
    queue: str  # with `first_job_id` names the failure: of run 1
    first_job_id: str
    ran_on: str  # the queue of this run
    job_id: str  # of this run
    run: int
    has_lineage: bool
    item: int | None
    attempt: int
    kind: str
    task: str
    ended_at: datetime  # the worker's clock, never later than the arrival
    due_at: datetime | None
    delay_s: float | None
    duration_s: float | None
    error_type: str
    message: str
    reason: str
    observed: str  # what a policy that only observes would have done
    escalate: bool  # a person is to be told of this end
    fingerprint: Fingerprint | None  # None for a success
    stack: str
    stack_sha256: str  # "" where there is no trace
    stack_terms: str  # what the search index holds of it; "" where that is known to be there
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
    crashes: str | None  # JSON list: it ended its workers so, and waits in quarantine; None for all others
    sealed: bytes | None  # the raw message, encrypted
    raw_size: int
    raw_sha256: str
    raw_is_whole: bool
    is_chord_member: bool
    is_formless: bool  # no message of its queue system: it can be kept, and not sent
    expires_at: datetime | None
    made_at: datetime | None  # when the job was made, where its system may give its id to another later
    terms: str  # what the search index holds of it, but for its stack

    @property
    def name(self) -> tuple[str, str, str]:
        return self.source, self.queue, self.first_job_id

    @property
    def rank(self) -> tuple[int, int, int]:
        return rank(self.run, self.attempt, self.kind)


def rank(run: int, attempt: int, kind: str) -> tuple[int, int, int]:
    """The higher of two attempts decides the state of the failure, whichever arrives first."""
    return run, attempt, _STANDING.get(kind, 2)


def read(
    entry_id: bytes,
    entry: dict[bytes, bytes],
    now: datetime,
    seal: Callable[[bytes], bytes],
    rules: Rules = NO_RULES,
    known_stacks: Container[str] = frozenset(),
    stream: str = "",
    trust: Trust | None = None,
) -> Report:
    """The report in an entry that arrived at `now`; `seal` encrypts its raw message.

    `stream`: the source whose stream it came from, which a report of another source has no business on; "": none.

    What takes long is done here, before the transaction: on SQLite everybody else's writes wait for its end.
    `known_stacks`: hashes of those that are most likely in the tables already. `trust`: what its signature is checked by; None
    for what the desk itself read in the source. Raises NotOurs, trust.Refused or envelope.Unreadable for an entry to be kept raw.
    """
    # Before it is read: what is not signed as it has to be is held to the bounds of refused reports, whatever it holds.
    key_id = trust.check(entry, stream, now) if trust and stream else ""
    said = wire.decode(entry)
    source = _text(said.source, 63)
    if not keys.valid_source(source):
        raise NotOurs(f"{source!r} cannot name a source: use a-z, 0-9, - and _")
    if stream and source != stream:
        raise _foreign(source, stream, trust)
    if trust and not stream:
        key_id = trust.check(entry, source, now)
    said = unsealing.opened(said)
    queue, job_id = _text(said.queue, 200), _text(said.job_id, 255)
    if not job_id:
        raise NotOurs("the report names no job")
    home = said.lineage
    kind = said.kind
    ended_at = min(_time(said.at) or now, now)
    # The wait is a difference of two readings of one clock, so that clock need not be right.
    delay_s = _difference(said.due_at, said.at) if kind == "retry" else None
    trace = _text(said.trace, _MOST_TRACE)
    name = {
        "source": source,
        "queue": _text(home.queue, 200) if home else queue,
        "first_job_id": _text(home.job_id, 255) if home else job_id,
        "job_id": job_id,
    }
    shown = {
        "task": _text(said.task, 255),
        "error_type": _text(said.error_type, 255),
        "message": _text(said.message, _MOST_TEXT),
        "worker": _text(said.worker, 255),
        "host": _text(said.host, 255),
        "release": _text(said.release, 100),
        "tenant": _text(said.tenant, 200),
        "args": _text(said.args, _MOST_TEXT),
        "kwargs": _text(said.kwargs, _MOST_TEXT),
    }
    ran_well = kind == "success"
    words = "" if ran_well else stack(trace, shown["message"])
    stack_sha256 = hashlib.sha256(words.encode()).hexdigest() if words else ""
    raw, is_whole = said.raw, said.raw_is_whole
    if raw is not None and len(raw) > _MOST_PAYLOAD:
        raw, is_whole = raw[:_HEAD_OF_PAYLOAD], False
    return Report(
        **name,
        **shown,
        entry_id=entry_id,
        key_id=key_id,
        ran_on=queue,
        run=min(home.run, _MOST_INT) if home else 1,
        has_lineage=home is not None,
        item=home.item if home and home.item is not None and 0 < home.item <= _MOST_BIGINT else None,
        attempt=min(said.attempt, _MOST_INT),
        kind=kind,
        ended_at=ended_at,
        due_at=_later(ended_at, delay_s or 0.0) if kind == "retry" else None,
        delay_s=delay_s,
        duration_s=_difference(said.duration_s, 0.0),
        reason=_text(said.reason, 200),
        observed=_text(said.observed, 200),
        escalate=said.escalate is True and kind not in ("retry", "success"),
        fingerprint=(
            None if ran_well else fingerprint(shown["error_type"], shown["message"], trace, rules, {**name, **shown})
        ),
        stack=words,
        stack_sha256=stack_sha256,
        stack_terms="" if not words or stack_sha256 in known_stacks else terms.stack_document(words),
        max_attempts=_count(said.max_attempts) or None,
        priority=_integer(said.priority),
        labels=_text(" ".join(map(str, said.labels)), 200),
        headers=_text(said.headers, _MOST_TEXT),
        redacted=_count(said.redacted),
        policy=_text(said.policy, 120),
        crashes=_crashes(said.crashes) if kind not in ("retry", "success") else None,
        sealed=None if raw is None else seal(raw),
        raw_size=max(_count(said.raw_size), len(raw or b"")),
        raw_sha256=_text(said.raw_sha256, 64),
        raw_is_whole=is_whole,
        made_at=_time(said.made_at),
        **_of_message(source, raw if is_whole else None, kind),
        terms="" if ran_well else document({**name, **shown}),
    )


def _foreign(source: str, stream: str, trust: Trust | None) -> ValueError:
    """The refusal of a report that names another source than that of its stream."""
    why = f"the report names the source {source!r} and came on the stream of {stream!r}"
    if trust is None:
        return NotOurs(why)
    return Refused(stream, Cause.SIGNATURE if stream in trust.sources else Cause.UNKNOWN, why)


def document(failure: Mapping[str, Any]) -> str:
    """What the search index holds of a failure (or of the report that it comes from), but for its stack."""
    return terms.document(
        error_type=failure["error_type"],
        message=failure["message"],
        job_ids=[failure["first_job_id"], failure["job_id"]],
        names={name: failure[name] for name in terms.NAMED},
        args=failure["args"],
        kwargs=failure["kwargs"],
    )


def _of_message(source: str, raw: bytes | None, kind: str) -> dict[str, Any]:
    """What only the queue system that wrote the message can read in it."""
    if raw is not None:
        # Without it nothing is known of the message: the source is only heard from, or its address is no good.
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


def _crashes(text: Any) -> str | None:
    """The last of them, oldest first, each with nothing but words and numbers; None where nothing is told."""
    found = [
        {
            "how": _text(one.get("how"), 20),
            "at": _number(one.get("at")),
            "seen_at": _number(one.get("seen_at")),
            "worker": _text(one.get("worker"), 255),
            "said": _text(one.get("said"), 200),
            "alone": one.get("alone") is True,
            "beside": _count(one.get("beside")),
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
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _difference(later: Any, earlier: Any) -> float | None:
    """In seconds, nought where the order is wrong, None where it cannot be told."""
    if not (_finite(later) and _finite(earlier)):
        return None
    between = float(later) - float(earlier)
    return max(0.0, between) if math.isfinite(between) else None


def _integer(value: Any) -> int | None:
    return int(value) if _finite(value) and abs(value) <= _MOST_INT else None


def _count(value: Any) -> int:
    return max(0, _integer(value) or 0)


def _time(seconds: Any) -> datetime | None:
    return untrusted.moment(seconds)


def _later(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=min(seconds, (untrusted.LAST - at).total_seconds()))
