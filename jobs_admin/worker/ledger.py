"""Ledger of jobs acknowledged before they run: stored while they run, and filed as lost if their worker dies.

Only under a policy with `file_lost`. The stored entry is the report for the stream: the desk writes it there when the
worker has been silent for long enough (`lost_jobs.py`).

    ledger.begins(request)      # before Celery acknowledges; a job waits 100 ms at most, and starts in any case
    …
    ledger.ended(request)       # after its report is durable; no job waits

Jobs acknowledged late are not stored: the broker redelivers them itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.report_signature import KEY, SIGNATURE
from jobs_admin.worker import report
from jobs_admin.worker.at_start import Job
from jobs_admin.worker.calls import Calls, Script
from jobs_admin.worker.outcome import Outcome
from jobs_admin.worker.policies import Chosen, InForce
from jobs_admin.worker.records import Entry
from jobs_admin.worker.report import Origin
from jobs_admin.worker.store import LEDGER_STORED_DAYS, with_report
from jobs_admin.worker.tally import Tally

MOST_BYTES = 64 * 1024**2  # stored at a time per worker
MOST_RAW = 4 * 1024**2  # per message; of a longer one only the head: the job is reported but cannot be replayed
WHAT = "The worker that ran this job stopped. How far the job came is not known."
CAME_BACK = "It had been filed as lost: its worker had given no sign, and went on."

_LONGEST_NAME = 200
_ON = "_redrive_kept"  # request attribute: the job's name in the ledger, and whether the store confirmed it

logger = logging.getLogger("redrive.worker")


def _script(name: str) -> str:
    text = (Path(__file__).parent / f"ledger_{name}.lua").read_text()
    return f"local KEPT_MS = {LEDGER_STORED_DAYS * 86_400_000}\n{text}"


_PUT, _END, _LIST = Script(_script("put")), Script(with_report(_script("end"))), Script(_script("list"))


class Ledger:
    """Ledger of one life of a worker, for any thread of its main process. May raise: the guard catches everything."""

    def __init__(self, calls: Calls, in_force: InForce, origin: Origin, boot: str, stream_bytes: int) -> None:
        self._calls = calls
        self._stream_bytes = stream_bytes  # the bounds also apply to reports filed from here
        self._in_force = in_force
        self._origin = origin
        self._boot = boot
        self._kept = keys.kept(origin.source, boot)
        self._lock = threading.Lock()  # guards the two fields below
        self._open: dict[str, int] = {}  # running jobs that are or may be stored -> bytes
        self._bytes = 0
        self._is_unsure = False  # whether the store may have an entry unknown to us
        self._unheard: deque[list[str | bytes]] = deque(maxlen=10_000)  # ends that the store may not have received
        self._unkept = Tally()
        self._is_full = False

    @property
    def unkept(self) -> int:
        """Jobs of this worker that ran unstored although a policy requires it."""
        return self._unkept.total

    @property
    def open_bytes(self) -> int:
        """Bytes of jobs that are or may be stored now."""
        return self._bytes

    def connect(self) -> None:
        """Connect before the first job, so that none waits for it. Takes at most a second, and may fail."""
        if self._in_force.files_lost():
            self._calls.connect()

    # -- a job ------------------------------------------------------------------------------------------------

    def begins(self, request: Any) -> None:
        """Store the job if a policy requires it and the broker is about to forget it."""
        if request.task.acks_late or hasattr(request, _ON):
            return
        chosen = self._in_force.choose(report.known_queue(request, self._origin), str(request.type))
        if chosen is None or not chosen.is_enforced or not chosen.policy.file_lost:
            return
        try:
            is_stored = self._keep(request, chosen)
        except BaseException:
            self._unkept.add()
            raise
        if not is_stored:
            self._unkept.add()

    def _keep(self, request: Any, chosen: Chosen) -> bool:
        name, entry = _name(request), _packed(self._origin.entry(_report(request, self._origin, chosen)))
        with self._lock:
            # A second copy of a message replaces the first: the store has one entry per name.
            size = self._bytes - self._open.get(name, 0) + len(entry)
            if size > MOST_BYTES:
                self._note_full()
                return False
            self._open[name], self._bytes = len(entry), size
        setattr(request, _ON, (name, False))
        prefix = self._kept.removesuffix(self._boot)
        is_given_again = "1" if request.delivery_info.get("redelivered") else ""
        answer = self._calls.run(
            _PUT,
            [
                keys.kept_boots(self._origin.source),
                self._kept,
                keys.boots(self._origin.source),
                keys.boot(self._origin.source, self._boot),
            ],
            [
                self._boot,
                name,
                entry,
                is_given_again,
                prefix,
                self._stream_bytes,
            ],
        )
        if answer is None:
            return False
        setattr(request, _ON, (name, True))
        return True

    def _note_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "Redrive keeps %d MB of running jobs, and no more: others run without being kept.",
                MOST_BYTES // 1024**2,
            )

    def keeps(self, request: Any) -> bool:
        """Return whether the job is or may be stored."""
        return hasattr(request, _ON)

    def ended(self, request: Any, success: Envelope | None = None) -> None:
        """Remove an ended job.

        `success`: report to write if the job was filed as lost meanwhile; None: already reported.
        """
        name, is_sure = getattr(request, _ON, ("", False))
        if not name:
            return
        delattr(request, _ON)
        with self._lock:
            self._bytes -= self._open.pop(name, 0)
        if not is_sure:
            self._is_unsure = True  # the answer may be lost rather than the call; the store is or was unavailable
            return
        args: list[str | bytes] = [name]
        if success is not None:
            entry = self._origin.entry(replace(success, reason=CAME_BACK))
            args += [part for pair in entry.items() for part in pair]
        self._calls.notify(_END, self._ends, args, lambda: self._unheard.append(args))

    @property
    def _ends(self) -> list[str]:
        source = self._origin.source
        return [self._kept, f"{self._kept}:lost", keys.failures(source), keys.failures_bytes(source)]

    # -- where no job waits -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Repeat calls that the store did not answer, and remove stale entries. Called every second."""
        self._calls.listen()
        while self._unheard:
            args = self._unheard.popleft()
            if self._calls.run(_END, self._ends, args) is None:
                self._unheard.appendleft(args)
                return
        if self._is_unsure:
            self._is_unsure = False  # reset first: entries that a job's thread reports meanwhile are swept next time
            is_swept = False
            try:
                is_swept = self._swept()
            finally:
                if not is_swept:
                    self._is_unsure = True

    def _swept(self) -> bool:
        names = self._calls.run(_LIST, [self._kept], [])
        if names is None:
            return False
        with self._lock:  # after reading the store: jobs begun since then are in `_open`
            stale = [name for name in names if name.decode("utf-8", "replace") not in self._open]
        return all(self._calls.run(_END, self._ends, [name]) is not None for name in stale)


def _name(request: Any) -> str:
    """Return the name of this attempt of this run. Job ids are unbounded; names here are not."""
    name = f"{Job.of_request(request).name}:{report.attempt_of(request)}"
    if len(name) <= _LONGEST_NAME and name.isascii():
        return name
    return "x" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _report(request: Any, origin: Origin, chosen: Chosen) -> Envelope:
    """Return the report; the process that finds the worker dead adds time and reason."""
    envelope = report.failure(request, Outcome("lost", "", WHAT, ""), origin, None)
    raw = envelope.raw or b""
    raw = raw if len(raw) <= MOST_RAW else raw[: report.RAW_HEAD]
    return replace(envelope, raw=raw, late_ack=False, policy=chosen.label)


def _packed(entry: Entry) -> bytes:
    """Return an entry as bytes: version, length of `meta`, key and signature if signed; `meta`; the message."""
    head = [entry[b"v"], b"%d" % len(entry[b"meta"])]
    if KEY in entry:
        head += [entry[KEY], entry[SIGNATURE]]
    return b"%s\n%s%s" % (b" ".join(head), entry[b"meta"], entry[b"raw"])
