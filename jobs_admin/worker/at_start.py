"""Counts at the start and the end of a job: crashes, places, starts. One call before it; one after, for which no job
waits.

None where no policy asks.

    answer = at_start.starting(policy, job)      # Proceed, Wait, Alone or Quarantine
    …
    at_start.ended(policy, job)                  # whatever way Python saw it end

A store that does not answer stops no job: it starts uncounted, which is counted here and reported by the heartbeat.
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
# In what the main process hands to the pool: whether the job is `alone` there, or `beside` others.
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
    """A job as it is about to start. `alone`: `alone` in its worker, `beside` others after all, "" where that was not
    checked.
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
        """Make a job from Celery's request, in the worker's main process: enough to report how it ended."""
        lineage = lineage_of(request)
        return cls(id=str(request.id), run=lineage.run if lineage else 1, task=str(request.type), queue="")

    @property
    def name(self) -> str:
        """The name under which it is counted. A replay is counted separately, also where it keeps the job's id."""
        return self.id if self.run == 1 else f"{self.id}#{self.run}"


@dataclass(frozen=True, slots=True)
class Proceed:
    """The job may start."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: give the slot back and come again. That is no attempt."""

    delay_s: float
    why: str  # concurrency, rate, or undecided: it is not known yet what became of an earlier start


@dataclass(frozen=True, slots=True)
class Alone:
    """The job ran in a worker that died: it may start when nothing else runs in this one."""

    deaths: int = 1  # of whole workers, in which it ran


@dataclass(frozen=True, slots=True)
class Crash:
    """A start that did not end in order. Times are seconds since 1970, by the store's clock."""

    how: str  # killed, hard_limit, memory: its process; lost: its whole worker
    at: float  # when it started; later by the time that the job lay with its dead worker
    seen_at: float
    worker: str
    said: str = ""
    alone: bool = False  # whether nothing else ran in that worker
    beside: int = 0  # counted jobs that did, where the whole worker died


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The job never starts again: it ended its workers as often as the policy allows."""

    crashes: tuple[Crash, ...]


def format_records(crashes: Sequence[Crash]) -> str:
    """Return the crashes as JSON, in the form that a report carries."""
    return json.dumps([asdict(crash) for crash in crashes])


class RunAlone(Ignore):  # type: ignore[misc]
    """Raised for `Alone`: the main process starts the job again when nothing else runs. Nothing is acknowledged."""

    def __init__(self, deaths: int = 1) -> None:
        super().__init__(deaths)  # so that it can be pickled
        self.deaths = deaths


class AtStart:
    """Made once in a worker's main process, before the pool is forked; used there and in the pool's children."""

    def __init__(self, calls: Calls, source: str, boot: str, worker: str, host: str) -> None:
        self._calls = calls
        self._source = source
        self._boot = boot
        self._worker = worker
        self._host = host
        self._boots = keys.boots(source)
        self._key = keys.boot(source, boot)
        self._uncounted = Tally()
        # Crashes that the store has not heard of.
        self._untold: deque[tuple[list[str], list[str | int]]] = deque(maxlen=1000)
        self.overrun = 0  # places given to others while this worker, which had not renewed them, still ran their jobs
        self.live_workers = 1  # of this source, itself included: by the latest answer of the store
        self._open: Sequence[bytes] = ()  # tokens of which no end was told at the last beat

    def starting(self, policy: Policy, job: Job) -> Proceed | Wait | Alone | Quarantine:
        """Return whether the job may start now; if so, it is counted as running."""
        poison, rate = policy.poison, policy.rate_limit
        value = _value(policy, job)
        at_once = policy.concurrency.limit if policy.concurrency is not None and value is not None else 0
        if poison is None and rate is None and not at_once:
            return Proceed()
        self.report_crashes()  # a child has nobody else who would
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
        """Jobs that started although a policy counts them, because the store did not answer: of this worker's life."""
        return self._uncounted.total

    def ended(self, policy: Policy, job: Job) -> None:
        """The job ended in order: well, with an error, or to be tried again. What was known against it is forgotten."""
        if policy.poison is not None or policy.concurrency is not None:
            self._calls.notify(END, *self._end(policy, job, self._token()))

    def crashed(self, policy: Policy, job: Job, how: str, words: str = "", pid: int | None = None) -> Quarantine | None:
        """The process that ran the job is no more, or must not count as alive. None: it may come again.

        `pid` is that process's, where another one reports; 0 where none had taken the job, and it cannot have started.
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
        """Report that this worker lives, and keep what its jobs hold. Called every five seconds.

        `leaving`: it was ordered to end, and what it leaves open is no job's crash; `gone`: it has ended.
        """
        # An end that was lost with its connection, of a process that was then replaced, must hold no place and no job for ever.
        dead = [token for token in self._open if not _lives(token)]
        names = [self._boots, self._key, f"{self._key}:held"]
        answer = self._calls.run(BEAT, names, [self._boot, self._worker, self._host, leaving, *dead])
        live, overrun, *self._open = answer or (self.live_workers, self.overrun)
        self.live_workers, self.overrun = max(1, int(live)), int(overrun)

    def report_crashes(self) -> None:
        """Report crashes that the store has not heard of. Called every second."""
        while self._untold:
            crash = self._untold.popleft()
            if self._calls.run(END, *crash) is None:
                self._untold.appendleft(crash)
                return

    def _token(self, pid: int | None = None) -> str:
        """Names a place in which one job at a time runs."""
        is_main = threading.current_thread() is threading.main_thread()
        return f"{self._boot}:{pid or os.getpid()}" + ("" if pid or is_main else f":{threading.get_ident()}")


def _lives(token: bytes) -> bool:
    """Return whether the process that a token names is there."""
    try:
        os.kill(int(token.split(b":")[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, IndexError):
        pass
    return True


def _value(policy: Policy, job: Job) -> str | None:
    """Return what the policy counts by, of this job. None: it has none, and is not held up."""
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
    """Return what is kept of an error's words beside a crash: 200 characters at most, without secrets, as Redis takes them."""
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
