"""Reports on their way to the stream, on one line: each is sent at once, and its answer read when it is needed, or has come.

What the broker has forgotten already waits for nothing: it is kept here until the store has answered, a tenth of a second at most,
and goes to the spool where it did not. What the broker is still to forget is answered before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import redis

from jobs_admin.core import keys
from jobs_admin.core.stream import weight, with_counted
from jobs_admin.worker.calls import Script
from jobs_admin.worker.line import BACKGROUND_TIMEOUT, Line
from jobs_admin.worker.records import Entry

APPEND = Script(with_counted((Path(__file__).parent / "append.lua").read_text()))
MOST_UNANSWERED = 16  # reports
MOST_BYTES = 1024**2  # of those that are not answered


class Appending:
    """Raises as `Line.query`; then the line is of no more use, and whether the stream has what is `unanswered` is not known.

    Not to be used by two threads at once.
    """

    def __init__(self, url: str, source: str, stream_bytes: int) -> None:
        """Connects, which may take seconds."""
        self.refused: list[Entry] = []  # for which the stream had no room
        self.has_answered = False
        self._stream_bytes = stream_bytes
        self._keys = keys.failures(source), keys.failures_bytes(source)
        self._sent: deque[tuple[Entry, float]] = deque()  # and until when the answer is to be there (monotonic)
        self._bytes = 0  # of these
        self._line = Line(url)
        self._line.query(("SCRIPT", "LOAD", APPEND.text), time.monotonic() + BACKGROUND_TIMEOUT)

    @property
    def unanswered(self) -> list[Entry]:
        return [entry for entry, _ in self._sent]

    @property
    def holds_enough(self) -> bool:
        """Return whether no more should be sent before what was sent is answered."""
        return len(self._sent) >= MOST_UNANSWERED or self._bytes >= MOST_BYTES

    def is_stale(self) -> bool:
        """Return whether the other end has hung up while nothing was asked."""
        return not self._sent and self._line.is_stale()

    def send(self, entry: Entry, deadline: float) -> None:
        """Whatever is raised, it is among the unanswered then."""
        self._sent.append((entry, deadline))
        self._bytes += weight(entry)
        self._send_report("EVALSHA", APPEND.sha, entry, deadline)

    def hear(self, deadline: float, *, waits: bool) -> None:
        """Read the answers: all of them, or those that have come. Raises too where one is overdue."""
        while self._sent:
            entry, due = self._sent[0]
            if not waits and not self._line.has_come():
                if time.monotonic() > due:
                    raise redis.TimeoutError("a report was not answered in time")
                return
            try:
                answer = self._line.read(deadline)
            except redis.ResponseError as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                # That Redis was started anew. It comes behind those that were sent meanwhile.
                self._sent.popleft()
                self._sent.append((entry, deadline))
                self._send_report("EVAL", APPEND.text, entry, deadline)
                continue
            is_taken = has_room(answer)
            self._sent.popleft()
            self._bytes -= weight(entry)
            self.has_answered = True
            if not is_taken:
                self.refused.append(entry)

    def _send_report(self, verb: str, script: str, entry: Entry, deadline: float) -> None:
        parts = arguments([entry], self._stream_bytes)
        self._line.send((verb, script, 2, *self._keys, *parts), deadline)

    def close(self) -> None:
        self._line.close()


def has_room(answer: object) -> bool:
    """Return whether `append.lua` took the reports, by its answer. Raises redis.InvalidResponse for what it never
    answers: then it took none.
    """
    if type(answer) is not int or answer not in (0, 1):
        raise redis.InvalidResponse(f"the store answered a report with {repr(answer)[:100]}, which says nothing of it")
    return answer == 1


def arguments(entries: Sequence[Entry], stream_bytes: int) -> list[int | bytes]:
    """Arguments of `append.lua`."""
    parts: list[int | bytes] = [stream_bytes, sum(map(weight, entries))]
    for entry in entries:
        parts += [2 * len(entry), *(part for pair in entry.items() for part in pair)]
    return parts
