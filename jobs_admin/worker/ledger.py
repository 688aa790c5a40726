"""Jobs that are acknowledged before they run, kept in the store while they run: those of a worker that dies are filed
as lost.

Only under a policy with `file_lost`. What is kept is the report as it will be on the stream: the desk puts it there
once the worker has given no sign for long enough (`lost_jobs.py`).

    ledger.begins(request)      # before Celery acknowledges; a job waits for 100 ms at most, and starts in any case
    …
    ledger.ended(request)       # after its report is durable; no job waits

What is acknowledged late is not kept: the broker itself gives it to another worker.
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

MOST_BYTES = 64 * 1024**2  # that one worker keeps at a time
MOST_RAW = 4 * 1024**2  # of one message; of a longer one its head: the job is told, and cannot be replayed
WHAT = "The worker that ran this job stopped. How far the job came is not known."
CAME_BACK = "It had been filed as lost: its worker had given no sign, and went on."

_LONGEST_NAME = 200
_ON = "_redrive_kept"  # on a request: the job's name in the ledger, and whether the store said that it keeps it

logger = logging.getLogger("redrive.worker")


def _script(name: str) -> str:
    text = (Path(__file__).parent / f"ledger_{name}.lua").read_text()
    return f"local KEPT_MS = {LEDGER_STORED_DAYS * 86_400_000}\n{text}"


_PUT, _END, _LIST = Script(_script("put")), Script(with_report(_script("end"))), Script(_script("list"))


class Ledger:
    """The ledger of one life of a worker; called by its main process, in any of its threads. May raise: the guard lets nothing out."""

    def __init__(self, calls: Calls, in_force: InForce, origin: Origin, boot: str, stream_bytes: int) -> None:
        self._calls = calls
        self._stream_bytes = stream_bytes  # which hold for who files what is kept here, too
        self._in_force = in_force
        self._origin = origin
        self._boot = boot
        self._kept = keys.kept(origin.source, boot)
        self._lock = threading.Lock()  # of the two below
        self._open: dict[str, int] = {}  # jobs that run and are kept, or may be -> bytes
        self._bytes = 0
        self._is_unsure = False  # whether the store may hold something of which we do not know
        self._unheard: deque[list[str | bytes]] = deque(maxlen=10_000)  # ends that the store may not have heard of
        self._unkept = Tally()
        self._is_full = False

    @property
    def unkept(self) -> int:
        """Jobs that ran without being kept although a policy asks for it, in this worker's life."""
        return self._unkept.total

    @property
    def open_bytes(self) -> int:
        """The bytes of jobs that are kept just now, or may be."""
        return self._bytes

    def connect(self) -> None:
        """Before the first job, so that none waits for that. Takes a second at most, and may be in vain."""
        if self._in_force.files_lost():
            self._calls.connect()

    # -- a job ------------------------------------------------------------------------------------------------

    def begins(self, request: Any) -> None:
        """Keep the job, where a policy asks for it and the broker is about to forget it."""
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
            # A second copy of its message takes the place of the first: the store keeps one of a name.
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
        """Return whether the job is kept, or may be."""
        return hasattr(request, _ON)

    def ended(self, request: Any, success: Envelope | None = None) -> None:
        """The job has ended. `success`: the report to write should it have been filed as lost meanwhile; None: it was
        reported already.
        """
        name, is_sure = getattr(request, _ON, ("", False))
        if not name:
            return
        delattr(request, _ON)
        with self._lock:
            self._bytes -= self._open.pop(name, 0)
        if not is_sure:
            self._is_unsure = True  # the answer may have been lost, not the word; the store is away, or was
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
        """Repeat what the store did not hear, and take out what it keeps for nothing. Called every second."""
        self._calls.listen()
        while self._unheard:
            args = self._unheard.popleft()
            if self._calls.run(_END, self._ends, args) is None:
                self._unheard.appendleft(args)
                return
        if self._is_unsure:
            self._is_unsure = (
                False  # first: what a job's thread says of it meanwhile stands, and is swept the next time
            )
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
        with self._lock:  # asked after the store: what began since then is open
            stale = [name for name in names if name.decode("utf-8", "replace") not in self._open]
        return all(self._calls.run(_END, self._ends, [name]) is not None for name in stale)


def _name(request: Any) -> str:
    """Return the name of this attempt of this run. A job's id has no bound; a name here has."""
    name = f"{Job.of_request(request).name}:{report.attempt_of(request)}"
    if len(name) <= _LONGEST_NAME and name.isascii():
        return name
    return "x" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _report(request: Any, origin: Origin, chosen: Chosen) -> Envelope:
    """Return the report to be written; when and why is added by whoever finds the worker dead."""
    envelope = report.failure(request, Outcome("lost", "", WHAT, ""), origin, None)
    raw = envelope.raw or b""
    raw = raw if len(raw) <= MOST_RAW else raw[: report.RAW_HEAD]
    return replace(envelope, raw=raw, late_ack=False, policy=chosen.label)


def _packed(entry: Entry) -> bytes:
    """Return an entry as one value: version, length of `meta`, key and signature where it is signed; `meta`; the message."""
    head = [entry[b"v"], b"%d" % len(entry[b"meta"])]
    if KEY in entry:
        head += [entry[KEY], entry[SIGNATURE]]
    return b"%s\n%s%s" % (b" ".join(head), entry[b"meta"], entry[b"raw"])
