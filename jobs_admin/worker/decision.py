"""Decision about an attempt, and how it travels as text from a pool's child process to the worker's main process.

It comes with the job's result, or as a note: why a job is dead, or what would have been done.
Only the child has the error itself, which may not be picklable, so the child decides. The main process acts: only it
has the message, and it acknowledges.
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

AGAIN, DEAD, WAIT, QUARANTINE, LEFT = "again", "dead", "wait", "quarantine", "left"
_ACTS = (AGAIN, DEAD, WAIT, QUARANTINE, LEFT)
_LONGEST_NOTE = 4096  # PIPE_BUF on Linux
_PIPE_BYTES = 1024**2
_MOST_UNREAD = 10_000  # limit of unread notes: their child died after writing them


@dataclass(frozen=True, slots=True)
class Decision:
    act: str  # again, dead, wait (not an attempt), quarantine, left (to the task; only the evidence is used)
    policy: str  # `name@version`
    reason: str = ""
    delay_s: float = 0.0  # seconds, for again and wait
    max_attempts: int | None = None
    is_observed: bool = False  # reported only: Celery acted as it does without Redrive
    escalate: bool = False  # notify of the dead letter
    keeps_wait: bool = False  # the next attempt needs this delay (decorrelated backoff)
    records: str = ""  # crashes of a quarantined job, as JSON
    breaker: str = ""  # breaker that puts the job on hold
    evidence: str = ""  # evidence that a dependency is unavailable, as JSON: kind, wish_s, error, is_released

    def text(self) -> str:
        return json.dumps(asdict(self))

    def read_evidence(self) -> dict[str, Any]:
        """Return the evidence; {} if there is none."""
        found = json.loads(self.evidence) if self.evidence else {}
        return found if isinstance(found, dict) else {}

    @classmethod
    def from_text(cls, text: object) -> Decision | None:
        """Parse a decision. Return None for any other text."""
        try:
            values: dict[str, Any] = json.loads(text) if isinstance(text, str | bytes) else {}
            found = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
            return found if found.act in _ACTS and found.delay_s >= 0 else None
        except (ValueError, TypeError, AttributeError):
            return None


class GuardRetry(Retry):  # type: ignore[misc]
    """Raised for a failed attempt that will be retried: errbacks, chords and error trackers stay quiet, as with
    Celery's own `Retry`.
    """

    def __init__(self, message: str, exc: Any = None, when: float | None = None, decision: str = "") -> None:
        super().__init__(message, exc, when)
        self.decision = decision

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.exc, self.when, self.decision)


class GuardWait(Ignore):  # type: ignore[misc]
    """Raised for a job that may not start yet. It returns its slot, and nothing is recorded."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision


class Quarantined(Exception):
    """Raised for a job that was not started again: it crashed its worker too often."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        return "it has ended its worker too often, and waits in quarantine"


class RequestedRetry(Retry):  # type: ignore[misc]
    """Raised in the task by `self.retry()` when a policy replaces it. Never leaves our wrapper."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__("asked for by the task")
        self.error = error
        self.wait: GuardWait | None = None  # set instead if the task's breaker is open


# Notes are short messages from a pool's children to the worker's main process: why a job is dead, or what would have
# been done.
# A child writes its note before its result, so the note is there when the main process handles the failure. Notes
# travel through a pipe: writes of up to PIPE_BUF bytes are atomic, and none blocks. If the pipe is full, the note is
# dropped and the job's report lacks its reason; nothing else is lost.


class Notes:
    """Pipe of notes. Created before the pool forks; any process calls `leave`, the main process calls `take`."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        with contextlib.suppress(AttributeError, OSError):  # only Linux can enlarge a pipe
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._lock = threading.Lock()  # guards the two fields below
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
