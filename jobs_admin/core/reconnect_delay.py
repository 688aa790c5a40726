"""Delay before the next attempt to reach an unavailable server."""

from __future__ import annotations

import random
from collections.abc import Callable


class ReconnectDelay:
    """Exponential backoff with full jitter: the limit doubles with each failure up to `most_s`; a success resets it.

    Each pause is drawn from the full range, because all waiting clients lost the server at the same moment: with a
    small jitter they would also return almost together (*full jitter*, Marc Brooker, AWS Architecture Blog, March
    2015).
    """

    def __init__(
        self, first_s: float, most_s: float, least_s: float = 0.0, draw: Callable[[], float] = random.random
    ) -> None:
        """Seconds: limit of the first pause, limit of all pauses, minimum. `draw` returns a number in [0, 1)."""
        self._first_s = first_s
        self._most_s = most_s
        self._least_s = least_s
        self._draw = draw
        self._failed = 0  # consecutive failures

    def failed(self) -> float:
        """Count a failure. Return the seconds to wait."""
        longest = min(self._most_s, self._first_s * 2.0 ** min(self._failed, 60))
        self._failed += 1
        return self._least_s + max(0.0, longest - self._least_s) * self._draw()

    def succeeded(self) -> None:
        self._failed = 0
