"""Budgets: limits of retries per minute, each shared by all workers of a source and all policies that name it.

If the store does not answer in time, each worker uses its share: the budget divided by the number of live workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import mmap
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs_admin.core import keys
from jobs_admin.core.policy import Budget
from jobs_admin.worker.calls import Calls, Script
from jobs_admin.worker.tally import Tally

SCRIPT = Script((Path(__file__).parent / "budget.lua").read_text())
EXPIRY_MS = 8 * 86_400_000  # minimum, extended until the bucket is full again


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of one source. Any window of W seconds grants at most burst + per_minute × W / 60 retries."""

    calls: Calls
    source: str

    def spend(self, name: str, per_minute: float, burst: int) -> bool | None:
        """Spend one retry if the budget allows it, and return whether it did. None: the store did not answer."""
        answer = self.calls.run(SCRIPT, [keys.budget(self.source)], arguments(name, per_minute, burst, spent=1))
        return None if answer is None else bool(answer[0])


def arguments(name: str, per_minute: float, burst: int, *, spent: int = 0) -> list[str | int]:
    """Return the arguments of the script; it answers [granted, left]. `spent` 0: read only."""
    # Rounded up: a slightly longer interval never grants one retry too many.
    interval = math.ceil(60_000_000 / per_minute) if per_minute > 0 else 0
    return [name, interval, burst, spent, EXPIRY_MS]


@dataclass(frozen=True, slots=True)
class Grant:
    """Answer to a retry: whether it is granted, and how many seconds it must wait in addition to the policy's delay."""

    is_granted: bool
    wait_s: float = 0.0
    is_of_share: bool = False  # taken from a share because the store did not answer


GRANTED, REFUSED = Grant(True), Grant(False)
LONGEST_TURN_S = 3_600.0  # a retry with a longer wait is refused, as is one above the budget
_PLACES = 256  # budgets; beyond this number some share a slot, which slows them down
_PLACE = struct.Struct("=8sd")  # the budget, and when its share is full again (monotonic)
_LOCK_S = 0.02


class Shares:
    """One worker's shares of the budgets, used while the store does not answer.

    Created before the pool forks; shared with its children.

    A share is the budget's rate and burst divided by the number of live workers. Unlike the budget, it refuses no retry
    whose turn comes within an hour: a slow store makes no job dead. In any window of W seconds, all workers together
    grant at most burst + per_minute × W / 60 retries from their shares, plus one each, in addition to what the store
    granted before.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 + _PLACES * _PLACE.size)
        self._tally = Tally()
        self._threads = threading.Lock()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (of the worker's life; its lock ends with the process that has it)
        self.live_workers = 1

    @property
    def live_workers(self) -> int:
        """Live workers of the source, by the store's latest answer."""
        return int(struct.unpack_from("=q", self._memory)[0])

    @live_workers.setter
    def live_workers(self, count: int) -> None:
        struct.pack_into("=q", self._memory, 0, max(1, count))

    @property
    def granted(self) -> int:
        """Retries that this worker granted from its shares."""
        return self._tally.total

    def take(self, name: str, budget: Budget, now: float | None = None) -> Grant:
        """Take the next turn. `now`: monotonic seconds, the same for all processes of a host."""
        if not budget.per_minute:
            return REFUSED
        now = time.monotonic() if now is None else now
        live = self.live_workers
        turn_s = 60 / budget.per_minute * live
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8]
        with self._locked():
            at, full_at = self._place(digest)
            full_at = max(full_at, now) + turn_s
            wait_s = max(0.0, full_at - now - turn_s * budget.burst / live)
            if wait_s > LONGEST_TURN_S:
                return REFUSED
            _PLACE.pack_into(self._memory, at, digest, full_at)
        self._tally.add()
        return Grant(True, wait_s, is_of_share=True)

    def _place(self, digest: bytes) -> tuple[int, float]:
        """Return a budget's offset in memory, and when its share is full again."""
        first = int.from_bytes(digest, "big") % _PLACES
        for n in range(_PLACES):
            at = 8 + (first + n) % _PLACES * _PLACE.size
            known, full_at = _PLACE.unpack_from(self._memory, at)
            if known in (digest, bytes(8)):
                return at, full_at
        return 8 + first * _PLACE.size, _PLACE.unpack_from(self._memory, 8 + first * _PLACE.size)[1]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock for a few milliseconds at most: a stopped process must not block others.

        On timeout, a turn may be taken twice.
        """
        ends = time.monotonic() + _LOCK_S
        has_thread = self._threads.acquire(timeout=_LOCK_S)
        has_file = False
        try:
            while not has_file and time.monotonic() < ends:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    has_file = True
                    break
                time.sleep(0.0005)
            yield
        finally:
            if has_file:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_UN)
            if has_thread:
                self._threads.release()
