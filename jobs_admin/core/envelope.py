"""The report a worker writes when a job ends badly (or well after trouble): what goes over the wire.

One report is one stream entry with these fields, all bytes:

    v      the version of this format, in decimal
    meta   JSON: everything that may be shown, already redacted by the worker
    raw    the broker's message, byte for byte (absent for reports without one)
    trace  the traceback as text, already redacted (absent where there is none)
    key    the id of the source's key, and
    sig    the signature with it (`core/report_signature.py`; both absent where the worker has no key)
    lost   JSON: `at` and `reason` of a job that was lost with its worker, added by the desk (`lost_jobs.py`)

`meta` holds no byte of the raw message, so a payload that cannot be represented in JSON or in
the database damages nothing but itself. A reader accepts the version before and after its own
and ignores fields that it does not know; any other version raises `UnknownVersion` and the
caller keeps the entry as it came.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields

VERSION = 1

# What an attempt can end with (design.md, table Attempt). `retry` and `success` are not failures.
KINDS = (
    "exception",
    "retry",
    "rejected",
    "worker_lost",
    "soft_limit",
    "hard_limit",
    "memory",
    "unknown_task",
    "undecodable",
    "bad_content",
    "unknown_format",
    "expired",
    "lost",
    "success",
)

# Messages that never became a job, so that nobody can tell what running them would do: they wait in quarantine.
UNREAD = frozenset({"undecodable", "bad_content", "unknown_format"})


# A field of its own, as it is not signed: the worker is dead. It counts only in a report of kind `lost`.
LOST = b"lost"


class Unreadable(ValueError):
    """The entry is not an envelope. Nothing was changed; keep it raw."""


# How the words begin that say that it may be read later, after an upgrade or with another key: it is kept raw until then.
UNOPENABLE = "its message is encrypted "
READABLE_LATER = ("envelope version ", "unknown kind ", f"{UNOPENABLE}for key ")


class UnknownVersion(Unreadable):
    """The entry was written by a version this reader does not know."""

    def __init__(self, version: str) -> None:
        super().__init__(f"envelope version {version!r} is not known to this version of Redrive")
        self.version = version


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a replayed job; travels in the message's `redrive` header."""

    queue: str  # of run 1
    job_id: str  # of run 1
    run: int  # of this message; 1 is the original, so at least 2
    item: int | None = None  # the replay item that sent it (its token)
    replay: str | None = None  # the replay's key
    sent_as: str | None = None  # the job's id in this run; None in what a desk sent that did not say so

    @classmethod
    def of_message(cls, header: object, job_id: str) -> Lineage | None:
        """The lineage of the job with this id, by its message's header; None where it has none of its own.

        A task may hand its headers on to the jobs that it sends: what they have then is their parent's. Messages of a desk
        that did not write `sent_as` (they wait on queues while desk and workers are upgraded) are taken at their word.
        """
        lineage = cls.from_header(header)
        return lineage if lineage is not None and lineage.sent_as in (None, job_id) else None

    @classmethod
    def from_header(cls, header: object) -> Lineage | None:
        """The lineage in a message header, or None where there is none or it is not ours."""
        if not isinstance(header, dict):
            return None
        try:
            item = header.get("item")
            return cls(
                queue=str(header["queue"]),
                job_id=str(header["job_id"]),
                run=max(2, int(header["run"])),
                item=None if item is None else int(item),
                replay=None if header.get("replay") is None else str(header["replay"]),
                sent_as=None if header.get("sent_as") is None else str(header["sent_as"]),
            )
        except (KeyError, TypeError, ValueError, ArithmeticError):  # int(Infinity) is an OverflowError
            return None

    def as_header(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One attempt that ended. Text is redacted and bounded by the worker; times are the worker's own clock."""

    source: str
    queue: str
    task: str
    job_id: str
    kind: str  # one of KINDS
    attempt: int  # executions so far in this run; the first is 1
    at: float  # when the attempt ended, seconds since 1970, worker's clock
    error_type: str = ""  # qualified class name: `smtplib.SMTPServerDisconnected`
    message: str = ""
    max_attempts: int | None = None  # None: no bound is known
    due_at: float | None = None  # only for `retry`: when the next attempt is due, seconds since 1970
    duration_s: float | None = None
    worker: str = ""  # Celery's node name
    host: str = ""
    release: str = ""
    tenant: str = ""
    priority: int | None = None
    args: str = ""  # JSON text, redacted and cut to size; "" where the arguments could not be read
    kwargs: str = ""
    headers: str = ""  # JSON text, redacted
    redacted: int = 0  # how many values were hidden
    policy: str = ""  # `name@version` that decided the delay; "" in capture
    reason: str = ""  # why it is dead: `exhausted`, `permanent`, `budget` …; "" where Celery alone decided
    crashes: str = ""  # JSON text: how it ended its workers, where that is why it never starts again; else ""
    observed: str = ""  # what the policy would have done, where it only observes
    escalate: bool = False  # the policy asks that a person be told of this end
    late_ack: bool | None = None  # durability: was the message still unacknowledged when this was written
    raw_size: int = 0  # bytes of the whole raw message, also when `raw` was cut
    raw_sha256: str = ""
    made_at: float | None = None  # when the job was made, where its system may give its id to another later
    labels: tuple[str, ...] = ()  # `demo-history` marks played data
    is_seen: bool = False  # the desk saw it in its system's events: there is no message
    lineage: Lineage | None = None
    sealed: str = ""  # id of the key that `raw` is encrypted for (`worker/sealing.py`); "": it is as the broker had it
    raw: bytes | None = None
    trace: str = ""

    @property
    def is_raw_complete(self) -> bool:
        return self.raw is not None and len(self.raw) == self.raw_size


_META = tuple(f.name for f in fields(Envelope) if f.name not in {"raw", "trace", "lineage"})


def encode(envelope: Envelope) -> dict[bytes, bytes]:
    """The stream entry's fields. Never raises on text: lone surrogates become `?` visibly."""
    meta: dict[str, object] = {name: getattr(envelope, name) for name in _META}
    if envelope.lineage is not None:
        meta["lineage"] = envelope.lineage.as_header()
    # ensure_ascii keeps lone surrogates representable (as \\udXXX); they are shown as such later.
    entry = {b"v": str(VERSION).encode(), b"meta": json.dumps(meta, ensure_ascii=True).encode()}
    if envelope.raw is not None:
        entry[b"raw"] = envelope.raw
    if envelope.trace:
        entry[b"trace"] = envelope.trace.encode("utf-8", "backslashreplace")
    return entry


def is_payload_key_id(value: object) -> bool:
    """Return whether this is the id of a key that messages are encrypted for: eight hex digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{8}", value) is not None


def decode(entry: dict[bytes, bytes]) -> Envelope:
    """The envelope in a stream entry.

    Raises UnknownVersion for a version beyond the neighbours of ours, Unreadable for anything else
    that is not an envelope (also JSON nested too deep to read).
    """
    version = entry.get(b"v", b"").decode("ascii", "replace")
    if version not in {str(VERSION - 1), str(VERSION), str(VERSION + 1)}:
        raise UnknownVersion(version)
    try:
        meta = json.loads(entry[b"meta"])
        if LOST in entry and meta["kind"] == "lost":
            added = json.loads(entry[LOST])
            meta |= {name: added[name] for name in ("at", "reason") if name in added}
        known = {name: meta[name] for name in _META if name in meta}
        known["labels"] = tuple(known.get("labels") or ())
        known["attempt"] = max(1, int(known["attempt"]))
        known["at"] = float(known["at"])
        envelope = Envelope(
            **known,
            lineage=Lineage.from_header(meta.get("lineage")),
            raw=entry.get(b"raw"),
            trace=entry.get(b"trace", b"").decode("utf-8", "replace"),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise Unreadable(f"not an envelope: {type(error).__name__}: {error}") from error
    if envelope.sealed != "" and not is_payload_key_id(envelope.sealed):
        raise Unreadable("not an envelope: the id of its key is not eight hex digits")
    if envelope.kind not in KINDS:
        raise Unreadable(f"unknown kind {envelope.kind!r}")
    return envelope
