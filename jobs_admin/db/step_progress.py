"""Progress of a long round of a step of `watch`.

A step calls `report` between the parts of its work, outside of transactions. `watch` listens and records it, so that a
round that lasts for minutes is neither shown as late nor killed as hung. Elsewhere (commands, tests) nothing listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def _ignore() -> None:
    pass


_listener: Callable[[], None] = _ignore
_of_thread = threading.local()


def listen(listener: Callable[[], None], *, of_thread: bool = False) -> None:
    """Call this at each report of this process, or only of this thread."""
    global _listener
    if of_thread:
        _of_thread.listener = listener
    else:
        _listener = listener


def report() -> None:
    """Report that a part of the work is done."""
    getattr(_of_thread, "listener", _listener)()
