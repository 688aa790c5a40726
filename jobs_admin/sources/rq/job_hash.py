"""RQ jobs by their hash and results, and the message to send again.

Measured with RQ 1.16, 2.12 and 3.0. `data` is the call (`call.py`); the error is in the latest result, and in
`exc_info` only for a job abandoned by 1.16. RQ does not count attempts: `retries_left` decreases, `retry_intervals`
stays, and each death adds a result, up to ten. Any field may contain anything: nothing here raises for a job's content
except SourceRefused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jobs_admin.core import untrusted
from jobs_admin.core.envelope import Lineage
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rq.call import LARGEST, Call, decompressed, read_call

# Fields left by an execution. All others are stored, including a later RQ's, so that the job can be restored unchanged.
_OF_AN_EXECUTION = frozenset(
    (b"exc_info", b"result", b"last_heartbeat", b"worker_name", b"started_at", b"ended_at", b"status", b"redrive")
)
RAW_BYTES = LARGEST
DEFAULT_FAILURE_TTL = 31_536_000  # seconds for which RQ stores a failure
_DEATHS = frozenset(("2", "3", "5"))  # types of results: failed, stopped, returned Retry too often
_SUCCESS = "1"
LONGEST_TEXT = 2_000_000  # characters of an error that are read
_MOST_INT = 2**31 - 1
_BURIED_WITHIN_S = 60.0
_LATEST = 1e11  # Unix seconds: a higher score is infinite
_TERMINAL = frozenset(("failed", "stopped"))


@dataclass(frozen=True, slots=True)
class Result:
    """An entry of a job's results."""

    id: str
    type: str
    worker: str = ""
    error: bytes = b""

    @property
    def at(self) -> float:
        return _entry(self.id)[0] / 1000


@dataclass(frozen=True)
class Job:
    """A job read in one step (`read.lua`)."""

    queue: str
    id: str
    kind: str  # of its key: hash, none, or another
    size: int = 0  # bytes of all fields
    failed_score: float | None = None  # time until which RQ stores the failure, Unix seconds; negative: forever
    due_at: float | None = None
    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    results: Sequence[Result] = ()  # latest first

    @cached_property
    def status(self) -> str:
        return text_of(self.fields.get(b"status", b""))

    @cached_property
    def call(self) -> Call:
        return read_call(self.fields.get(b"data"))

    @property
    def is_elsewhere(self) -> bool:
        """Return whether its id now belongs to a job in another queue: RQ's queues share ids."""
        return text_of(self.fields.get(b"origin", b"")) not in {"", self.queue}

    @property
    def is_dead(self) -> bool:
        """Return whether it failed for good. A job without a hash counts until RQ drops it."""
        if self.failed_score is None or self.is_elsewhere:
            return False
        return self.status in _TERMINAL or (self.status == "" and self.kind != "hash") or self.is_half_written

    def is_being_buried(self, now: float) -> bool:
        """Return whether RQ is still writing its death: 1.16 lists an abandoned job some moments before its error."""
        if not self.is_dead or self.status != "failed" or self.death or self.abandoned:
            return False
        is_abandoned = (self.time("started_at") or 0.0) > (self.time("ended_at") or 0.0)
        return is_abandoned and self._has_end and now < self._listed_at + _BURIED_WITHIN_S

    @property
    def _has_end(self) -> bool:
        return self.failed_score is not None and 0 < self.failed_score < _LATEST

    @property
    def _listed_at(self) -> float:
        """Time when it entered the failed registry, unless the failure is stored forever."""
        return max(0.0, (self.failed_score or 0.0) - (self.number("failure_ttl") or DEFAULT_FAILURE_TTL))

    @property
    def is_half_written(self) -> bool:
        return self.kind == "hash" and not self.status

    @property
    def is_retrying(self) -> bool:
        """Return whether it failed and waits for a retry. A repeated job that succeeded does not."""
        if (
            self.due_at is None
            or self.status != "scheduled"
            or self.number("retries_left", "number_of_retries") is None
        ):
            return False
        succeeded = bool(self.results) and self.results[0].type == _SUCCESS
        return self.time("started_at") is not None and not succeeded

    @cached_property
    def death(self) -> Result | None:
        """Result of the current death; None if RQ wrote none."""
        if not self.is_dead or self.abandoned:
            return None
        return next((one for one in self.results if one.type in _DEATHS), None)

    @cached_property
    def abandoned(self) -> str:
        """Note of RQ 1.16 in a job whose worker died: such a job has no result."""
        return text_of((decompressed(self.fields.get(b"exc_info", b"")) or b"")[:LONGEST_TEXT])

    @cached_property
    def earlier_deaths(self) -> list[Result]:
        return [one for one in self.results if one.type in _DEATHS and one is not self.death]

    @cached_property
    def ended_at(self) -> float:
        """End of its latest attempt, Unix seconds."""
        started, ended = self.time("started_at"), self.time("ended_at")
        if ended and ended >= (started or 0.0):
            return ended
        if self.death:
            return self.death.at
        if self._has_end:
            return self._listed_at
        return started or self.time("enqueued_at", "created_at") or 0.0

    @cached_property
    def made_at(self) -> float | None:
        """Start of its current run: creation, previous death, or a requeue by someone.

        Only the last is certain: RQ 1.16 writes no result of an abandoned run, and results expire.
        """
        times = [self.time("created_at"), self.earlier_deaths[0].at if self.earlier_deaths else None]
        if self.number("retries_left", "number_of_retries") is None:  # a retry is also enqueued
            times.append(self.time("enqueued_at"))
        return max((time for time in times if time is not None), default=None)

    @cached_property
    def sent_record(self) -> SentRecord | None:
        """Our record of the latest sending; None if there is none, or if the job was created again since."""
        record = SentRecord.read(self.fields.get(b"redrive"), self.id)
        made = text_of(self.fields.get(b"created_at", b""))
        return record if record is not None and made == record.made else None

    @cached_property
    def expires_at(self) -> float:
        """Time when RQ drops the failure by its own rules."""
        ttl = self.number("failure_ttl")
        return math.inf if ttl is not None and ttl < 0 else self.ended_at + (ttl or DEFAULT_FAILURE_TTL)

    @property
    def attempt(self) -> int:
        """Executions that ended in this run, at least: RQ does not store a job's initial number of retries."""
        left, returned = self.number("retries_left"), self.number("number_of_retries") or 0
        ended = 1 if self.is_dead or self.status == "finished" else 0
        if self.sent_record is not None:
            before = sum(1 for one in self.earlier_deaths if _entry(one.id) > _entry(self.sent_record.after))
            tried = max(0, (self.sent_record.left or 0) - (left or 0)) + max(
                0, returned - (self.sent_record.returned or 0)
            )
            return max(1, before + tried + ended)
        if self.earlier_deaths and ended:
            return 1
        return max(1, self._retries_used(left) + returned + ended)

    def _retries_used(self, left: int | None) -> int:
        return 0 if left is None else max(0, len(self.intervals) - left)

    @property
    def max_attempts(self) -> int | None:
        """Maximum attempts; None if unknown."""
        left = self.number("retries_left")
        if left is None:
            return None if self.number("number_of_retries") else 1
        is_known = len(self.intervals) > 1 and self.sent_record is None and not self.earlier_deaths
        return len(self.intervals) + 1 if is_known and left < len(self.intervals) else None

    @cached_property
    def intervals(self) -> list[float]:
        found = untrusted.read(self.fields.get(b"retry_intervals"))
        return (
            [float(one) for one in found[:1_000] if untrusted.number(one) is not None]
            if isinstance(found, list)
            else []
        )

    def number(self, *names: str) -> int | None:
        """Return the first of these fields with a number."""
        for name in names:
            value = self.fields.get(name.encode(), b"")
            if re.fullmatch(rb"-?\d{1,12}", value):
                return min(int(value), _MOST_INT)
        return None

    def time(self, *names: str) -> float | None:
        """Return the first of these fields with a time, in Unix seconds."""
        for name in names:
            if (seconds := untrusted.iso_seconds(text_of(self.fields.get(name.encode(), b"")[:40]))) is not None:
                return seconds
        return None


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Record that `send.lua` writes into a job."""

    lineage: Lineage
    made: str  # its `created_at` at that time
    after: str  # id of the latest result at that time
    left: int | None
    returned: int | None

    @classmethod
    def read(cls, text: bytes | None, job_id: str) -> SentRecord | None:
        if not text or len(text) > 100_000:
            return None
        record = untrusted.read_object(text)
        lineage = Lineage.of_message(untrusted.read_object(untrusted.text(record.get("lineage"), 10_000)), job_id)
        if lineage is None:
            return None
        left, returned = (untrusted.integer(untrusted.text(record.get(n), 20) or None) for n in ("left", "returned"))
        made, after = (untrusted.text(record.get(name), 60) for name in ("made", "after"))
        return cls(lineage, made, after, left, returned)


# -- stored messages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Stored part of a job, enough to restore it."""

    queue: str
    job_id: str
    fields: dict[bytes, bytes]
    ended_at: float
    expires_at: float  # in RQ


def pack(job: Job) -> bytes:
    """Encode the stored part of a job: a line that lists the fields, then each field's original bytes."""
    fields = {name: value for name, value in job.fields.items() if name not in _OF_AN_EXECUTION}
    listed = [[name.decode("utf-8", "surrogateescape"), len(value)] for name, value in fields.items()]
    times = {"ended_at": job.ended_at, "expires_at": min(job.expires_at, 1e12)}
    head = {"rq": 1, "queue": job.queue, "id": job.id, **times, "fields": listed}
    return b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *fields.values()])


def unpack(raw: bytes) -> Message:
    """Decode a message. Raises SourceRefused for another form, and for a truncated one."""
    end = raw.find(b"\n", 0, 1024**2)
    try:
        head = json.loads(raw[: max(0, end)])
        fields, at = {}, end + 1
        for name, size in head["fields"]:
            fields[name.encode("utf-8", "surrogateescape")] = raw[at : at + size]
            at += size
        if at != len(raw):
            raise SourceRefused("The captured job is not complete. Nothing was sent.")
        times = float(head["ended_at"]), float(head["expires_at"])
        return Message(str(head["queue"]), str(head["id"]), fields, *times)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SourceRefused("The captured message is not a job of RQ. Nothing was sent.") from error


def text_of(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _entry(entry: str) -> tuple[int, int]:
    """Return a stream id as a sortable pair."""
    ms, _, number = entry.partition("-")
    return (int(ms), int(number)) if ms.isdigit() and number.isdigit() and len(entry) < 50 else (0, 0)
