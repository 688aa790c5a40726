"""Durability grade of a queue, as reported by its guarded workers: the messages that a dying worker loses.

Two properties determine it. *When jobs are acknowledged*: late, after they ended, so that the broker redelivers them;
or early, before they run. And *how the broker delivers messages*: on Redis, kombu pops a message with one call and
records that with a second one, so a worker killed in between loses the message, also with late ack
(`docs/failure-modes.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs_admin.fleet.heartbeats import Heartbeat
from jobs_admin.models import Worker
from jobs_admin.models.source import ALIVE_S

LATE, EARLY, MIXED = "late", "early", "mixed"
_WINDOW = "-window"  # suffix of a grade, as stored with a sample of a queue
_HAVE_A_WINDOW = {"redis"}  # transports of kombu


@dataclass(frozen=True, slots=True)
class Grade:
    acks: str = ""  # late, early or mixed; "" if no guarded worker reported it
    has_window: bool = False  # whether a message may be lost between the broker and the worker


@dataclass(frozen=True, slots=True)
class AtStake:
    """Upper limit of the loss if all live guarded workers of a queue were killed at once."""

    workers: int
    running: int | None  # jobs acknowledged before they ran; None: a worker does not report its concurrency
    fetched: int  # messages being delivered at that time


def grade_code(queue: str, guards: Iterable[Heartbeat]) -> str:
    """Return the grade as a code, stored with a sample of the queue; "" if unknown."""
    reporting = [guard for guard in guards if queue in guard.late_ack]
    if not reporting:
        return ""
    acks = {guard.late_ack[queue] for guard in reporting}  # None: this worker does both
    word = MIXED if len(acks) > 1 or None in acks else LATE if True in acks else EARLY
    return word + (_WINDOW if any(guard.broker in _HAVE_A_WINDOW for guard in reporting) else "")


def parse_grade(word: str) -> Grade:
    acks = word.removesuffix(_WINDOW)
    return Grade(acks, acks != word)


def jobs_at_stake(source: str, queue: str, grade: Grade, now: datetime) -> AtStake:
    alive = Worker.objects.filter(source=source, seen_at__gte=now - timedelta(seconds=ALIVE_S))
    slots = [slots for queues, slots in alive.values_list("queues", "concurrency") if queue in queues]
    running = 0 if grade.acks == LATE else None if None in slots else sum(slots)
    return AtStake(len(slots), running, len(slots) if grade.has_window else 0)
