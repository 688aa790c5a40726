"""Jobs that wait for a retry, read in repeated rounds: Sidekiq sorts them by due time, not by failure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from redis.exceptions import ResponseError

from jobs_admin.sources.sidekiq.wire import StoredJob, Wire, is_other_type

_TURN_MS = 1_000  # between two turns
_TURN_JOBS = 2_000
_REMEMBERED = 200_000
_REQUESTED_WITHIN_S = 3_600.0
APART_S = 20.0  # between two searches that miss a job: longer than between two heartbeats


@dataclass(slots=True)
class _Missed:
    round: int
    at: float  # monotonic; then the time of a search that did not find it
    is_searched: bool = False
    requested_at: float = 0.0


class Retries:
    """Retries of one source, as far as this process has read them. For one thread."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.due: dict[str, float] = {}  # job -> its score, as of this round and the previous one
        self._met: dict[str, float] = {}  # the same of this round
        self._missed: dict[str, _Missed] = {}
        self._round = 0
        self._place = (float("-inf"), 0)  # last score of this round, and number of jobs read of it
        self._turned_ms = 0
        self._pruned_at = time.monotonic()

    @property
    def is_first_round(self) -> bool:
        return self._round == 0

    def take_turn(self, now_ms: int) -> list[StoredJob]:
        """Read some jobs within bounds."""
        if self._round and now_ms - self._turned_ms < _TURN_MS:
            return []
        self._turned_ms = now_ms
        least, read = self._place
        try:
            found, is_more = self._wire.page("retry", least, read, _TURN_JOBS)
        except ResponseError as error:
            if not is_other_type(error):
                raise
            found, is_more = [], False
        for one in found:
            self._missed.pop(one.job.id, None)
            if len(self._met) < _REMEMBERED:
                self.due[one.job.id] = self._met[one.job.id] = one.score
        if found:
            last = found[-1].score
            same = sum(1 for one in found if one.score == last)
            self._place = (last, same + (read if last == least else 0))
        if not is_more:
            self._round, self._place = self._round + 1, (float("-inf"), 0)
            self.due, self._met = self._met, {}
        return [one for one in found if self._wire.is_read(one.job.queue)]

    def note_missed(self, jobs: Mapping[str, str]) -> set[str]:
        """Record jobs (id -> queue) that are not retries now. Return those that are nowhere in Sidekiq: a complete
        round did not meet them, and two searches of their queue and of what processes run.
        """
        now = time.monotonic()
        self._prune(now)
        missed = {one: self._missed.setdefault(one, _Missed(self._round, now)) for one in jobs}
        for last in missed.values():
            last.requested_at = now
        due = [one for one, last in missed.items() if now - last.at >= APART_S and self._round >= last.round + 2]
        if not due:
            return set()
        nowhere = set(due) - self._wire.find_running(due)
        for queue in {jobs[one] for one in nowhere}:
            mine = [one for one in nowhere if jobs[one] == queue]
            waiting = self._wire.search_queue(queue, mine)
            nowhere -= set(mine) if waiting is None else waiting
        nowhere -= self._wire.find_running(due)
        gone = {one for one in nowhere if self._missed[one].is_searched}
        for one in due:
            if one in gone:
                del self._missed[one]
                self.due.pop(one, None)
            else:
                self._missed[one] = _Missed(self._round, now, one in nowhere, now)
        return gone

    def _prune(self, now: float) -> None:
        """Drop jobs that are no longer requested: they died."""
        if now - self._pruned_at >= _REQUESTED_WITHIN_S:
            self._pruned_at = now
            recent = {job: one for job, one in self._missed.items() if now - one.requested_at < _REQUESTED_WITHIN_S}
            self._missed = recent
