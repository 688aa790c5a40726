"""A job that may end its worker starts when nothing else runs there: what it does alone, it alone is to blame for.

The main process hands jobs to the pool; while one of them is to run alone it keeps the others back, as it does when the
pool is busy. A job that is kept back has not begun: no time limit runs, and it is not acknowledged early.
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

# For those that run already, after one death that it shared; after each more, four times as long. Then it runs beside them,
# and is convicted of nothing: so one job that takes hours does not hold up a worker for another that is only suspected,
# and one that takes minutes does not save a pill for ever.
PATIENCE_S = 30.0
MOST_PATIENCE_S = 3600.0

Go = Callable[[], Any]

logger = logging.getLogger("redrive.worker")


class Gate:
    """Between a worker's requests and its pool. May be called from any thread of the main process."""

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Any], free_place: Callable[[], object] = lambda: None
    ) -> None:
        """`free_place`: gives back the place in the pool of a request that was kept back, and then did not begin."""
        self._call_later = call_later
        self._free_place = free_place
        self._lock = threading.RLock()
        self._running: dict[int, Go] = {}  # id of the request -> how it was handed to the pool
        self._suspects: deque[Any] = deque()  # requests that wait to be alone
        self._ways: dict[int, Go] = {}  # of those
        self._alone: int | None = None  # the one that is
        self._kept_back: deque[tuple[int, Go]] = deque()

    def enters(self, request: Any, go: Go) -> bool:
        """Return whether the request goes to the pool now. If not, it does as soon as it may."""
        # Only we say that a job is alone: a message that says so took it over from another job's headers, or was forged.
        request._request_dict.pop(ALONE, None)
        with self._lock:
            if self._suspects or self._alone is not None:
                self._kept_back.append((id(request), go))
                return False
            self._running[id(request)] = go
            return True

    def release(self, request: Any) -> None:
        """The request has ended, or never began."""
        with self._lock:
            self._running.pop(id(request), None)
            if self._alone == id(request):
                self._alone = None
            if not self._suspects and not self._kept_back:
                return  # as nearly always: nobody waits
        self._turn()

    def takes_back(self, request: Any, exc_info: Any) -> bool:
        """Return whether that was no end: the request is to run alone, and will."""
        if not wants_to_be_alone(exc_info):
            return False
        with self._lock:
            way = self._running.pop(id(request), None)
            if way is None:
                return False
            # It runs nowhere: a wish to terminate it must not hit what its process does next.
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
        """Let those in whose turn it is."""
        with self._lock:
            if self._alone is not None or (self._suspects and self._running):
                return
            holds_place = not self._suspects  # a suspect's was freed when it made way
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
            if self._alone is not None:  # beside that one neither would be alone
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
            if holds_place:  # as Celery does where it learns of it at once
                self._free_place()
        except Exception:  # it must not end the job that made way for this one; its message comes back
            logger.exception("Redrive could not hand a job to the pool that it had kept back.")


def wants_to_be_alone(exc_info: Any) -> bool:
    return is_a(raised(exc_info), RunAlone)
