"""Celery's result backend on Redis, read only: endings whose events were missed, and facts missing in events.

Each call takes at most two SCAN calls, and the first 64 KiB of a hundred results.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from jobs_admin.core import untrusted
from jobs_admin.sources.base import SourceUnreachable
from jobs_admin.sources.one_redis import dial, escape_glob

_PREFIX = "celery-task-meta-"
_KEYS_AT_ONCE = 500  # per SCAN
_SCANS = 2
_READ_AT_ONCE = 100  # results
_LARGEST = 64 * 1024  # bytes; a failure is smaller unless its traceback is very long
_MOST_KNOWN = 200_000  # jobs whose result was read, or whose end was seen
_MOST_UNREAD = 20_000  # keys found and not yet read
_OLDEST_S = 7 * 86_400.0
_MOST_RETRIES = 1_000  # maximum accepted
_SETTLED_S = 10.0  # earlier, an event may still arrive


@dataclass(frozen=True, slots=True)
class Result:
    """A stored result."""

    job_id: str
    status: str  # SUCCESS, FAILURE, RETRY, …
    at: float | None = None  # end of the job, Unix seconds
    error_type: str = ""
    message: str = ""
    trace: str = ""
    # Only stored with the setting `result_extended`.
    task: str = ""
    queue: str = ""
    worker: str = ""
    args: Any = None
    kwargs: Any = None
    retries: int | None = None


@dataclass(slots=True)
class Results:
    """Results in one Redis. Raises SourceUnreachable."""

    name: str
    url: str
    prefix: str = ""
    passes: int = 0  # complete scans of all keys
    unreadable: int = 0
    has_any: bool = False  # a result was found
    _cursor: int = 0
    _unread: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _client: redis.Redis | None = None
    _where: str = ""

    def mark_known(self, job_ids: Iterable[str]) -> None:
        """Skip the results of these jobs, whose end was seen."""
        for job_id in job_ids:
            self._known[job_id] = None
            self._known.move_to_end(job_id)
            self._unread.pop(job_id, None)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def read(self, job_ids: Iterable[str]) -> dict[str, Result]:
        """Return the results of these jobs, if they have one."""
        wanted = list(job_ids)
        found: dict[str, Result] = {}
        for start in range(0, len(wanted), _READ_AT_ONCE):
            part = wanted[start : start + _READ_AT_ONCE]
            try:
                pipe = self._connect().pipeline(transaction=False)
                for job_id in part:
                    pipe.getrange(self._key(job_id), 0, _LARGEST - 1)
                answers = pipe.execute(raise_on_error=False)
            except (redis.RedisError, OSError) as error:
                raise self._unreachable(error) from error
            for job_id, answer in zip(part, answers, strict=True):
                if isinstance(answer, bytes) and answer and (result := _parse(job_id, answer)) is not None:
                    found[job_id] = result
                elif isinstance(answer, bytes) and answer:
                    self.unreadable += 1
        return found

    def find_failures(self, now: float) -> list[Result]:
        """Return failures among some unread results; successive calls read all of them."""
        try:
            for _ in range(_SCANS):
                if len(self._unread) > _READ_AT_ONCE:
                    break
                self._scan()
        except (redis.RedisError, OSError) as error:
            raise self._unreachable(error) from error
        part = [self._unread.popitem(last=False)[0] for _ in range(min(_READ_AT_ONCE, len(self._unread)))]
        found, done = [], []
        for job_id, result in self.read(part).items():
            if result.at is not None and now - result.at < _SETTLED_S:
                continue  # the next pass finds it again
            if result.status in ("FAILURE", "SUCCESS", "REVOKED"):
                done.append(job_id)
            if result.status == "FAILURE" and result.at is not None and now - result.at < _OLDEST_S:
                found.append(result)
        self.mark_known(done)
        return found

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _scan(self) -> None:
        pattern = escape_glob(self.prefix + _PREFIX) + "*"
        answer: Any = self._connect().scan(self._cursor, match=pattern, count=_KEYS_AT_ONCE)
        self._cursor, keys = answer
        self.passes += not self._cursor
        head = len(self.prefix + _PREFIX)
        self.has_any = self.has_any or bool(keys)
        for key in keys:
            job_id = key.decode("utf-8", "replace")[head:]
            if len(self._unread) < _MOST_UNREAD and len(job_id) <= 255 and job_id not in self._known:
                self._unread[job_id] = None

    def _key(self, job_id: str) -> str:
        return f"{self.prefix}{_PREFIX}{job_id}"

    def _connect(self) -> redis.Redis:
        if self._client is None:
            begins = "the URL of a result backend that can be read begins with redis:// or rediss://"
            self._client, self._where = dial(self.name, self.url, begins)
        return self._client

    def _unreachable(self, error: Exception) -> SourceUnreachable:
        return SourceUnreachable(f"The result backend ({self._where}) does not answer ({type(error).__name__}).")


def _parse(job_id: str, text: bytes) -> Result | None:
    """Return the result in a stored text; None for other text, non-JSON (pickle is not read), or truncated text."""
    meta = untrusted.read_object(text)
    status = untrusted.text(meta.get("status"), 40)
    if not status:
        return None
    error = meta.get("result") if status in ("FAILURE", "RETRY") else None
    error = error if isinstance(error, dict) else {}
    module, name = untrusted.text(error.get("exc_module"), 200), untrusted.text(error.get("exc_type"), 200)
    retries = untrusted.number(meta.get("retries"))
    return Result(
        job_id,
        status,
        untrusted.iso_seconds(meta.get("date_done")),
        f"{module}.{name}" if module and module not in ("builtins", "__main__") else name,
        _message(error.get("exc_message")),
        untrusted.text(meta.get("traceback"), _LARGEST),
        untrusted.text(meta.get("name"), 255),
        untrusted.text(meta.get("queue"), 200),
        untrusted.text(meta.get("worker"), 255),
        meta.get("args"),
        meta.get("kwargs"),
        int(retries) if retries is not None and 0 <= retries < _MOST_RETRIES else None,
    )


def _message(value: object) -> str:
    """Return an error's message from its arguments, as Celery stores them."""
    if isinstance(value, list):
        return untrusted.text(value[0], _LARGEST) if len(value) == 1 else str(tuple(value))[:_LARGEST] if value else ""
    return untrusted.text(value, _LARGEST)
