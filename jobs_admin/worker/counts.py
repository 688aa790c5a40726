"""Outcomes of a worker's jobs, per queue, counted in memory: no call for a job that went well."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field

# The heartbeat tells them all, every five seconds; and where a queue is only guessed, its name may be anything.
MOST = 500
OTHERS = "(others)"


@dataclass(slots=True)
class QueueCount:
    """Since this worker started."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    busy_s: float = 0.0
    late_ack: set[bool] = field(default_factory=set)  # how its jobs were acknowledged


class Counts:
    """Cumulative, so that a heartbeat which gets lost loses nothing. Of `MOST` queues; the others are counted as one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # thread pools end jobs in many threads
        self._queues: dict[str, QueueCount] = {}

    def started(self, queue: str, *, late_ack: bool) -> None:
        with self._lock:
            count = self._count_of(queue)
            count.started += 1
            count.late_ack.add(late_ack)

    def put_off(self, queue: str) -> None:
        """Take back a job that was counted as started and did not begin: it waits, or makes way, and starts again
        later.
        """
        with self._lock:
            self._count_of(queue).started -= 1

    def ended(self, queue: str, outcome: str, duration: float | None) -> None:
        """`outcome`: succeeded, failed, retried, or "" for one that is none of them (ignored, terminated)."""
        with self._lock:
            count = self._count_of(queue)
            count.busy_s += duration or 0.0
            if outcome == "succeeded":
                count.succeeded += 1
            elif outcome == "failed":
                count.failed += 1
            elif outcome == "retried":
                count.retried += 1

    def snapshot(self) -> dict[str, dict[str, float]]:
        with self._lock:
            counts = {queue: asdict(count) for queue, count in self._queues.items()}
        for count in counts.values():
            count["busy_s"] = round(count["busy_s"], 3)
            del count["late_ack"]
        return counts

    def late_ack(self, queue: str, configured: set[bool]) -> bool | None:
        """Return whether the jobs of a queue are acknowledged late; None where they differ.

        Known from those that ran; `configured` is what the app's tasks say, for a queue on which none did.
        """
        with self._lock:
            counted = self._queues.get(queue)
            seen = counted.late_ack if counted and counted.late_ack else configured
            return next(iter(seen)) if len(seen) == 1 else None

    def _count_of(self, queue: str) -> QueueCount:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues.setdefault(queue if len(self._queues) < MOST else OTHERS, QueueCount())
        return found
