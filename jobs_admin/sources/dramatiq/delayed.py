"""Jobs that wait for a retry: messages of the delay queues, read page by page in repeated rounds.

Dramatiq stores no index by time, and a worker fetches thousands of them ahead: so every round reads all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs_admin.core.envelope import Lineage
from jobs_admin.sources.dramatiq.message import Message
from jobs_admin.sources.dramatiq.wire import StoredMessage, Wire

_TURN_MS = 1_000  # between two turns
_TURN_BYTES = 2_000_000
_TURN_MESSAGES = 5_000
_REMEMBERED = 200_000


@dataclass(frozen=True, slots=True)
class Retry:
    """The last known retry of a job."""

    round: int  # latest round that found it
    met_at: float  # monotonic
    attempt: int  # the failed one
    actor: str
    lineage: Lineage | None


class Delayed:
    """Delayed messages of one source, as far as this process has read them."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._retries: dict[tuple[str, str], Retry] = {}
        self._round = 0
        self._rest: list[str] | None = None  # queues of this round still to read; None: the round has not begun
        self._queue = ""  # queue that was read last
        self._cursor = 0
        self._turned_ms = 0

    @property
    def is_first_round(self) -> bool:
        return self._round == 0

    def take_turn(self, now_ms: int) -> list[StoredMessage]:
        """Read some pages within bounds. Return their messages that wait for a retry."""
        if self._round and now_ms - self._turned_ms < _TURN_MS:
            return []
        self._turned_ms = now_ms
        found: list[StoredMessage] = []
        bytes_left, left = _TURN_BYTES, _TURN_MESSAGES
        while bytes_left > 0 and left > 0:
            if not self._cursor:
                if self._rest is None:
                    self._rest = self._wire.delayed_queues()
                if not self._rest:
                    self._end_round()
                    break
                self._queue = self._rest.pop(0)
            self._cursor, size, page = self._wire.scan_delayed(self._queue, self._cursor, bytes_left, left)
            bytes_left, left = bytes_left - size, left - len(page) - 1
            found += self._note(page)
        return found

    def _note(self, page: Sequence[tuple[str, bytes]]) -> Iterator[StoredMessage]:
        for name, raw in page:
            message = Message.read(raw)
            failed_ms = message.failed_ms
            if message.id and message.retries and failed_ms is not None:
                key = self._queue, message.id
                self._retries[key] = Retry(
                    self._round, time.monotonic(), message.retries, message.actor, message.lineage
                )
                yield StoredMessage(self._queue, name, failed_ms, len(raw), message)

    def _end_round(self) -> None:
        self._round += 1
        self._rest = None
        if len(self._retries) > _REMEMBERED:
            self._retries = {key: one for key, one in self._retries.items() if one.round == self._round - 1}

    def met_at(self, queue: str, job_id: str) -> float:
        found = self._retries.get((queue, job_id))
        return found.met_at if found else float("-inf")

    def find_left(self, queue: str, job_id: str) -> tuple[bool, Retry | None]:
        """Return whether two rounds found no retry of a job, and its last known retry."""
        found = self._retries.get((queue, job_id))
        return self._round >= 2 and (found is None or found.round < self._round - 1), found
