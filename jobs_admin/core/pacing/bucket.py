"""The number of jobs that may go now: the bound on sending that holds whatever happened before.

Pure: a clock's reading in seconds is passed in, and nothing here sleeps.
"""

from __future__ import annotations

from random import Random


class Bucket:
    """The number of jobs that may go now. In any one second at most 1.05 × the rate + 3, whatever happened before.

    Two buckets in one. The long one keeps the promised rate: what a short stall (under a second) held back is owed. The
    short one keeps the bound while that debt is paid: it fills hardly faster than the rate and holds what 24 ms let
    through, so neither a stall nor a pause is ever followed by a bunch. Nor is a call to the queue that takes long,
    where `delayed` reports it: 1.015 of the rate, 24 ms that are held and 10 ms that a call may take are 1.049.
    """

    _FORGIVEN_S = 1.0
    _FASTER = 1.015
    _BURST_S = 0.024
    _CALL_S = 0.01

    def __init__(self, rate: float | None, now: float, jitter: float = 0.0, random: Random | None = None) -> None:
        """`rate` in jobs per second, None without bound; `now` in seconds on any clock that does not jump.

        With `jitter` (0 to 1) each job goes at a random moment within that share of its own gap: later, never earlier,
        than it would without, and the rate stays what it is.
        """
        self._rate = rate
        self._at = now
        self._jitter = jitter
        self._owed, self._ready = 1.0, 1.0 + jitter
        self._random = random or Random()
        self._late = self._draw()

    @property
    def rate(self) -> float | None:
        return self._rate

    @property
    def jitter(self) -> float:
        return self._jitter

    def change(self, rate: float | None, now: float, jitter: float | None = None) -> None:
        """Go on at another rate, and with another jitter where one is given. What was owed at the old rate is forgiven."""
        self._fill(now)
        self._rate = rate
        if jitter is not None:
            self._jitter = jitter
            self._late = self._draw()
        self._owed = min(self._owed, 1.0)
        self._ready = min(self._ready, 1.0 + self._jitter)

    def take(self, wanted: int, now: float) -> int:
        """Return how many of the wanted jobs go now. They count as sent."""
        self._fill(now)
        if self._rate is None:
            return wanted
        granted = max(0, min(wanted, int(min(self._owed - self._late, self._ready))))
        self._owed -= granted
        self._ready -= granted
        if granted:
            self._late = self._draw()
        return granted

    def delayed(self, seconds: float) -> None:
        """Note that the jobs taken last arrive up to `seconds` later: what was gathered meanwhile would come on top of
        them.
        """
        if self._rate is not None:
            self._ready -= max(0.0, seconds - self._CALL_S) * self._rate * self._FASTER

    def ahead(self, seconds: float, now: float) -> int:
        """Return how many jobs will be granted within `seconds` from `now`; at least 0. Takes none."""
        self._fill(now)
        if self._rate is None:
            return 2**31
        owed = self._owed - self._late + seconds * self._rate
        return max(0, int(min(owed, self._ready + seconds * self._rate * self._FASTER)))

    def wait(self, now: float) -> float:
        """Seconds until the next job may go; 0 when one may go now."""
        self._fill(now)
        if self._rate is None:
            return 0.0
        # A hair more, so that rounding does not wake the caller just too early.
        return max(0.0, (1 + self._late - self._owed) / self._rate, (1 - self._ready) / (self._rate * self._FASTER)) * (
            1 + 1e-9
        )

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        if self._rate is not None:
            self._owed = min(self._owed + passed * self._rate, 1 + self._jitter + self._rate * self._FORGIVEN_S)
            # Who goes late by a gap and the next one on time are two at once.
            most = 1.5 + self._jitter + self._BURST_S * self._rate
            self._ready = min(self._ready + passed * self._rate * self._FASTER, most)

    def _draw(self) -> float:
        """Return how late the next one is, in gaps."""
        return self._jitter * self._random.random() if self._jitter else 0.0
