"""Gate for suspected poison pills: a job that may crash its worker runs alone there, so no other job can be blamed.

The main process hands jobs to the pool. While a job must run alone, the gate holds others back, as a busy pool would. A
job held back has not started: no time limit runs, and it is not acknowledged early.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.exceptions import TaskRevokedError

from jobs_admin.worker.at_start import ALONE, RunAlone
from jobs_admin.worker.outcome import is_a, raised

# Wait for running jobs to end, after one shared death; four times as long after each more, up to `MOST_PATIENCE_S`.
# After it, the job runs beside them and cannot be convicted. So one job that takes hours does not block a worker for a
# mere suspect, and one that takes minutes does not shield a poison pill forever.
PATIENCE_S = 30.0
MOST_PATIENCE_S = 3600.0

Go = Callable[[], Any]

logger = logging.getLogger("redrive.worker")


class Gate:
    """Gate between a worker's requests and its pool. Thread-safe in the main process."""

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Any], free_place: Callable[[], object] = lambda: None
    ) -> None:
        """`free_place`: frees the pool slot of a request that was held back and then did not start."""
        self._call_later = call_later
        self._free_place = free_place
        self._lock = threading.RLock()
        self._running: dict[int, Go] = {}  # id of the request -> function that hands it to the pool
        self._suspects: deque[Any] = deque()  # requests waiting to run alone
        self._ways: dict[int, Go] = {}  # the same for suspects
        self._alone: int | None = None  # id of the request that runs alone
        self._kept_back: deque[tuple[int, Go]] = deque()

    def enters(self, request: Any, go: Go) -> bool:
        """Return whether the request goes to the pool now. If not, it goes as soon as possible."""
        # Only the gate sets this key: in a message, it was copied from another job's headers or forged.
        request._request_dict.pop(ALONE, None)
        with self._lock:
            if self._suspects or self._alone is not None:
                self._kept_back.append((id(request), go))
                return False
            self._running[id(request)] = go
            return True

    def release(self, request: Any) -> None:
        """Note that the request ended or never started."""
        with self._lock:
            self._running.pop(id(request), None)
            if self._alone == id(request):
                self._alone = None
            if not self._suspects and not self._kept_back:
                return  # the usual case: none waits
        self._turn()

    def takes_back(self, request: Any, exc_info: Any) -> bool:
        """Return whether the request did not end but must run alone, and will."""
        if not wants_to_be_alone(exc_info):
            return False
        with self._lock:
            way = self._running.pop(id(request), None)
            if way is None:
                return False
            # It runs nowhere now: a termination request must not hit its process's next job.
            request.time_start = request.worker_pid = request._apply_result = None
            self._suspects.append(request)
            self._ways[id(request)] = way
        deaths = raised(exc_info).deaths
        self._wait(request, min(MOST_PATIENCE_S, PATIENCE_S * 4 ** min(deaths - 1, 9)))
        self._turn()
        return True

    def _wait(self, request: Any, seconds: float) -> None:
        self._call_later(seconds, lambda: self._is_too_long(request, seconds))

    def _turn(self) -> None:
        """Start the requests whose turn it is."""
        with self._lock:
            if self._alone is not None or (self._suspects and self._running):
                return
            holds_place = not self._suspects  # a suspect's slot was freed when it stepped back
            if self._suspects:
                request = self._suspects.popleft()
                self._alone = id(request)
                going = [self._begin(request, "alone")]
            else:
                going = list(self._kept_back)
                self._kept_back.clear()
            self._running.update(going)
        for _, go in going:
            self._hand_over(go, holds_place=holds_place)

    def _begin(self, request: Any, how: str) -> tuple[int, Go]:
        request._request_dict = {**request._request_dict, ALONE: how}
        return id(request), self._ways.pop(id(request))

    def _is_too_long(self, request: Any, seconds: float) -> None:
        with self._lock:
            if request not in self._suspects:
                return
            if self._alone is not None:  # neither would run alone beside that one
                self._wait(request, seconds)
                return
            self._suspects.remove(request)
            number, go = self._begin(request, "beside")
            self._running[number] = go
        self._hand_over(go, holds_place=False)
        self._turn()

    def _hand_over(self, go: Go, *, holds_place: bool) -> None:
        try:
            go()
        except TaskRevokedError:
            if holds_place:  # as Celery does when it finds a revoked task
                self._free_place()
        except Exception:  # must not end the job that made way for this one; the broker redelivers its message
            logger.exception("Redrive could not hand a job to the pool that it had kept back.")


def wants_to_be_alone(exc_info: Any) -> bool:
    return is_a(raised(exc_info), RunAlone)
