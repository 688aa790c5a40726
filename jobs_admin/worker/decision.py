"""The decision over an attempt, and its way from a pool's child to the worker's main process: as text.
It comes with the result of a job, and as a note: why a job is dead, or what would have been done.

Only the child has the error itself, and an error may be one that cannot be pickled. So the child decides, and the main
process acts: it alone holds the message, and it acknowledges.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, fields
from typing import Any

from celery.exceptions import Ignore, Retry

AGAIN, DEAD, WAIT, QUARANTINE = "again", "dead", "wait", "quarantine"
_ACTS = (AGAIN, DEAD, WAIT, QUARANTINE)
_LONGEST_NOTE = 4096  # PIPE_BUF on Linux
_PIPE_BYTES = 1024**2
_MOST_UNREAD = 10_000  # of those that nobody asked for: their child died after it wrote


@dataclass(frozen=True, slots=True)
class Decision:
    act: str  # again, dead, wait (before its start, without counting an attempt), quarantine
    policy: str  # `name@version`
    reason: str = ""
    delay_s: float = 0.0  # for again and wait
    max_attempts: int | None = None
    is_observed: bool = False  # only told: Celery did what it does without us
    escalate: bool = False  # somebody is to be told that it is dead
    keeps_wait: bool = False  # the next attempt has to know this wait (a decorrelated backoff)
    records: str = ""  # of a quarantine: the crashes, as JSON

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: object) -> Decision | None:
        """None for what is no decision."""
        try:
            values: dict[str, Any] = json.loads(text) if isinstance(text, str | bytes) else {}
            found = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
            return found if found.act in _ACTS and found.delay_s >= 0 else None
        except (ValueError, TypeError, AttributeError):
            return None


class GuardRetry(Retry):  # type: ignore[misc]
    """The attempt failed and there will be another: errbacks, chords and error trackers stay quiet, as for Celery's own."""

    def __init__(self, message: str, exc: Any = None, when: float | None = None, decision: str = "") -> None:
        super().__init__(message, exc, when)
        self.decision = decision

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.exc, self.when, self.decision)


class GuardWait(Ignore):  # type: ignore[misc]
    """The job may not start yet. It gives its place back, and nothing is recorded of it."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision


class Quarantined(Exception):
    """The job was not started again: it has ended its worker too often."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        return "it has ended its worker too often, and waits in quarantine"


class RequestedRetry(Retry):  # type: ignore[misc]
    """`self.retry()`, where a policy comes instead of it: raised in the task, and never leaves our wrapper."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__("asked for by the task")
        self.error = error


# Short notes from a pool's children to the worker's main process: why a job is dead, or what would have been done. A
# child leaves its note before it hands in its result, so the note is there when the main process reads of the failure.
# A pipe carries them: a write of up to PIPE_BUF bytes is never mixed with another's, and none of them blocks. A note
# that finds the pipe full is dropped: the job's report then lacks its reason, and nothing else.


class Notes:
    """Made before the pool is forked; `leave` in any process, `take` in the main one."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        with contextlib.suppress(AttributeError, OSError):  # Linux alone can widen a pipe
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._lock = threading.Lock()  # of the two below
        self._rest = b""
        self._read: OrderedDict[str, Decision] = OrderedDict()

    def leave(self, job_id: str, attempt: int, decision: Decision) -> None:
        line = json.dumps([_name(job_id, attempt), decision.text()]).encode() + b"\n"
        if len(line) <= _LONGEST_NOTE:
            with contextlib.suppress(OSError):
                os.write(self._in, line)

    def take(self, job_id: str, attempt: int) -> Decision | None:
        with self._lock:
            self._receive()
            return self._read.pop(_name(job_id, attempt), None)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while got := os.read(self._out, 65_536):
                *lines, self._rest = (self._rest + got).split(b"\n")
                for line in lines:
                    name, text = json.loads(line)
                    if (decision := Decision.from_text(text)) is not None:
                        self._read[name] = decision
        while len(self._read) > _MOST_UNREAD:
            self._read.popitem(last=False)


def _name(job_id: str, attempt: int) -> str:
    return f"{attempt}:{job_id}"
