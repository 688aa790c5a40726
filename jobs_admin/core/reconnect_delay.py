"""The delay before the next try to reach a server that is away."""

from __future__ import annotations

import random
from collections.abc import Callable


class ReconnectDelay:
    """Each pause is drawn from everything up to twice as much as before, and never more than `most_s`; a success resets
    it.

    The draw takes the complete range, since those who wait lost the same server at the same moment: a small jitter
    would have them back in a small moment, too (*full jitter*, Marc Brooker, AWS Architecture Blog, March 2015).
    """

    def __init__(
        self, first_s: float, most_s: float, least_s: float = 0.0, draw: Callable[[], float] = random.random
    ) -> None:
        """Seconds: the longest first pause, the longest of all, the shortest of all. `draw`: from 0 up to, not including, 1."""
        self._first_s = first_s
        self._most_s = most_s
        self._least_s = least_s
        self._draw = draw
        self._failed = 0  # in a row

    def failed(self) -> float:
        """The seconds to wait now."""
        longest = min(self._most_s, self._first_s * 2.0 ** min(self._failed, 60))
        self._failed += 1
        return self._least_s + max(0.0, longest - self._least_s) * self._draw()

    def succeeded(self) -> None:
        self._failed = 0
