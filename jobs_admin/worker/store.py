"""Delivery of a worker's reports: to the stream in Redrive's store, else to the spool on disk, else to a count of lost
reports.

A job waits for the store at most 100 ms: only the heartbeat's thread connects, and one deadline covers the wait for the
connection, sending and the answer. The first report that finds the store slow or refusing opens a breaker: for 5 s
reports go straight to the spool, so a hanging store costs a worker 100 ms once, not per job. A job that its broker has
already forgotten waits for no answer: see `Appending`.
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

BREAKER_SECONDS = 5.0  # minimum, after a report that found the store slow or refusing
# Debt of a store that answers slowly: a report's time above FAIR_SECONDS (about that of the disk) is added to it. Above
# LONG_SECONDS, reports go to the spool for a while. It shrinks by SHARE seconds per second.
FAIR_SECONDS, LONG_SECONDS, SHARE = 0.01, 0.5, 0.1
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0  # between two attempts to connect
STREAM_BYTES = 256 * 1024**2
LEDGER_STORED_DAYS = 8  # running jobs (`ledger.py`)
SHIP_BYTES = 1024**2  # shipped at once from the spool, in one step that blocks other clients of the store

logger = logging.getLogger("redrive.worker")


# Reports being sent to the stream on one connection: each is sent at once, and its answer read when needed or
# available. A message that the broker has already forgotten waits for nothing: its report is stored here until the
# store has answered, 0.1 s at most, and otherwise goes to the spool. Before the broker forgets a message, its report
# must be answered.

APPEND = Script(with_counted((Path(__file__).parent / "append.lua").read_text()))
MOST_UNANSWERED = 16  # reports
MOST_BYTES = 1024**2  # of unanswered reports


class Appending:
    """Pipelined reports on one connection. Not thread-safe.

    Raises like `Line.query`; then the connection is unusable, and the stream may or may not have the `unanswered`
    reports.
    """

    def __init__(self, url: str, source: str, stream_bytes: int) -> None:
        """Connect, which may take seconds."""
        self.refused: list[Entry] = []  # reports for which the stream had no room
        self.has_answered = False
        self._stream_bytes = stream_bytes
        self._keys = keys.failures(source), keys.failures_bytes(source)
        self._sent: deque[tuple[Entry, float]] = deque()  # with the deadline of the answer (monotonic)
        self._bytes = 0  # of `_sent`
        self._line = Line(url)
        self._line.query(("SCRIPT", "LOAD", APPEND.text), time.monotonic() + BACKGROUND_TIMEOUT)

    @property
    def unanswered(self) -> list[Entry]:
        return [entry for entry, _ in self._sent]

    @property
    def holds_enough(self) -> bool:
        """Return whether reports must be answered before more are sent."""
        return len(self._sent) >= MOST_UNANSWERED or self._bytes >= MOST_BYTES

    def is_stale(self) -> bool:
        """Return whether the server closed the connection while no answer was due."""
        return not self._sent and self._line.is_stale()

    def is_outdated(self) -> bool:
        """See `Line.is_outdated`."""
        return self._line.is_outdated()

    def send(self, entry: Entry, deadline: float) -> None:
        """Send a report. It is among the unanswered ones whatever is raised."""
        self._sent.append((entry, deadline))
        self._bytes += weight(entry)
        self._send_report("EVALSHA", APPEND.sha, entry, deadline)

    def hear(self, deadline: float, *, waits: bool) -> None:
        """Read the answers: all if `waits`, else those available. Raises if one is overdue."""
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
                # That Redis was restarted. Send the report again, behind those sent meanwhile.
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
    """Return whether `append.lua` accepted the reports, by its answer.

    Raises redis.InvalidResponse for any other answer: then nothing was accepted.
    """
    if type(answer) is not int or answer not in (0, 1):
        raise redis.InvalidResponse(f"the store answered a report with {repr(answer)[:100]}, which says nothing of it")
    return answer == 1


def append_arguments(entries: Sequence[Entry], stream_bytes: int) -> list[int | bytes]:
    """Return the arguments of `append.lua`."""
    parts: list[int | bytes] = [stream_bytes, sum(map(weight, entries))]
    for entry in entries:
        parts += [2 * len(entry), *(part for pair in entry.items() for part in pair)]
    return parts


class StreamFull(Exception):
    """The stream is full. Reports to be shipped stay in the spool."""


class _Over(Exception):
    """Time is up: the rest is for the next worker."""


class Store:
    """Client of Redrive's store. `write` may be called from any thread and raises only a signal handler's exception."""

    def __init__(self, url: str, source: str, spool: Spool, stream_bytes: int = STREAM_BYTES) -> None:
        self.spool = spool
        self._source = source
        self._dropped = Dropped(spool.directory)
        self.is_full = False
        self._url = url
        self.stream_bytes = stream_bytes  # limit of the source's stream, for all its workers
        self._lock = threading.Lock()  # guards the connection
        self._line: Appending | None = None
        self._closed_until = 0.0  # monotonic; no attempt to connect before
        self._pauses = ReconnectDelay(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, least_s=FIRST_PAUSE_SECONDS / 2)
        self._waited = 0.0  # the store's debt, in seconds
        self._waited_at = 0.0  # monotonic
        self._trouble = ""  # why there is no connection; "" before the first attempt
        self._is_logged = False  # whether the log says that reports go to the spool
        # A separate connection, so that reports never wait behind a heartbeat.
        self.background = client(url)

    @property
    def dropped(self) -> int:
        """Reports of this worker that neither stream nor spool accepted."""
        return self._dropped.total

    def write(self, entry: Entry, *, may_lag: bool = False) -> None:
        """Make a report durable, or count it as dropped.

        With `may_lag`, it becomes durable a moment later: it is sent when this returns, and no job waits for the
        answer.
        """
        for one in self._send(entry, may_lag):
            self._keep(one)

    def _send(self, entry: Entry, may_lag: bool) -> list[Entry]:
        """Send a report. Return the reports to store elsewhere: this one, or earlier ones without an answer."""
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
                return [entry]  # time was spent behind other threads' reports: no sign of a slow store
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
            # A signal may come in any line: no other call may read the pending answers, and reports not known to be on
            # the stream are stored.
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
        """Read answers. Return the reports that are not, or may not be, on the stream. Needs the lock."""
        try:
            line.hear(deadline, waits=waits)
        except (redis.RedisError, OSError, ValueError) as error:
            if not waits and isinstance(error, redis.ConnectionError):
                return self._hang_up(_why(error))  # found without waiting: the server may be available again
            return self._broke(error)
        refused, line.refused = line.refused, []
        self.is_full = self.is_full or bool(refused)
        return refused

    def _judged(self, seconds: float) -> list[Entry]:
        """Add a report's time to the store's debt. Return the reports to store elsewhere if the debt is too high."""
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
        """Ensure a connection, and read its answers. For the heartbeat, never for a job: it may take seconds.

        Raises redis.RedisError or OSError if the store is unavailable, or too slow to be called while a job waits.
        """
        left: list[Entry] = []
        line = self._line
        is_outdated = line is not None and line.is_outdated()
        with self._lock:
            if self._line is not None:
                if is_outdated and self._line is line:
                    left = self._hang_up("the Sentinels name another primary")
                elif self._line.is_stale():
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
        """Close the connection. Return the unanswered reports, which may be on the stream: ingest files each once."""
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
        """Check whether the stream has room again. For the heartbeat, never for a job."""
        pipeline = self.background.pipeline(transaction=False)
        pipeline.xlen(keys.failures(self._source))
        pipeline.get(keys.failures_bytes(self._source))
        reports, size = pipeline.execute()
        # An uncounted stream is measured by the next report.
        self.is_full = bool(reports) and (parse_count(size) or 0) >= self.stream_bytes

    def keep_count(self) -> None:
        """Make the count of dropped reports survive this worker. Raises OSError. For the heartbeat."""
        self._dropped.keep()

    def report_dropped(self) -> None:
        """Report the numbers of reports dropped here and by dead workers. For the heartbeat.

        Raises redis.RedisError.
        """
        self._dropped.report(self.background, self._source)

    def drain(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Ship the spool's reports until the stream is full or `is_over`.

        Raises redis.RedisError if the store is unavailable.
        """

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
        """Close the store. Wait for answers until `ends` (monotonic), 2 s at most and 0.1 s at least.

        `is_alone`: no other thread is calling `background`.
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
    """Return an error for the log; redis-py's messages contain host and port, never a password."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def with_report(text: str) -> str:
    """Return a ledger script that can write to the stream: `report(stream, bytes, fields)`."""
    part = (Path(__file__).parent / "ledger_report.lua").read_text()
    return with_counted(f"local BESIDE = {BESIDE}\n{part}{text}")
