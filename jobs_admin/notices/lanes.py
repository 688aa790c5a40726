"""Many endpoints asked at once, each in a thread of its own: one that hangs keeps only itself waiting.

The threads touch no table: what came back is handed to whoever began them.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")

log = logging.getLogger(__name__)


class Lanes(Generic[T, A]):
    """One question at a time for each key, at most `most` keys at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: set[int] = set()
        self._ended: queue.SimpleQueue[tuple[int, T, A | Exception]] = queue.SimpleQueue()
        self._given_back: list[tuple[T, A | Exception]] = []
        self.pid = os.getpid()  # threads do not live on in a fork

    @property
    def busy(self) -> frozenset[int]:
        return frozenset(self._busy)

    @property
    def has_room(self) -> bool:
        return len(self._busy) < self._most

    def start(self, key: int, about: T, call: Callable[[], A]) -> None:
        assert key not in self._busy

        def run() -> None:
            try:
                answer: A | Exception = call()
            except Exception as error:  # one question must not take the others with it; it is told as its answer
                log.exception("A question of lane %s failed.", key)
                answer = error
            self._ended.put((key, about, answer))

        self._busy.add(key)
        try:
            threading.Thread(target=run, name=f"lane {key}", daemon=True).start()
        except RuntimeError as error:  # no thread to be had
            self._ended.put((key, about, error))

    def give_back(self, these: list[tuple[T, A | Exception]]) -> None:
        """Return results that could not be recorded now: the next `ended` returns them first."""
        self._given_back += these

    def ended(self, wait_s: float = 0.0) -> list[tuple[T, A | Exception]]:
        """Return the results since the last call. If there is none and a call is in flight, wait up to `wait_s` for the
        first.
        """
        found, self._given_back = self._given_back, []
        while True:
            try:
                may_wait = wait_s > 0 and not found and bool(self._busy)
                key, about, answer = self._ended.get(block=may_wait, timeout=wait_s if may_wait else None)
            except queue.Empty:
                return found
            self._busy.discard(key)
            found.append((about, answer))
