"""Counts at the start and end of a job, for policies with limits: crashes, concurrency slots, starts.

    answer = at_start.starting(policy, job)      # Proceed, Wait, Alone or Quarantine
    …
    at_start.ended(policy, job)                  # after any ending that Python saw

One call to the store before a job; one after it, for which no job waits. No calls for policies without limits.
If the store does not answer, the job starts uncounted; the heartbeat reports the number of such jobs.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery.exceptions import Ignore

from jobs_admin.core import keys
from jobs_admin.core.arguments import value_at
from jobs_admin.core.envelope import Lineage
from jobs_admin.core.policy import Policy
from jobs_admin.core.redaction import redact_text
from jobs_admin.worker.calls import Calls, Script
from jobs_admin.worker.report import lineage_of
from jobs_admin.worker.tally import Tally

KILLED, HARD_LIMIT, MEMORY, LOST = "killed", "hard_limit", "memory", "lost"
# Key in the request that the main process passes to the pool: whether the job runs `alone` in this worker or `beside`
# others.
ALONE = "redrive_alone"
KINDS_OF_CRASHES = {HARD_LIMIT: "hard_limit", MEMORY: "memory"}


def _script(*names: str) -> Script:
    here = Path(__file__).parent
    constant = f"local SILENT_MS = {keys.SILENT_MS}"
    return Script("\n".join([constant, *((here / f"{name}.lua").read_text() for name in names)]))


START = _script("limits", "crashes", "at_start")
END = _script("limits", "crashes", "at_end")
BEAT = _script("limits", "crashes", "beat")


@dataclass(frozen=True, slots=True)
class Job:
    """A job about to start.

    `alone`: "alone" in its worker, "beside" other jobs, or "" if that was not checked.
    """

    id: str
    run: int
    task: str
    queue: str
    args: Any = ()
    kwargs: Any = None
    tenant: str = ""
    alone: str = ""

    @classmethod
    def of_context(cls, context: Any, tenant: str = "") -> Job:
        """Make a job from `task.request`, in the process that runs it."""
        header = context.get("redrive") or (context.get("headers") or {}).get("redrive")
        lineage = Lineage.of_message(header, str(context.id))
        delivery = context.get("delivery_info") or {}
        return cls(
            id=str(context.id),
            run=lineage.run if lineage else 1,
            task=str(context.task),
            queue=str(delivery.get("routing_key") or "").partition("\x06\x16")[0],
            args=context.args,
            kwargs=context.kwargs,
            tenant=tenant,
            alone=str(context.get(ALONE) or ""),
        )

    @classmethod
    def of_request(cls, request: Any) -> Job:
        """Make a job from Celery's request in the worker's main process: enough to report its end."""
        lineage = lineage_of(request)
        return cls(id=str(request.id), run=lineage.run if lineage else 1, task=str(request.type), queue="")

    @property
    def name(self) -> str:
        """Name under which the job is counted. A replay has its own, even if it keeps the job's id."""
        return self.id if self.run == 1 else f"{self.id}#{self.run}"


@dataclass(frozen=True, slots=True)
class Proceed:
    """The job may start."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The job may not start yet: return the slot and check again later. Not an attempt."""

    delay_s: float
    why: str  # concurrency, rate, or undecided: the fate of an earlier start is not known yet


@dataclass(frozen=True, slots=True)
class Alone:
    """The job ran in a worker that died: it may start only while no other job runs in this worker."""

    deaths: int = 1  # workers that died while running it


@dataclass(frozen=True, slots=True)
class Crash:
    """A start without an orderly end. Times are Unix seconds by the store's clock."""

    how: str  # killed, hard_limit, memory: the job's process died; lost: its worker died
    at: float  # start time, plus the time that the job stayed with its dead worker
    seen_at: float
    worker: str
    said: str = ""
    alone: bool = False  # whether no other job ran in that worker
    beside: int = 0  # other counted jobs that ran in it, if the whole worker died


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The job must not start again: it crashed its workers as often as the policy allows."""

    crashes: tuple[Crash, ...]


def format_records(crashes: Sequence[Crash]) -> str:
    """Return the crashes as JSON, as in a report."""
    return json.dumps([asdict(crash) for crash in crashes])


class RunAlone(Ignore):  # type: ignore[misc]
    """Exception for `Alone`: the main process restarts the job when no other job runs. Nothing is acknowledged."""

    def __init__(self, deaths: int = 1) -> None:
        super().__init__(deaths)  # for pickling
        self.deaths = deaths


class AtStart:
    """Client of the counts.

    Created in a worker's main process before the pool forks; used there and in the children.
    """

    def __init__(self, calls: Calls, source: str, boot: str, worker: str, host: str) -> None:
        self._calls = calls
        self._source = source
        self._boot = boot
        self._worker = worker
        self._host = host
        self._boots = keys.boots(source)
        self._key = keys.boot(source, boot)
        self._uncounted = Tally()
        # Crashes not yet reported to the store.
        self._untold: deque[tuple[list[str], list[str | int]]] = deque(maxlen=1000)
        # slots given to other workers while this worker, which had not renewed them, still ran their jobs
        self.overrun = 0
        self.live_workers = 1  # of this source, including this worker, by the store's latest answer
        self._open: Sequence[bytes] = ()  # tokens without a reported end at the last beat

    def starting(self, policy: Policy, job: Job) -> Proceed | Wait | Alone | Quarantine:
        """Return whether the job may start now. If so, count it as running."""
        poison, rate = policy.poison, policy.rate_limit
        value = _value(policy, job)
        at_once = policy.concurrency.limit if policy.concurrency is not None and value is not None else 0
        if poison is None and rate is None and not at_once:
            return Proceed()
        self.report_crashes()  # a child has no other caller for it
        key = keys.crash(self._source, job.name)
        described = {"id": job.id[:255], "task": job.task[:255], "queue": job.queue[:200], "run": job.run, "key": key}
        answer = self._calls.run(
            START,
            [
                key,
                self._key,
                self._boots,
                keys.leases(self._source, policy.name, value or ""),
                f"{self._key}:held",
                keys.starts(self._source, policy.name),
            ],
            [
                self._token(),
                self._boot,
                self._worker,
                json.dumps(described),
                job.name,
                job.alone,
                poison.crashes if poison else 0,
                _ms(poison.window_s) if poison else 0,
                at_once,
                rate.max if rate else 0,
                math.ceil(rate.per_s * 1_000_000) if rate else 0,
            ],
        )
        if answer is None:
            self._uncounted.add()
        return _parse_answer(answer)

    @property
    def uncounted(self) -> int:
        """Jobs of this worker that started uncounted because the store did not answer."""
        return self._uncounted.total

    def ended(self, policy: Policy, job: Job) -> None:
        """Record an orderly end (success, error or retry), and clear the job's crashes."""
        if policy.poison is not None or policy.concurrency is not None:
            self._calls.notify(END, *self._end(policy, job, self._token()))

    def crashed(self, policy: Policy, job: Job, how: str, words: str = "", pid: int | None = None) -> Quarantine | None:
        """Record that the job's process died or must be treated as dead. Return None if the job may run again.

        `pid`: the process id if another process reports the crash; 0 if no process had received the job, so it cannot
        have started.
        """
        names, args = self._end(policy, job, self._token(pid), how, _stored_words(words), pid)
        answer = self._calls.run(END, names, args)
        if answer is None:
            self._untold.append((names, args))
        decided = _parse_answer(answer)
        return decided if isinstance(decided, Quarantine) else None

    def _end(
        self, policy: Policy, job: Job, token: str, how: str = "", words: str = "", pid: int | None = None
    ) -> tuple[list[str], list[str | int]]:
        poison = policy.poison
        names = [keys.crash(self._source, job.name), self._key, self._boots, f"{self._key}:held"]
        return names, [
            token,
            self._boot,
            how,
            words,
            poison.crashes if poison else 2**31,
            _ms(poison.window_s) if poison else 0,
            f"{token} {time.time_ns()}",
            "" if pid == 0 else self._worker,
        ]

    def beat(self, leaving: str = "") -> None:
        """Report that this worker is alive, and renew its jobs' slots. Called every 5 s.

        `leaving`: "" or the reason for leaving. A worker ordered to shut down causes no crash of the jobs that it
        leaves open; `gone`: it has ended.
        """
        # The report of an end can be lost with its connection. If that process was then replaced, its token must not
        # block a slot or a job forever.
        dead = [token for token in self._open if not _lives(token)]
        names = [self._boots, self._key, f"{self._key}:held"]
        answer = self._calls.run(BEAT, names, [self._boot, self._worker, self._host, leaving, *dead])
        live, overrun, *self._open = answer or (self.live_workers, self.overrun)
        self.live_workers, self.overrun = max(1, int(live)), int(overrun)

    def report_crashes(self) -> None:
        """Report crashes that the store has not received. Called every second."""
        while self._untold:
            crash = self._untold.popleft()
            if self._calls.run(END, *crash) is None:
                self._untold.appendleft(crash)
                return

    def _token(self, pid: int | None = None) -> str:
        """Return the name of a slot that runs one job at a time."""
        is_main = threading.current_thread() is threading.main_thread()
        return f"{self._boot}:{pid or os.getpid()}" + ("" if pid or is_main else f":{threading.get_ident()}")


def _lives(token: bytes) -> bool:
    """Return whether the process named by a token exists."""
    try:
        os.kill(int(token.split(b":")[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, IndexError):
        pass
    return True


def _value(policy: Policy, job: Job) -> str | None:
    """Return the job's value of the policy's concurrency key. None: no such value, so the job is not limited."""
    if policy.concurrency is None:
        return None
    key = policy.concurrency.key
    if key in ("tenant", "queue", "task"):
        return getattr(job, key) or None
    value = value_at(key, job.args, job.kwargs)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _stored_words(words: str) -> str:
    """Return an error message for a crash record: redacted, at most 200 characters, encodable for Redis."""
    return redact_text(words[:1_000])[0][:200].encode("utf-8", "backslashreplace").decode()


def _parse_answer(answer: Sequence[bytes] | None) -> Proceed | Wait | Alone | Quarantine:
    word = answer[0] if answer else b"go"
    if answer and word == b"wait":
        return Wait(int(answer[1]) / 1000, answer[2].decode())
    if answer and word == b"alone":
        return Alone(int(answer[1]))
    if answer and word == b"quarantine":
        return Quarantine(tuple(_crash(one) for one in json.loads(answer[1]) or ()))
    return Proceed()


def _crash(values: Mapping[str, Any]) -> Crash:
    return Crash(
        how=str(values["how"]),
        at=float(values["at"]) / 1000,
        seen_at=float(values.get("seen", values["at"])) / 1000,
        worker=str(values.get("worker", "")),
        said=str(values.get("said", "")),
        alone=bool(values.get("alone")),
        beside=int(values.get("beside", 0)),
    )
