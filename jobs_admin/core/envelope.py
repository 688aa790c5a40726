"""Wire format of a worker's report on a job that failed, or succeeded after trouble.

One report is one stream entry with these fields, all bytes:

    v      the version of this format, in decimal
    meta   JSON: everything that may be shown, already redacted by the worker
    raw    the broker's message, byte for byte (absent for reports without one)
    trace  the traceback as text, already redacted (absent without a traceback)
    key    the id of the source's key, and
    sig    the signature with it (`core/report_signature.py`; both absent if the worker has no key)
    lost   JSON: `at` and `reason` of a job that was lost with its worker, added by the desk (`lost_jobs.py`)

`meta` contains no byte of the raw message, so a payload that JSON or the database cannot represent damages only itself.
A reader accepts its own version and the ones before and after it, and ignores unknown fields; any other version raises
`UnknownVersion`, and the caller stores the entry unchanged.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields

VERSION = 1

# Kinds of ending of an attempt. `retry` and `success` are not failures.
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

# Messages that never became a job. It is unknown what running them would do, so they go to quarantine.
UNREAD = frozenset({"undecodable", "bad_content", "unknown_format"})


# A separate field, because it is not signed: the worker is dead. Only valid in reports of kind `lost`.
LOST = b"lost"


class Unreadable(ValueError):
    """The entry is not an envelope. Nothing was changed; store it raw."""


# Prefixes of messages for entries that may be readable later, after an upgrade or with another key: stored raw until
# then.
UNOPENABLE = "its message is encrypted "
READABLE_LATER = ("envelope version ", "unknown kind ", f"{UNOPENABLE}for key ")
# Prefix of messages for entries left unread, and so unchecked, because each process that read them ended.
ENDS_READER = "reading it ended the process "


class UnknownVersion(Unreadable):
    """The entry was written by a version this reader does not know."""

    def __init__(self, version: str) -> None:
        super().__init__(f"envelope version {version!r} is not known to this version of Redrive")
        self.version = version


@dataclass(frozen=True, slots=True)
class Lineage:
    """Origin of a replayed job, sent in the message's `redrive` header."""

    queue: str  # of run 1
    job_id: str  # of run 1
    run: int  # of this message; at least 2, because 1 is the original
    item: int | None = None  # token of the replay item that sent it
    replay: str | None = None  # the replay's key
    sent_as: str | None = None  # the job's id in this run; None from an older desk that did not write it

    @classmethod
    def of_message(cls, header: object, job_id: str) -> Lineage | None:
        """Return the lineage of the job with this id from its message's header; None if the job has none of its own.

        A task may pass its headers to the jobs it sends; they then have their parent's lineage. Messages of a desk that
        did not write `sent_as` (in queues during an upgrade) are accepted unchecked.
        """
        lineage = cls.from_header(header)
        return lineage if lineage is not None and lineage.sent_as in (None, job_id) else None

    @classmethod
    def from_header(cls, header: object) -> Lineage | None:
        """Return the lineage in a message header; None if there is none or it is not ours."""
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
        except (KeyError, TypeError, ValueError, ArithmeticError):  # int(Infinity) raises OverflowError
            return None

    def as_header(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One attempt that ended. The worker redacts and bounds text; times are by the worker's clock."""

    source: str
    queue: str
    task: str
    job_id: str
    kind: str  # one of KINDS
    attempt: int  # number of the attempt in its run, counted from 1
    at: float  # end of the attempt, Unix seconds, worker's clock
    error_type: str = ""  # qualified class name: `smtplib.SMTPServerDisconnected`
    message: str = ""
    max_attempts: int | None = None  # None: no known limit
    due_at: float | None = None  # only for `retry`: due time of the next attempt, Unix seconds
    duration_s: float | None = None
    worker: str = ""  # Celery's node name
    host: str = ""
    release: str = ""
    tenant: str = ""
    priority: int | None = None
    args: str = ""  # JSON text, redacted and cut to size; "" if the arguments were not readable
    kwargs: str = ""
    headers: str = ""  # JSON text, redacted
    redacted: int = 0  # number of hidden values
    policy: str = ""  # `name@version` that decided the delay; "" in capture
    reason: str = ""  # why it is dead: `exhausted`, `permanent`, `budget` …; "" if Celery alone decided
    crashes: str = ""  # JSON text: the crashes that put it in quarantine; else ""
    observed: str = ""  # what an observed policy would have done
    escalate: bool = False  # the policy requests a notification of this ending
    event_id: str = ""  # its event in Sentry: 32 hex digits
    late_ack: bool | None = None  # durability: whether the message was still unacknowledged at this time
    raw_size: int = 0  # bytes of the complete raw message, even if `raw` was cut
    raw_sha256: str = ""
    made_at: float | None = None  # when the job was created, if its system may reuse its id
    labels: tuple[str, ...] = ()  # `demo-history` marks simulated data
    is_seen: bool = False  # the desk read it from its system's events: there is no message
    lineage: Lineage | None = None
    sealed: str = ""  # id of the key that `raw` is encrypted for (`worker/sealing.py`); "": not encrypted
    raw: bytes | None = None
    trace: str = ""

    @property
    def is_raw_complete(self) -> bool:
        return self.raw is not None and len(self.raw) == self.raw_size


_META = tuple(f.name for f in fields(Envelope) if f.name not in {"raw", "trace", "lineage"})


def encode(envelope: Envelope) -> dict[bytes, bytes]:
    """Return the stream entry's fields. Never raises on text: lone surrogates become a visible `?`."""
    meta: dict[str, object] = {name: getattr(envelope, name) for name in _META}
    if envelope.lineage is not None:
        meta["lineage"] = envelope.lineage.as_header()
    # ensure_ascii preserves lone surrogates (as \\udXXX); they are shown as such later.
    entry = {b"v": str(VERSION).encode(), b"meta": json.dumps(meta, ensure_ascii=True).encode()}
    if envelope.raw is not None:
        entry[b"raw"] = envelope.raw
    if envelope.trace:
        entry[b"trace"] = envelope.trace.encode("utf-8", "backslashreplace")
    return entry


def is_payload_key_id(value: object) -> bool:
    """Return whether this is the id of an encryption key: eight hex digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{8}", value) is not None


def decode(entry: dict[bytes, bytes]) -> Envelope:
    """Return the envelope in a stream entry.

    Raises UnknownVersion for a version beyond the neighbours of ours, Unreadable for anything else that is not an
    envelope, including JSON nested too deeply.
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
