"""The queue in which each task runs, learned from stored results and from producers' events."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

_MOST_TASKS = 2_000
_MOST_QUEUES = 5  # of one task
_MOVED_S = 600.0  # a task that was not seen in a queue for so long has left it
_LEARN_EVERY_S = 60.0


@dataclass(slots=True)
class TaskQueues:
    """Tasks and the queues in which they were seen, each with its latest time. `now` is in seconds since 1970."""

    _seen: OrderedDict[str, dict[str, float]] = field(default_factory=OrderedDict)
    _requested_at: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def add(self, task: str, queue: str, now: float) -> None:
        queues = self._seen.setdefault(task, {})
        queues[queue] = now
        if len(queues) > _MOST_QUEUES:
            del queues[min(queues, key=queues.__getitem__)]
        _bound(self._seen, task)

    def get(self, task: str, now: float) -> str:
        """Return the only queue of a task; "" where it is unknown or there are several."""
        queues = self._seen.get(task, {})
        latest = max(queues.values(), default=now)
        current = [queue for queue, at in queues.items() if latest - at < _MOVED_S]
        return current[0] if len(current) == 1 else ""

    def is_to_be_learned(self, task: str, now: float) -> bool:
        """Return whether a result of this task should be read; True at most once a minute."""
        if 0 <= now - self._requested_at.get(task, float("-inf")) < _LEARN_EVERY_S:
            return False
        self._requested_at[task] = now
        _bound(self._requested_at, task)
        return True


def _bound(among: OrderedDict[str, Any], task: str) -> None:
    among.move_to_end(task)
    if len(among) > _MOST_TASKS:
        among.popitem(last=False)
