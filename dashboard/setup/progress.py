"""Progress of long work on a terminal: a line at most every five seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 5.0


class Progress:
    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._next = time.monotonic() + _EVERY_S

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Report `done` bytes, of `total` if known."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        self._write(f"{what}: {format_bytes(done)}" + (f" of {format_bytes(total)}" if total else ""))


def format_bytes(count: int) -> str:
    if count < 10**6:
        return f"{max(count, 1000) / 1e3:,.0f} kB" if count else "0 kB"
    return f"{count / 1e6:,.0f} MB" if count < 10**10 else f"{count / 1e9:,.1f} GB"
