"""The engine's steps, each in a process of its own, so that what hangs in one delays no other.

The parent opens no connection: it forks a child for each step, starts it again when it dies, and kills it when it has
not moved within its deadline. Children die with the parent. Several watches may run side by side.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.child_process import die_with_parent
from jobs_admin.core.reconnect_delay import Pauses
from jobs_admin.core.text import representable
from jobs_admin.db import step_progress

log = logging.getLogger(__name__)

# What means "away for now" rather than "wrong".
_AWAY = (OperationalError, InterfaceError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError)

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_STEADY_AFTER_S = 60.0
_PATIENCE_S = 3.0  # from the wish to stop until SIGKILL
_NOTE_EVERY_S = 1.0
_SLICE_S = 0.1
_INDEXING_S = 5.0  # of ten, for making the search index anew after its rules have changed, and for re-encryption


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do again and again. `run` is given the process's name and says whether there was something to do."""

    name: str
    run: Callable[[str], bool]
    idle_s: float = 0.0  # the wait after a round with nothing to do
    every_s: float | None = None  # instead: at each multiple of so many seconds, busy or not
    deadline_s: float = 60.0  # a round that takes longer hangs
    processes: int = 1
    # The name is that of a place in this watch: the next process there goes on with what a killed one had taken.
    keeps_place: bool = False


def steps() -> dict[str, Step]:
    """The steps by name. What each needs is imported in its own process."""

    def ingest(name: str) -> bool:
        from jobs_admin import ingest

        return ingest.step(name)  # waits for the stream itself

    def reconcile(name: str) -> bool:
        from jobs_admin import ingest
        from jobs_admin.db import audit_anchor
        from jobs_admin.desk import key_rotation
        from jobs_admin.ingest import indexing, lost_jobs, refiling
        from jobs_admin.retries import awaiting

        ends = time.monotonic() + _INDEXING_S
        while time.monotonic() < ends and (indexing.step() or refiling.step() or key_rotation.step()):
            step_progress.report()
        now = timezone.now()
        is_more = ingest.reconcile(now, awaiting.delays(now))
        audit_anchor.step()
        return lost_jobs.file_jobs_of_dead_workers(time.monotonic()) or is_more

    def pull(name: str) -> bool:
        from jobs_admin.retries import pulling

        return pulling.step(name)

    def sample(name: str) -> bool:
        from jobs_admin.queues import sampling

        return sampling.sample(timezone.now())

    def rollup(name: str) -> bool:
        from jobs_admin.queues import depths

        return depths.step(timezone.now())

    def judge(name: str) -> bool:
        from jobs_admin import alerts

        return alerts.judge(timezone.now(), clock=timezone.now)

    def lay(name: str) -> bool:
        from jobs_admin import replays

        return replays.create_items()

    def send(name: str) -> bool:
        from jobs_admin import replays

        return replays.send(name, timezone.now())

    def settle(name: str) -> bool:
        from jobs_admin import replays

        return replays.settle(timezone.now())

    def promote(name: str) -> bool:
        from jobs_admin.retries import promoting

        return promoting.step()

    def prune(name: str) -> bool:
        from jobs_admin.desk import retention

        return retention.step(timezone.now())

    def regroup(name: str) -> bool:
        from jobs_admin.groups import regrouping

        return regrouping.regroup(timezone.now())

    def policies(name: str) -> bool:
        from jobs_admin import policies

        return policies.step(timezone.now())

    def deliver(name: str) -> bool:
        from jobs_admin import notices

        return notices.deliver(timezone.now())  # waits for answers itself

    known = (
        # Two, so that one reads and encrypts while the other writes.
        Step("ingest", ingest, deadline_s=120, processes=2, keeps_place=True),
        Step("pull", pull, idle_s=1),
        Step("reconcile", reconcile, every_s=10, deadline_s=120),
        Step("sample", sample, every_s=10),
        Step("rollup", rollup, idle_s=10, deadline_s=120),
        Step("judge", judge, every_s=5),
        Step("lay", lay, idle_s=0.1),
        Step("send", send, idle_s=0.1),  # so soon the first job goes after a start
        Step("settle", settle, idle_s=0.25),
        Step("promote", promote, idle_s=1),
        Step("prune", prune, idle_s=5, deadline_s=300),
        Step("regroup", regroup, idle_s=2),
        Step("policies", policies, idle_s=1),
        Step("deliver", deliver, idle_s=0.25),
    )
    return {step.name: step for step in known}


class _Slate:
    """Two numbers of each child in shared memory: its last sign of life (monotonic: one clock for all processes of a
    machine), and its rounds that failed in a row until now."""

    def __init__(self, children: int) -> None:
        self._memory = mmap.mmap(-1, 16 * children)

    def write(self, place: int, *, sign: float | None = None, failed_rounds: float | None = None) -> None:
        for at, number in ((16 * place, sign), (16 * place + 8, failed_rounds)):
            if number is not None:
                # Not `pack_into`, which clears the place before it writes: the parent would read nought, a silence
                # since boot.
                self._memory[at : at + 8] = struct.pack("d", number)

    def sign(self, place: int) -> float:
        return struct.unpack_from("d", self._memory, 16 * place)[0]

    def failed_rounds(self, place: int) -> float:
        return struct.unpack_from("d", self._memory, 16 * place + 8)[0]


@dataclass(slots=True)
class _Child:
    step: Step
    number: int  # among the processes of its step, from 0
    place: int  # on the slate
    pid: int | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    wait_s: float = _SHORTEST_WAIT_S


@dataclass
class Watch:
    """Runs the steps until `stop` is called (by SIGTERM or SIGINT)."""

    steps: Sequence[Step]
    is_stopping: bool = False
    children: list[_Child] = field(default_factory=list)

    def run(self) -> None:
        wanted = [(step, number) for step in self.steps for number in range(step.processes)]
        self._slate = _Slate(len(wanted))
        self.children = [_Child(step, number, place) for place, (step, number) in enumerate(wanted)]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        log.info("Watching: %s", ", ".join(step.name for step in self.steps))
        try:
            while not self.is_stopping:
                self._turn()
                time.sleep(_SLICE_S)
        finally:
            self._end_all()

    def stop(self, *_: object) -> None:
        self.is_stopping = True

    def _turn(self) -> None:
        now = time.monotonic()
        for child in self.children:
            if child.pid is not None:
                self._look(child, now)
            elif now >= child.due_at:
                self._start(child, now)

    def _start(self, child: _Child, now: float) -> None:
        # A connection shared by two processes would mix their answers.
        connections.close_all()
        self._slate.write(child.place, sign=now, failed_rounds=0)
        child.started_at = now
        parent = os.getpid()
        child.pid = os.fork()
        if child.pid == 0:
            die_with_parent()
            if os.getppid() != parent:  # it died before we could ask to die with it
                os._exit(1)
            beside = [c.place for c in self.children if c.step is child.step and c is not child]
            _Rounds(child, self._slate, beside).run()

    def _look(self, child: _Child, now: float) -> None:
        assert child.pid is not None
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        silent_s = now - self._slate.sign(child.place)
        if pid == 0 and silent_s <= child.step.deadline_s:
            return
        if pid == 0:
            log.error("Step %s did not move for %.0f s: it is killed and started again.", child.step.name, silent_s)
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        else:
            how = os.waitstatus_to_exitcode(status)
            log.error("Step %s ended (%s): it is started again.", child.step.name, how)
        child.pid = None
        child.wait_s = _SHORTEST_WAIT_S if now - child.started_at > _STEADY_AFTER_S else min(child.wait_s * 2, 30.0)
        child.due_at = now + child.wait_s

    def _end_all(self) -> None:
        running = [child for child in self.children if child.pid]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid or 0, signal.SIGTERM)
        ends = time.monotonic() + _PATIENCE_S
        while running and time.monotonic() < ends:
            running = [c for c in running if os.waitpid(c.pid or 0, os.WNOHANG)[0] == 0]
            time.sleep(0.02)
        for child in running:
            os.kill(child.pid or 0, signal.SIGKILL)
            os.waitpid(child.pid or 0, 0)


class _Rounds:
    """The life of a child: round after round of one step, until SIGTERM."""

    def __init__(self, child: _Child, slate: _Slate, beside: Sequence[int]) -> None:
        self.step = child.step
        self.place = child.place
        self.slate = slate
        self.beside = beside  # the places of the other processes of this step
        self.is_stopping = False
        self.host = socket.gethostname()
        keeps = self.step.keeps_place
        self.name = f"{self.host}:{os.getppid()}:{child.number}" if keeps else f"{self.host}:{os.getpid()}"
        self.error = ""
        self.failed_rounds = 0  # in a row
        self.pauses = Pauses(_SHORTEST_WAIT_S, _LONGEST_WAIT_S, least_s=_SHORTEST_WAIT_S / 2)
        self.busy_at = float("-inf")
        self.noted: tuple[float, str] = (float("-inf"), "")
        self.ended_at: float | None = (
            None  # latest progress: a round that did not fail, or a part of one; seconds since 1970
        )

    def run(self) -> None:
        """Never returns: a forked child must not go on in its parent's code."""
        code = 1
        try:
            signal.signal(signal.SIGTERM, self._stop)
            # Ctrl-C reaches the whole terminal; the parent ends us in order.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            random.seed()
            step_progress.listen(self._progressed)
            self._round()
            gc.freeze()  # what is loaded by now stays: the collector need not go through it again and again
            while not self.is_stopping:
                self._round()
            connections.close_all()
            code = 0
        except BaseException:
            log.exception("Step %s", self.step.name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self.is_stopping = True
        # A parent that was killed cannot kill a round that hangs: the kernel ends it as the parent would have.
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def _sign(self) -> None:
        self.slate.write(self.place, sign=time.monotonic())

    def _round(self) -> None:
        self._sign()
        try:
            is_busy = self.step.run(self.name)
        except Exception as error:  # one round must not end the others; it is counted and shown
            self._went_wrong(error)
            return
        if self.failed_rounds:
            log.info("Step %s goes on, after %d rounds that failed.", self.step.name, self.failed_rounds)
        self.error, self.failed_rounds, self.ended_at = "", 0, time.time()
        self.pauses.succeeded()
        self._note(is_busy)
        self._idle(is_busy)

    def _progressed(self) -> None:
        """Note progress within a round. After a failed round only the end of a round counts, as the next may fail the same way."""
        self._sign()
        if not self.error:
            self.ended_at = time.time()
            self._note(True)

    def _went_wrong(self, error: Exception) -> None:
        self.failed_rounds += 1
        text = representable(f"{type(error).__name__}: {error}".strip())[:500]
        if text.split("\n")[0] != self.error.split("\n")[0]:  # once, however often it comes
            if isinstance(error, _AWAY):
                log.error("Step %s waits: %s", self.step.name, text.split("\n")[0])
            else:
                log.error("Step %s failed: %s", self.step.name, text, exc_info=error)
        self.error = text
        connections.close_all()  # the next round dials anew
        self._note(False)
        self._sleep(self.pauses.failed())

    def _note(self, is_busy: bool) -> None:
        """Note in Redis that the step makes progress: without a note for long it is shown as late."""
        self.slate.write(self.place, failed_rounds=self.failed_rounds)
        if not self.error and any(self.slate.failed_rounds(place) for place in self.beside):
            return  # what that one says of the step stands
        now = time.monotonic()
        if now - self.noted[0] < _NOTE_EVERY_S and self.noted[1] == self.error:
            return
        word = {
            "step": self.step.name,
            "pid": os.getpid(),
            "host": self.host,
            "busy": is_busy,
            "error": self.error,
            "failed_rounds": self.failed_rounds,
        }
        try:
            # A round that failed did nothing: `at` stays behind, and the step is shown as late.
            word["at"] = self.ended_at or self._ended_before() or time.time()
            config.store().hset(keys.steps(), self.step.name, json.dumps(word))
        except redis.RedisError as error:
            log.debug("Step %s could not be noted: %s", self.step.name, error)  # its silence says it
            return
        self.noted = (now, self.error)

    def _ended_before(self) -> float | None:
        """When the process before this one last ended a round."""
        return untrusted.number(untrusted.read_object(config.store().hget(keys.steps(), self.step.name)).get("at"))

    def _idle(self, is_busy: bool) -> None:
        if self.step.every_s is not None:
            now = time.time()
            self._sleep(self.step.every_s - now % self.step.every_s)
        elif is_busy:
            self.busy_at = time.monotonic()
        elif self.step.idle_s:
            # While something is going on, look again soon.
            is_active = time.monotonic() - self.busy_at < 2
            self._sleep(min(self.step.idle_s, 0.02) if is_active else self.step.idle_s)

    def _sleep(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self.is_stopping and (left := ends - time.monotonic()) > 0:
            self._sign()
            time.sleep(min(left, _SLICE_S))
