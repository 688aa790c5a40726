"""Workers under a supervisor, killed at moments and in ways that a seed decides: the same for whoever is tried on it.

A *worker* is killed whole (main process and children in one signal to its group); or its *main* process alone, as the kernel's OOM
killer does, and the orphans live on for a moment; or a *child*. The supervisor starts what died a moment later, under its old name.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.rigs import journal_jobs

ROOT = Path(__file__).resolve().parents[2]
WORKER, MAIN, CHILD = "worker", "main", "child"
WAYS = (WORKER, MAIN, CHILD, CHILD)  # as often a child as a main process
_ORPHANS_S = 1.5  # how long they live at most


@dataclass(frozen=True, slots=True)
class Kill:
    after: int  # starts of jobs
    way: str
    worker: int
    child: float  # which of the children, as a share
    pause_s: float  # from that start to the kill
    orphans_s: float
    is_hung: bool  # whether the store hangs meanwhile, so that reports go to the spool


def plan(seed: int, kills: int, jobs: int, workers: int, *, hung_each: int = 5) -> list[Kill]:
    """In order of time; every fifth while the store hangs."""
    draw = random.Random(seed)
    moments = sorted(draw.randrange(jobs // 50, max(jobs // 50 + 1, jobs * 19 // 20)) for _ in range(kills))
    return [
        Kill(after, draw.choice(WAYS), draw.randrange(workers), draw.random(), draw.uniform(0, 0.2),
             draw.uniform(0, _ORPHANS_S), bool(hung_each) and n % hung_each == hung_each - 1)
        for n, after in enumerate(moments)
    ]  # fmt: skip


class Fleet:
    """Started on entering; none of its processes is left on leaving."""

    def __init__(self, count: int, children: int, environment: dict[str, str], folder: Path) -> None:
        self.killed: Counter[str] = Counter()
        self._children = children
        self._environment = environment
        self._count = count
        self._log = (folder / "workers.log").open("ab")
        self._lines = folder / "lines"
        self._workers: list[subprocess.Popen[bytes]] = []
        self._reap_at: dict[int, float] = {}  # worker -> when its orphans go, and it is started again

    def __enter__(self) -> Fleet:
        self._workers = [self._start(n) for n in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._log.close()

    def _start(self, n: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            journal_jobs.worker_command(f"w{n}", self._children),
            cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log, process_group=0,
        )  # fmt: skip

    def restart_dead(self) -> None:
        for n, worker in enumerate(self._workers):
            if worker.poll() is not None and time.monotonic() >= self._reap_at.get(n, 0.0):
                _end(worker)
                self._workers[n] = self._start(n)

    def stop(self, patience_s: float = 30.0) -> None:
        """Warm: what runs ends, spools are shipped, the last counts are reported."""
        for worker in self._workers:
            worker.terminate()
        ends = time.monotonic() + patience_s
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.1, ends - time.monotonic()))

    def kill(self, kill: Kill) -> bool:
        """Return whether there was a person to kill: a worker that was just killed has not begun again."""
        worker = self._workers[kill.worker]
        if worker.poll() is not None:
            return False
        children = _children(worker.pid)
        if kill.way == CHILD:
            if not children:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(children[int(kill.child * len(children))], signal.SIGKILL)
        elif kill.way == MAIN:
            self._reap_at[kill.worker] = time.monotonic() + kill.orphans_s
            worker.kill()
        else:
            _end(worker)
        self.killed[kill.way] += 1
        return True

    def starts(self) -> int:
        """The number of started jobs, by their lines; about, which is enough to choose a moment by."""
        return sum(file.stat().st_size for file in os.scandir(self._lines)) // 72

    def written_bytes(self) -> int:
        """Bytes: another number for whoever goes on."""
        return sum(file.stat().st_size for file in os.scandir(self._lines))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _end(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def until(fleet: Fleet, reached: Callable[[], bool], within_s: float) -> bool:
    """Return whether it was reached in time; who dies is started again meanwhile."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        fleet.restart_dead()
        if reached():
            return True
        time.sleep(0.02)
    return False
