"""Sidekiq's job: a JSON object. Nothing in it is loaded as Ruby's Marshal or YAML."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.display import TRACE_HEAD, TRACE_TAIL
from jobs_admin.core.envelope import Lineage
from jobs_admin.core.text import representable
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.json_members import MOST, join_members, members, write

_LONGEST_NAME = 200  # of a job and of a queue, as the desk stores them
_DIGEST = "sha256-"
_LONGEST_TRACE = TRACE_HEAD + TRACE_TAIL  # bytes that are decompressed; more are not shown
LATEST_S = 32_503_680_000.0  # the year 3000; Sidekiq 8 writes milliseconds, Sidekiq 5 to 7 seconds
_OURS, _REPLAYED = "redrive", "died_at"  # member of a sent job: its lineage, with the death that the replay ended
_NOT_JSON = "This entry is not a job of Sidekiq's. Nothing was sent."
_WRAPPERS = frozenset(("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", "Sidekiq::ActiveJob::Wrapper"))


@dataclass(frozen=True, slots=True)
class Job:
    """One job. If it is not Sidekiq's, only `raw` is set."""

    raw: bytes
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, raw: bytes) -> Job:
        fields = untrusted.read_object(raw)
        return cls(raw, fields if isinstance(fields.get("class"), str) and "args" in fields else {})

    @property
    def id(self) -> str:
        """Return its `jid`; a digest of its bytes if the desk cannot store that unchanged."""
        return storable(self._text("jid")) or _DIGEST + hashlib.sha256(self.raw).hexdigest()[:24]

    @property
    def queue(self) -> str:
        """Return its queue; "" if it names none that the desk can store unchanged."""
        return storable(self._text("queue"))

    @property
    def task(self) -> str:
        """Class of the job; for ActiveJob, which has one class for all, the class that it wraps."""
        if self.fields.get("class") in _WRAPPERS and not self._text("wrapped"):
            first = self._active_job()
            return str(first.get("job_class", self._text("class")))
        return self._text("display_class") or self._text("wrapped") or self._text("class")

    @property
    def arguments(self) -> list[Any] | None:
        """Arguments of the job's class; None if they are not a list."""
        args = self.fields.get("args")
        if not isinstance(args, list):
            return None
        if self.fields.get("class") in _WRAPPERS:
            wrapped = self._active_job().get("arguments")
            return wrapped if isinstance(wrapped, list) else args
        return [*args[:-1], "[encrypted data]"] if self.fields.get("encrypt") and args else args

    @property
    def attempt(self) -> int:
        """Number of the failed attempt: the first failure stores 0 retries."""
        count = untrusted.number(self.fields.get("retry_count"))
        return max(1, int(count) + 1) if count is not None and count < 10**6 else 1

    @property
    def max_attempts(self) -> int | None:
        """None for `retry: true`: only the workers' settings have the number."""
        retry = self.fields.get("retry")
        most = untrusted.number(retry)
        if most is None:
            return 1 if retry is False else None
        return int(most) + 1 if 0 <= most < 10**6 else None

    @property
    def failed_at(self) -> float | None:
        """Time of the latest failure that is stored, Unix seconds."""
        return self._seconds("retried_at") or self._seconds("failed_at")

    @property
    def made_at(self) -> float | None:
        return self._seconds("created_at")

    def lineage(self, died_before: float | None) -> Lineage | None:
        """Return the lineage of the run that a replay sent; None if someone brought the job back since.

        `died_before`: its latest death before this failure.
        """
        header = self.fields.get(_OURS)
        replayed = untrusted.number(header.get(_REPLAYED)) if isinstance(header, dict) else None
        if replayed is None or (died_before is not None and died_before > replayed):
            return None
        return Lineage.of_message(header, self.id)

    @property
    def error(self) -> tuple[str, str]:
        return self._text("error_class"), self._text("error_message")

    @property
    def trace(self) -> str:
        """Return the backtrace: compressed JSON, or a list. "" for none, and for one that Ruby marshalled."""
        stored = self.fields.get("error_backtrace")
        if isinstance(stored, str) and len(stored) <= 2 * _LONGEST_TRACE:
            stored = untrusted.read(_decompress(stored))
        lines = [line for line in stored if isinstance(line, str)] if isinstance(stored, list) else []
        return "\n".join(lines)[:_LONGEST_TRACE]

    def _active_job(self) -> Mapping[str, Any]:
        args = self.fields.get("args")
        return args[0] if isinstance(args, list) and args and isinstance(args[0], dict) else {}

    def _text(self, field: str) -> str:
        found = self.fields.get(field)
        return found if isinstance(found, str) else ""

    def _seconds(self, field: str) -> float | None:
        at = untrusted.number(self.fields.get(field))
        if at is None or at <= 0:
            return None
        at = at / 1000 if at >= LATEST_S else at
        return at if at < LATEST_S else None


def read_known(raw: bytes) -> Job:
    """Parse a job that can be sent. Raises SourceRefused for any other."""
    job = Job.read(raw)
    if not job.fields:
        raise SourceRefused(_NOT_JSON)
    if not (job.queue and is_jid(job.id)):
        raise SourceRefused("This job names no queue or no jid that can be stored unchanged. Nothing was sent.")
    return job


def build_retry(raw: bytes, lineage: Mapping[str, Any], died_at: float, now: float) -> bytes:
    """Return a job as Sidekiq's `SortedEntry#retry` pushes it: this retry is not counted. Raises SourceRefused."""
    job = read_known(raw)
    try:
        fields = members(raw.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise SourceRefused(_NOT_JSON) from error
    if fields is None or len(fields) == MOST:
        raise SourceRefused(_NOT_JSON)
    if (count := untrusted.number(job.fields.get("retry_count"))) is not None:
        fields["retry_count"] = write(int(count) - 1)
    made_at = untrusted.number(job.fields.get("created_at")) or 0.0
    fields["enqueued_at"] = write(int(now * 1000) if made_at >= LATEST_S else now)  # Sidekiq 8: milliseconds
    fields[_OURS] = write({**lineage, _REPLAYED: died_at})
    return join_members(fields).encode("utf-8", "surrogateescape")


def storable(name: str) -> str:
    """Return a name if the desk stores it unchanged, else ""."""
    return name if len(name) <= _LONGEST_NAME and name == representable(name) else ""


def is_jid(job_id: str) -> bool:
    """Return whether Sidekiq knows a job by this id of a report."""
    return not job_id.startswith(_DIGEST)


def _decompress(text: str) -> str:
    """Return compressed text, at most `_LONGEST_TRACE` bytes; the complete lines of longer text. "" if unreadable."""
    try:
        reader = zlib.decompressobj()
        found = reader.decompress(base64.b64decode(text), _LONGEST_TRACE).decode("utf-8", "replace")
    except (ValueError, zlib.error):
        return ""
    return found if reader.eof else found.rpartition('","')[0] + '"]'
