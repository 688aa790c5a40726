"""Short notes from a pool's children to the worker's main process: why a job is dead, or what would have been done.

A child leaves its note before it hands in its result, so the note is there when the main process reads of the failure. A
pipe carries them: a write of up to PIPE_BUF bytes is never mixed with another's, and none of them blocks. A note that finds
the pipe full is dropped: the job's report then lacks its reason, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections import OrderedDict

from jobs_admin.worker.decision import Decision

_LONGEST = 4096  # PIPE_BUF on Linux
_WIDTH = 1024**2
_MOST_UNREAD = 10_000  # of those that nobody asked for: their child died after it wrote


class Notes:
    """Made before the pool is forked; `leave` in any process, `take` in the main one."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        with contextlib.suppress(AttributeError, OSError):  # Linux alone can widen a pipe
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _WIDTH)
        self._lock = threading.Lock()  # of the two below
        self._rest = b""
        self._read: OrderedDict[str, Decision] = OrderedDict()

    def leave(self, job_id: str, attempt: int, decision: Decision) -> None:
        line = json.dumps([_name(job_id, attempt), decision.text()]).encode() + b"\n"
        if len(line) <= _LONGEST:
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
