"""Number of jobs that may be sent now: a limit that holds regardless of earlier sending.

Pure: the time in seconds is an argument, and nothing here sleeps.
"""

from __future__ import annotations

from random import Random


class Bucket:
    """Token bucket: in any one second at most 1.05 × the rate + 3, regardless of earlier sending.

    It combines two buckets. The long one keeps the promised rate: jobs delayed by a short stall (under 1 s) are made up
    for. The short one limits the rate meanwhile: it fills barely faster than the rate and holds 24 ms of it, so no
    burst follows a stall or pause. Nor does one follow a slow call to the queue, if reported to `delayed`: 1.015 of the
    rate, 24 ms of tokens and 10 ms for a call make 1.049.
    """

    _FORGIVEN_S = 1.0
    _FASTER = 1.015
    _BURST_S = 0.024
    _CALL_S = 0.01

    def __init__(self, rate: float | None, now: float, jitter: float = 0.0, random: Random | None = None) -> None:
        """`rate`: jobs per second, None for unlimited. `now`: seconds of any monotonic clock.

        With `jitter` (0 to 1), each job is sent at a random time within that share of its interval: later than without
        jitter, never earlier, at the same rate.
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
        """Continue at another rate, and another jitter if given. Jobs owed at the old rate are dropped."""
        self._fill(now)
        self._rate = rate
        if jitter is not None:
            self._jitter = jitter
            self._late = self._draw()
        self._owed = min(self._owed, 1.0)
        self._ready = min(self._ready, 1.0 + self._jitter)

    def take(self, wanted: int, now: float) -> int:
        """Return how many of the wanted jobs may be sent now. They count as sent."""
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
        """Note that the jobs just taken arrive up to `seconds` later: tokens gathered meanwhile would add to them."""
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
        """Return the seconds until the next job may be sent; 0 for now."""
        self._fill(now)
        if self._rate is None:
            return 0.0
        # Slightly longer, so that rounding does not wake the caller too early.
        return max(0.0, (1 + self._late - self._owed) / self._rate, (1 - self._ready) / (self._rate * self._FASTER)) * (
            1 + 1e-9
        )

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        if self._rate is not None:
            self._owed = min(self._owed + passed * self._rate, 1 + self._jitter + self._rate * self._FORGIVEN_S)
            # A job delayed by an interval and the next one on time are two at once.
            most = 1.5 + self._jitter + self._BURST_S * self._rate
            self._ready = min(self._ready + passed * self._rate * self._FASTER, most)

    def _draw(self) -> float:
        """Return the next job's delay, in intervals."""
        return self._jitter * self._random.random() if self._jitter else 0.0
