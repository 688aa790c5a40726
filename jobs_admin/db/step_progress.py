"""Progress of a long round of a step of `watch`.

A step calls `report` between the parts of its work, outside of transactions. `watch` listens and notes it, so that a round
that lasts for minutes is neither shown as late nor ended as hung. Elsewhere (commands, tests) nothing listens.
"""

from __future__ import annotations

from collections.abc import Callable


def _ignore() -> None:
    pass


_listener: Callable[[], None] = _ignore


def listen(listener: Callable[[], None]) -> None:
    """Call this at each report of this process."""
    global _listener
    _listener = listener


def report() -> None:
    """Report that a part of the work is done."""
    _listener()
