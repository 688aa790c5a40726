"""Search for jobs without a message in Dramatiq, in bounded parts: a queue may have millions of messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs_admin.sources.dramatiq.delayed import Delayed
from jobs_admin.sources.dramatiq.wire import Wire

_PAGES = 40  # per check, half a megabyte each
_APART_S = 5.0  # minimum between the two searches that miss a job
_REMEMBERED = 20_000
# A message is always in one of these hashes, and may move to the next during a search, so they are read in the order of
# its moves, and the first hash twice. Dead letters are read last.
_WAY = (".DQ.msgs", ".msgs", ".DQ.msgs")


@dataclass(slots=True)
class _Search:
    jobs: Mapping[str, str]
    since_ms: float  # earliest time of death to read
    began: float = field(default_factory=time.monotonic)
    found: set[str] = field(default_factory=set)
    stage: int = 0
    cursor: int = 0  # of the stage; for dead letters: number already read of the time `since_ms`


@dataclass(slots=True)
class _Missed:
    """A job that a search did not find."""

    mark: str
    began: float  # start of the search
    is_absent: bool = False  # a second search did not find it either


class Absences:
    """Searches of one source. For one thread."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._running: dict[str, _Search] = {}
        self._missed: dict[tuple[str, str], _Missed] = {}
        self._pages = 0

    def begin(self) -> None:
        self._pages = _PAGES

    def find(self, queue: str, jobs: Mapping[str, str], since_ms: float, delayed: Delayed) -> set[str]:
        """Return the jobs for which two searches, and the rounds of retries in between, found no message.

        `jobs`: id -> mark of the sending or retry. `since_ms`: earliest time at which one of the jobs can have died.
        """
        search = self._running.get(queue)
        if search is None and (
            wanted := {one: mark for one, mark in jobs.items() if self._is_wanted(queue, one, mark)}
        ):
            search = self._running[queue] = _Search(wanted, since_ms)
        if search is not None and self._is_complete(queue, search):
            del self._running[queue]
            self._note(queue, search, delayed)
        return {one for one, mark in jobs.items() if (last := self._get(queue, one, mark)) and last.is_absent}

    def _get(self, queue: str, job_id: str, mark: str) -> _Missed | None:
        last = self._missed.get((queue, job_id))
        return last if last and last.mark == mark else None

    def _is_wanted(self, queue: str, job_id: str, mark: str) -> bool:
        last = self._get(queue, job_id, mark)
        return last is None or (not last.is_absent and time.monotonic() >= last.began + _APART_S)

    def _is_complete(self, queue: str, search: _Search) -> bool:
        """Continue a search within bounds. Return whether it is complete."""
        while self._pages > 0:
            self._pages -= 1
            rest = [one for one in search.jobs if one not in search.found]
            if not rest:
                return True
            if search.stage < len(_WAY):
                search.cursor, met = self._wire.search(queue, _WAY[search.stage], search.cursor, rest)
                search.stage += not search.cursor
                is_more = True
            else:
                page = self._wire.search_dead(queue, search.since_ms, search.cursor, rest)
                search.since_ms, search.cursor, met, is_more = page
            search.found |= met
            if not is_more:
                return True
        return False

    def _note(self, queue: str, search: _Search, delayed: Delayed) -> None:
        if len(self._missed) > _REMEMBERED:
            self._missed = {}
        for job_id, mark in search.jobs.items():
            last = self._get(queue, job_id, mark)
            if job_id in search.found:
                self._missed.pop((queue, job_id), None)
            elif last is None or delayed.met_at(queue, job_id) >= last.began:
                self._missed[queue, job_id] = _Missed(mark, search.began)
            elif search.began >= last.began + _APART_S:
                last.is_absent = True
