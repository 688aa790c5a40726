"""The destination of a worker's reports: the stream in Redrive's store, else the spool on disk, else a count of what was lost.

A job waits for the store for 100 ms at most, whatever that does: connections are only made by the heartbeat's thread,
and one deadline spans the wait for the line, the sending and the answer. The first report that finds the store slow or
refusing opens a breaker: for five seconds reports go straight to the spool, so that a store that hangs costs a worker
100 ms once, not 100 ms a job. A job that its broker has forgotten already waits for no answer at all: see `Appending`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from jobs_admin.core import keys
from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.core.stream import BESIDE, parse_count, weight, with_counted
from jobs_admin.worker.calls import Script
from jobs_admin.worker.dropped import Dropped
from jobs_admin.worker.line import BACKGROUND_TIMEOUT, CALL_TIMEOUT, Line, client
from jobs_admin.worker.records import Entry
from jobs_admin.worker.spool import Spool, SpoolFull

BREAKER_SECONDS = 5.0  # at least, after a report that found the store slow or refusing
# A store that answers, and slowly: what a report takes above FAIR_SECONDS (about what the disk takes) is held against it. It
# may add up to LONG_SECONDS, and is forgiven at SHARE of a second a second; then reports go by the spool for a while.
FAIR_SECONDS, LONG_SECONDS, SHARE = 0.01, 0.5, 0.1
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0  # between two tries to connect
STREAM_BYTES = 256 * 1024**2
LEDGER_STORED_DAYS = 8  # of running jobs (`ledger.py`)
SHIP_BYTES = 1024**2  # in one go from the spool: one step of the store, in which nobody else is answered

logger = logging.getLogger("redrive.worker")


# Reports on their way to the stream, on one line: each is sent at once, and its answer read when it is needed, or has
# come. What the broker has forgotten already waits for nothing: it is kept here until the store has answered, a tenth
# of a second at most, and goes to the spool where it did not. What the broker is still to forget is answered before.

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
        parts = append_arguments([entry], self._stream_bytes)
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


def append_arguments(entries: Sequence[Entry], stream_bytes: int) -> list[int | bytes]:
    """Arguments of `append.lua`."""
    parts: list[int | bytes] = [stream_bytes, sum(map(weight, entries))]
    for entry in entries:
        parts += [2 * len(entry), *(part for pair in entry.items() for part in pair)]
    return parts


class StreamFull(Exception):
    """The stream holds as much as it may. What was to be shipped is still in the spool."""


class _Over(Exception):
    """The rest is for the next worker."""


class Store:
    """The worker's end of Redrive's store. `write` may be called from any thread, and raises nothing but what a signal raises in it."""

    def __init__(self, url: str, source: str, spool: Spool, stream_bytes: int = STREAM_BYTES) -> None:
        self.spool = spool
        self._source = source
        self._dropped = Dropped(spool.directory)
        self.is_full = False
        self._url = url
        self.stream_bytes = stream_bytes  # that the stream of the source may hold, for all its workers
        self._lock = threading.Lock()  # of the line
        self._line: Appending | None = None
        self._closed_until = 0.0  # monotonic; before it no line is dialled
        self._pauses = ReconnectDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, least_s=FIRST_PAUSE_SECONDS / 2)
        self._waited = 0.0  # seconds of jobs that are held against the store
        self._waited_at = 0.0  # monotonic
        self._trouble = ""  # why there is no line, "" while none was tried
        self._is_logged = False  # that reports go to the spool
        # A connection of its own, so that a report never waits behind a heartbeat.
        self.background = client(url)

    @property
    def dropped(self) -> int:
        """Reports that neither the stream nor the spool took, since this worker started."""
        return self._dropped.total

    def write(self, entry: Entry, *, may_lag: bool = False) -> None:
        """Make a report durable, or count it as dropped.

        With `may_lag` it may be so a moment later: it has been sent when this returns, and no job waits for the answer.
        """
        for one in self._send(entry, may_lag):
            self._keep(one)

    def _send(self, entry: Entry, may_lag: bool) -> list[Entry]:
        """The reports that are to be kept elsewhere: this one, or others whose answer was still to come."""
        deadline = time.monotonic() + CALL_TIMEOUT
        if self._line is None or self.is_full or not self._lock.acquire(timeout=CALL_TIMEOUT):
            return [entry]
        began = time.monotonic()
        left: list[Entry] = []
        try:
            line = self._line
            if self.is_full or line is None:
                return [entry]
            if deadline - time.monotonic() < CALL_TIMEOUT / 2:
                return [entry]  # spent behind other threads' reports, which says nothing against the store
            if line.is_stale():
                return [entry, *self._hang_up("it closed the connection")]
            left = self._read_answers(line, deadline, waits=False)
            if self._line is None or self.is_full:
                return [*left, entry]
            try:
                line.send(entry, deadline)
            except (redis.RedisError, OSError, ValueError) as error:
                return left + self._broke(error)
            if not may_lag or line.holds_enough:
                left += self._read_answers(line, deadline, waits=True)
            left += self._judged(time.monotonic() - began)
        except BaseException:
            # Of a signal, in any line: its answers are nobody else's, and what is not known to be on the stream is kept.
            left += self._hang_up("a signal came between")
            for one in left if any(one is entry for one in left) else [*left, entry]:
                self._keep(one)
            raise
        finally:
            self._lock.release()
        if self._is_logged and line.has_answered and not left:
            self._is_logged = False
            logger.info("Redrive's store takes reports again.")
        return left

    def _read_answers(self, line: Appending, deadline: float, *, waits: bool) -> list[Entry]:
        """Return what is known now not to be on the stream, or not known to be. With the lock held."""
        try:
            line.hear(deadline, waits=waits)
        except (redis.RedisError, OSError, ValueError) as error:
            if not waits and isinstance(error, redis.ConnectionError):
                return self._hang_up(_why(error))  # found out without a wait: it may well be there again
            return self._broke(error)
        refused, line.refused = line.refused, []
        self.is_full = self.is_full or bool(refused)
        return refused

    def _judged(self, seconds: float) -> list[Entry]:
        """Return what is to be kept elsewhere after a report that took `seconds`, as jobs are not to go on waiting for
        such.
        """
        now = time.monotonic()
        forgiven = (now - self._waited_at) * SHARE
        self._waited = max(0.0, self._waited - forgiven) + max(0.0, seconds - FAIR_SECONDS)
        self._waited_at = now
        if self._line is None or self._waited <= LONG_SECONDS:
            return []
        self._waited = 0.0
        self._closed_until = now + BREAKER_SECONDS
        return self._hang_up(f"it takes {seconds * 1000:.0f} ms a report")

    def _broke(self, error: Exception) -> list[Entry]:
        self._closed_until = time.monotonic() + BREAKER_SECONDS + self._pauses.failed()
        return self._hang_up(_why(error))

    def dial(self) -> None:
        """See that there is a line, and what it has answered. Called by the heartbeat, never for a job: it may take seconds.

        Raises redis.RedisError or OSError where the store is away or too slow to be asked while a job waits.
        """
        left: list[Entry] = []
        with self._lock:
            if self._line is not None:
                if self._line.is_stale():
                    left = self._hang_up("it closed the connection")
                else:
                    left = self._read_answers(self._line, time.monotonic() + CALL_TIMEOUT, waits=False)
        for one in left:
            self._keep(one)
        if self._line is not None or time.monotonic() < self._closed_until:
            return
        try:
            line = Appending(self._url, self._source, self.stream_bytes)
        except (redis.RedisError, OSError) as error:
            self._trouble = _why(error)
            self._closed_until = time.monotonic() + self._pauses.failed()
            raise
        self._pauses.succeeded()
        with self._lock:
            self._line = line

    def _hang_up(self, why: str) -> list[Entry]:
        """Return the reports without an answer, which may or may not be on the stream: each is filed once, however
        often it comes.
        """
        line, self._line, self._trouble = self._line, None, why
        if line is None:
            return []
        line.close()
        return line.refused + line.unanswered

    def _keep(self, entry: Entry) -> None:
        if self._trouble and self._line is None and not self._is_logged:
            self._is_logged = True
            logger.warning(
                "Redrive's store does not take reports (%s); they go to %s.", self._trouble, self.spool.directory
            )
        try:
            self.spool.append(entry)
        except (OSError, SpoolFull) as error:
            count = self._dropped.add()
            if count == 1 or count % 1000 == 0:
                logger.error("Redrive dropped %d reports: neither store nor spool takes them (%r).", count, error)

    def measure(self) -> None:
        """Learn whether the stream has room again. Called by the heartbeat, never for a job."""
        pipeline = self.background.pipeline(transaction=False)
        pipeline.xlen(keys.failures(self._source))
        pipeline.get(keys.failures_bytes(self._source))
        reports, size = pipeline.execute()
        # What nobody counted is measured by the next report.
        self.is_full = bool(reports) and (parse_count(size) or 0) >= self.stream_bytes

    def keep_count(self) -> None:
        """See that the count of what was dropped outlives this worker. Raises OSError. Called by the heartbeat."""
        self._dropped.keep()

    def report_dropped(self) -> None:
        """Report how many were dropped, here and by dead workers. Called by the heartbeat. Raises redis.RedisError."""
        self._dropped.report(self.background, self._source)

    def drain(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Ship what the spool holds, as far as the stream has room, until `is_over`. Raises redis.RedisError when the store is away."""

        def ship(batch: list[Entry]) -> None:
            if is_over():
                raise _Over
            self._ship(batch)

        if self.is_full:
            return 0
        try:
            return self.spool.drain(ship, batch_bytes=min(SHIP_BYTES, self.stream_bytes // 64))
        except (StreamFull, _Over):
            return 0
        finally:
            unread, self.spool.unread = self.spool.unread, 0
            for _ in range(unread):
                self._dropped.add()

    def _ship(self, batch: list[Entry]) -> None:
        run = self.background.register_script(APPEND.text)
        answer = run(
            keys=[keys.failures(self._source), keys.failures_bytes(self._source)],
            args=append_arguments(batch, self.stream_bytes),
        )
        if not has_room(answer):
            self.is_full = True
            raise StreamFull

    def close(self, ends: float = math.inf, *, is_alone: bool = True) -> None:
        """Answers are waited for until `ends` (monotonic): two seconds at most, and a tenth of one in any case.

        `is_alone`: no other thread is in a call of `background`.
        """
        now = time.monotonic()
        until = max(now + CALL_TIMEOUT, min(ends, now + BACKGROUND_TIMEOUT))
        with self._lock:
            left = self._read_answers(self._line, until, waits=True) if self._line else []
            left += self._hang_up("the worker ends")
        for one in left:
            self._keep(one)
        self.spool.close()
        self._dropped.close()
        if is_alone:
            self.background.close()


def _why(error: Exception) -> str:
    """In words for the log; redis-py's own name host and port, never a password."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def with_report(text: str) -> str:
    """Return a script of the ledger that may put a report on the stream: `report(stream, bytes, fields)`."""
    part = (Path(__file__).parent / "ledger_report.lua").read_text()
    return with_counted(f"local BESIDE = {BESIDE}\n{part}{text}")
