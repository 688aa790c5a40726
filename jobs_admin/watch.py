"""The engine's steps, in several processes, so that one that hangs delays no other.

A step that calls a source or a webhook, or parses what workers wrote, has a process of its own; steps that call only
the desk's database and store are threads of one shared process. A step that is rarely due has a process only while it
is due, which one thread of the shared process checks for all such steps. The parent opens no connection: it forks the
processes, restarts them when they die, and kills one that makes no progress within its deadline. Children die with the
parent. Several `watch` processes may run side by side.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys, untrusted
from jobs_admin.core.child_process import die_with_parent
from jobs_admin.core.reconnect_delay import ReconnectDelay
from jobs_admin.core.text import representable
from jobs_admin.db import step_progress
from jobs_admin.db.changes import data_version

log = logging.getLogger(__name__)

# Errors of an unreachable service, as opposed to bugs.
_AWAY = (OperationalError, InterfaceError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError)

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_STEADY_AFTER_S = 60.0
_PATIENCE_S = 3.0  # from the request to stop until SIGKILL
_NOTE_EVERY_S, _NOTE_QUIET_EVERY_S = 1.0, 5.0
_TURN_S = 1.0  # how often the parent checks for a child that hangs
_SLICE_S = 0.1  # how often a change of the database is checked
_LOOK_AGAIN_S = 5.0  # also checked without a change: few steps are due by time alone
_LINGER_S = 20.0  # until an idle process on demand ends
_INGEST_WAIT_S = 0.5
_INDEXING_S = 5.0  # of every ten, for rebuilding the search index after its rules have changed, and for re-encryption


def _always() -> bool:
    return True


def _never() -> bool:
    return False


def _has_sources() -> bool:
    return bool(config.sources())


def _has_no_sources() -> bool:
    return not config.sources()


@dataclass(frozen=True, slots=True)
class Step:
    """A repeated task. `run` gets the process's name and returns whether there was something to do."""

    name: str
    run: Callable[[str], bool]
    idle_s: float = 0.0  # wait after a round with nothing to do
    every_s: float | None = None  # instead: at each multiple of this many seconds, busy or not
    deadline_s: float = 60.0  # a round that takes longer counts as hung
    processes: int = 1  # maximum: all but the first run only while the first has more to do
    # The name identifies a place in this watch: the next process there continues with what a killed one had claimed.
    keeps_place: bool = False
    # Whether it is a thread of a process shared with other such steps: it calls only the desk's database and store.
    shares: Callable[[], bool] = _never
    # Whether it has something to do. If given, the step has a process only while this is true, and _LINGER_S longer.
    is_due: Callable[[], bool] | None = None


def steps() -> dict[str, Step]:  # noqa: C901
    """Return the steps by name. Their imports happen when they run, or in `preload`."""
    # In one function: a process imports only what its own step needs.

    def ingest(name: str) -> bool:
        from jobs_admin import ingest

        return ingest.step(name, wait_s=_INGEST_WAIT_S)  # for the first entry

    def reconcile(name: str) -> bool:
        from jobs_admin import ingest
        from jobs_admin.db import audit_anchor
        from jobs_admin.desk import key_rotation
        from jobs_admin.ingest import indexing, lost_jobs, refiling
        from jobs_admin.retries import awaiting
        from jobs_admin.search import substrings

        ends = time.monotonic() + _INDEXING_S
        while time.monotonic() < ends and (
            indexing.step() or refiling.step() or key_rotation.step() or substrings.step()
        ):
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
        from jobs_admin import holds, policies
        from jobs_admin.holds import breaker_history

        now = timezone.now()
        return any([policies.step(now), holds.step(now), breaker_history.step(now)])

    def automate(name: str) -> bool:
        from jobs_admin.models import Automation

        if not Automation.objects.filter(mode="live").exists():
            return False  # the code of the acts is not even imported
        from jobs_admin import automations

        return automations.step(timezone.now())

    def deliver(name: str) -> bool:
        from jobs_admin import notices

        return notices.deliver(timezone.now())  # waits for answers itself

    def forward(name: str) -> bool:
        from jobs_admin.notices import audit_forwarding

        return audit_forwarding.step(timezone.now())

    def is_lay_due() -> bool:
        from jobs_admin.replays import freezing

        return freezing.is_due()

    def is_send_due() -> bool:
        from jobs_admin.replays import sending

        return sending.is_due()

    def is_settle_due() -> bool:
        from jobs_admin.replays import settling

        return settling.is_due(timezone.now())

    def is_deliver_due() -> bool:
        from jobs_admin.notices import delivering

        return delivering.is_due()

    def is_forward_due() -> bool:
        from jobs_admin.db import audit_position

        return audit_position.is_due()

    known = (
        # Two, so that one reads and encrypts while the other writes.
        Step("ingest", ingest, deadline_s=120, processes=2, keeps_place=True),
        Step("pull", pull, idle_s=1, is_due=_has_sources),
        Step("reconcile", reconcile, every_s=10, deadline_s=120, shares=_has_no_sources),
        Step("sample", sample, every_s=10, shares=_has_no_sources),
        Step("rollup", rollup, idle_s=10, deadline_s=120, shares=_always),
        Step("judge", judge, every_s=5, shares=_always),
        Step("lay", lay, idle_s=0.1, is_due=is_lay_due),
        Step("send", send, idle_s=0.1, is_due=is_send_due),
        Step("settle", settle, idle_s=0.25, is_due=is_settle_due),
        Step("promote", promote, idle_s=1, is_due=_has_sources),
        Step("prune", prune, idle_s=5, deadline_s=300, shares=_always),
        Step("regroup", regroup, idle_s=2, shares=_always),
        Step("policies", policies, idle_s=1, shares=_always),
        Step("automate", automate, every_s=10, shares=_always),
        Step("deliver", deliver, idle_s=0.25, is_due=is_deliver_due),
        Step("forward", forward, idle_s=1, is_due=is_forward_due),
    )
    return {step.name: step for step in known}


def preload() -> None:
    """Import what the steps need, so that their processes share the memory instead of each importing it."""
    from jobs_admin import alerts, holds, ingest, notices, policies, replays  # noqa: F401
    from jobs_admin.desk import key_rotation, retention  # noqa: F401
    from jobs_admin.groups import regrouping  # noqa: F401
    from jobs_admin.queues import depths, sampling  # noqa: F401
    from jobs_admin.retries import awaiting, promoting, pulling  # noqa: F401


class _Slate:
    """Three numbers per place in shared memory: last progress, consecutive failed rounds, whether it is wanted."""

    def __init__(self, places: int) -> None:
        self._memory = mmap.mmap(-1, 24 * places)

    def write(
        self, place: int, *, sign: float | None = None, failed_rounds: float | None = None, wanted: bool | None = None
    ) -> None:
        for at, number in enumerate((sign, failed_rounds, wanted)):
            if number is not None:
                # Not `pack_into`, which clears the place before it writes: the parent would read zero, no progress
                # since boot.
                at = 24 * place + 8 * at
                self._memory[at : at + 8] = struct.pack("d", number)

    def sign(self, place: int) -> float:
        return self._read(place, 0)

    def failed_rounds(self, place: int) -> float:
        return self._read(place, 1)

    def is_wanted(self, place: int) -> bool:
        return bool(self._read(place, 2))

    def _read(self, place: int, n: int) -> float:
        return struct.unpack_from("d", self._memory, 24 * place + 8 * n)[0]


class _Bell:
    """An interruptible wait of a process: it ends on a signal, or when a forked process rings."""

    def __init__(self) -> None:
        self._ear, self._hand = os.pipe()
        for end in (self._ear, self._hand):
            os.set_blocking(end, False)

    def listen(self) -> None:
        """Make the signals of this process ring it."""
        signal.set_wakeup_fd(self._hand, warn_on_full_buffer=False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._hand, b"\0")

    def wait(self, seconds: float | None) -> None:
        if select.select([self._ear], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ear, 4096)


@dataclass(frozen=True, slots=True)
class _Part:
    """A step in one process."""

    step: Step
    place: int  # on the slate
    number: int = 0  # among the processes of its step
    # The places of processes that run only while there is work, which this part starts. All other places of the step
    # are in `beside`.
    starts: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    checks_due: bool = False  # only checks whether the step is due


@dataclass(slots=True)
class _Child:
    name: str
    parts: list[_Part]
    is_on_demand: bool = False
    pid: int | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    wait_s: float = _SHORTEST_WAIT_S


def _plan(steps: Sequence[Step]) -> list[_Child]:
    """Return the processes: one per step, one for all that share, and those on demand."""
    places = itertools.count()
    shared = _Child("shared", [])
    children = []
    for step in steps:
        shares = step.shares()
        own = [next(places) for _ in range(step.processes)] if not shares else []
        on_demand = tuple(own if step.is_due else own[1:])
        for number, place in enumerate(own):
            beside = tuple(other for other in own if other != place)
            starts = on_demand if not step.is_due and not number else ()
            children.append(
                _Child(step.name, [_Part(step, place, number, starts, beside)], is_on_demand=place in on_demand)
            )
        if shares:
            shared.parts.append(_Part(step, next(places)))
        elif step.is_due:
            shared.parts.append(_Part(step, next(places), starts=on_demand, beside=on_demand, checks_due=True))
    return [*children, shared] if shared.parts else children


@dataclass
class Watch:
    """Supervisor that runs the steps until `stop` is called (by SIGTERM or SIGINT)."""

    steps: Sequence[Step]
    is_stopping: bool = False
    children: list[_Child] = field(default_factory=list)

    def run(self) -> None:
        self.children = _plan(self.steps)
        self._slate = _Slate(sum(len(child.parts) for child in self.children))
        self._bell = _Bell()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the end of a child rings
        self._bell.listen()
        gc.collect()
        gc.freeze()  # the garbage collector would write to memory that the processes share
        log.info("Watching: %s", ", ".join(step.name for step in self.steps))
        try:
            while not self.is_stopping:
                self._turn()
                self._bell.wait(_TURN_S)
        finally:
            self._end_all()

    def stop(self, *_: object) -> None:
        self.is_stopping = True

    def _turn(self) -> None:
        now = time.monotonic()
        for child in self.children:
            if child.pid is not None:
                self._look(child, now)
            elif now >= child.due_at and (not child.is_on_demand or self._slate.is_wanted(child.parts[0].place)):
                self._start(child, now)

    def _start(self, child: _Child, now: float) -> None:
        # A connection shared by two processes would mix their answers.
        connections.close_all()
        for part in child.parts:
            self._slate.write(part.place, sign=now, failed_rounds=0)
        child.started_at = now
        parent = os.getpid()
        child.pid = os.fork()
        if child.pid == 0:
            die_with_parent()
            if os.getppid() != parent:  # the parent died before this process could request to die with it
                os._exit(1)
            _Process(child, self._slate, self._bell).run()

    def _look(self, child: _Child, now: float) -> None:
        assert child.pid is not None
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        hanging = [p for p in child.parts if now - self._slate.sign(p.place) > p.step.deadline_s]
        if pid == 0 and not hanging:
            return
        if pid == 0:
            silent_s = now - self._slate.sign(hanging[0].place)
            name = hanging[0].step.name
            log.error("Step %s did not move for %.0f s: it is killed and started again.", name, silent_s)
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        else:
            how = os.waitstatus_to_exitcode(status)
            if child.is_on_demand and how == 0:  # it had nothing to do
                self._slate.write(child.parts[0].place, wanted=False)
                child.pid, child.due_at, child.wait_s = None, 0.0, _SHORTEST_WAIT_S
                return
            log.error("Step %s ended (%s): it is started again.", child.name, how)
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


class _Process:
    """A child process: repeats rounds of its parts until SIGTERM, or until it has nothing more to do."""

    def __init__(self, child: _Child, slate: _Slate, parent: _Bell) -> None:
        self.child = child
        self.slate = slate
        self.parent = parent
        self.is_stopping = False

    def run(self) -> None:
        """Run, and never return: a forked child must not continue in its parent's code."""
        code = 1
        try:
            self.bell = _Bell()
            self.bell.listen()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, self._stop)
            # Ctrl-C reaches all processes of the terminal; the parent ends its children in order.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            random.seed()
            with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:  # shown by `ps` and `top`
                name.write(f"watch {self.child.name}")
            if self.child.name == "shared":
                self._run_threads()
            else:
                self._run_alone(self.child.parts[0])
            connections.close_all()
            code = 0
        except BaseException:
            log.exception("Step %s", self.child.name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self.is_stopping = True
        # A killed parent cannot kill a round that hangs, so the kernel ends it after the same time.
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def _run_alone(self, part: _Part) -> None:
        rounds = _Rounds(part, self.slate, self.parent, self._wait)
        step_progress.listen(rounds.progressed)
        rounds.run_one()
        gc.freeze()  # long-lived objects, which the garbage collector need not traverse repeatedly
        while not self.is_stopping and not (self.child.is_on_demand and rounds.is_quiet()):
            rounds.run_one()

    def _wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self.is_stopping and (left_s := ends - time.monotonic()) > 0:
            self.bell.wait(left_s)

    def _run_threads(self) -> None:
        self.stopped = threading.Event()
        checks = [part for part in self.child.parts if part.checks_due]
        threads = [
            threading.Thread(target=self._run_thread, args=(self._run_steps, part), name=part.step.name, daemon=True)
            for part in self.child.parts
            if not part.checks_due
        ]
        if checks:
            threads.append(threading.Thread(target=self._run_thread, args=(self._check_due, *checks), daemon=True))
        for thread in threads:
            thread.start()
        while not self.is_stopping:
            self.bell.wait(None)
        self.stopped.set()
        for thread in threads:
            thread.join()  # as long as `_stop` allows

    def _run_thread(self, run: Callable[..., None], *parts: _Part) -> None:
        try:
            run(*parts)
            connections.close_all()
        except BaseException:
            log.exception("Step %s", parts[0].step.name)
            os._exit(1)

    def _run_steps(self, part: _Part) -> None:
        rounds = _Rounds(part, self.slate, self.parent, self.stopped.wait)
        step_progress.listen(rounds.progressed, of_thread=True)
        while not self.is_stopping:
            rounds.run_one()

    def _check_due(self, *parts: _Part) -> None:
        """Check whether the steps are due whenever the database has changed, and occasionally without a change."""
        checks = [_Rounds(part, self.slate, self.parent, lambda seconds: None) for part in parts]
        version, has_changed, looked_at = None, False, float("-inf")
        while not self.is_stopping:
            try:
                latest = data_version()
            except Exception:  # the checks report it
                connections.close_all()
                latest = None
            # Also once after a change: PostgreSQL's log may be ahead of the commits.
            had_changed, has_changed = has_changed, latest is None or latest != version
            if has_changed or had_changed or time.monotonic() - looked_at > _LOOK_AGAIN_S:
                version, looked_at = latest, time.monotonic()
                for check in checks:
                    check.run_one()
            self.stopped.wait(_SLICE_S if latest is not None else 1)


class _Rounds:
    """Repeated rounds of one part."""

    def __init__(self, part: _Part, slate: _Slate, parent: _Bell, wait: Callable[[float], None]) -> None:
        self.part = part
        self.step = part.step
        self.slate = slate
        self.parent = parent
        self.wait = wait
        self.host = socket.gethostname()
        keeps = self.step.keeps_place
        self.name = f"{self.host}:{os.getppid()}:{part.number}" if keeps else f"{self.host}:{os.getpid()}"
        self.error = ""
        self.failed_rounds = 0  # consecutive
        self.pauses = ReconnectDelay(_SHORTEST_WAIT_S, _LONGEST_WAIT_S, least_s=_SHORTEST_WAIT_S / 2)
        self.is_busy = False
        self.busy_at = time.monotonic()
        self.noted: tuple[float, str] = (float("-inf"), "")
        self.ended_at: float | None = (
            None  # latest progress, in seconds since 1970: a round that did not fail, or a part of one
        )

    def is_quiet(self) -> bool:
        """Return whether a process on demand may end."""
        if self.error or time.monotonic() - self.busy_at < _LINGER_S:
            return False
        return self.step.is_due is None or not self.step.is_due()

    def run_one(self) -> None:
        self._sign()
        try:
            is_busy = self._check_due() if self.part.checks_due else self.step.run(self.name)
        except Exception as error:  # one round must not end the others; it is counted and shown
            self._went_wrong(error)
            return
        if self.failed_rounds:
            log.info("Step %s goes on, after %d rounds that failed.", self.step.name, self.failed_rounds)
        self.error, self.failed_rounds, self.ended_at = "", 0, time.time()
        self.pauses.succeeded()
        if is_busy and self.is_busy and not self.part.checks_due:
            self._start_others()
        self.is_busy = is_busy
        self._note(is_busy)
        self._idle(is_busy)

    def _check_due(self) -> bool:
        assert self.step.is_due is not None
        if not self._is_running() and self.step.is_due():
            self._start_others()
        return False

    def _is_running(self) -> bool:
        """Return whether the step has a process, or will have one in a moment."""
        return any(map(self.slate.is_wanted, self.part.starts))

    def _start_others(self) -> None:
        for place in self.part.starts:
            if not self.slate.is_wanted(place):
                self.slate.write(place, wanted=True)
                self.parent.ring()

    def progressed(self) -> None:
        """Record progress within a round.

        After a failed round only the end of a round counts, because the next may fail too.
        """
        self._sign()
        if not self.error:
            self.ended_at = time.time()
            self._note(True)

    def _sign(self) -> None:
        self.slate.write(self.part.place, sign=time.monotonic())

    def _went_wrong(self, error: Exception) -> None:
        self.failed_rounds += 1
        text = representable(f"{type(error).__name__}: {error}".strip())[:500]
        if text.split("\n")[0] != self.error.split("\n")[0]:  # logged once, however often it occurs
            if isinstance(error, _AWAY):
                log.error("Step %s waits: %s", self.step.name, text.split("\n")[0])
            else:
                log.error("Step %s failed: %s", self.step.name, text, exc_info=error)
        self.error = text
        connections.close_all()  # the next round reconnects
        self._note(False)
        self._sleep(self.pauses.failed())

    def _note(self, is_busy: bool) -> None:
        """Record in Redis that the step makes progress: without a record for long, it is shown as late."""
        self.slate.write(self.part.place, failed_rounds=self.failed_rounds)
        if not self.error and any(self.slate.failed_rounds(place) for place in self.part.beside):
            return  # that process reports on the step
        if self.part.checks_due and self._is_running():
            return
        now = time.monotonic()
        every_s = _NOTE_EVERY_S if is_busy or self.error else _NOTE_QUIET_EVERY_S
        if now - self.noted[0] < every_s and self.noted[1] == self.error:
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
            # A failed round did nothing: `at` is not updated, and the step is shown as late.
            word["at"] = self.ended_at or self._ended_before() or time.time()
            config.store().hset(keys.steps(), self.step.name, json.dumps(word))
        except redis.RedisError as error:
            log.debug("Step %s could not be noted: %s", self.step.name, error)  # its missing progress is reported
            return
        self.noted = (now, self.error)

    def _ended_before(self) -> float | None:
        """Return when the previous process last ended a round."""
        return untrusted.number(untrusted.read_object(config.store().hget(keys.steps(), self.step.name)).get("at"))

    def _idle(self, is_busy: bool) -> None:
        if is_busy:
            self.busy_at = time.monotonic()
        if self.step.every_s is not None:
            now = time.time()
            self._sleep(self.step.every_s - now % self.step.every_s)
        elif not is_busy and self.step.idle_s:
            # While there is activity, check again soon.
            is_active = time.monotonic() - self.busy_at < 2
            self._sleep(min(self.step.idle_s, 0.02) if is_active else self.step.idle_s)

    def _sleep(self, seconds: float) -> None:
        self.slate.write(self.part.place, sign=time.monotonic() + max(seconds, _LOOK_AGAIN_S))
        self.wait(seconds)
