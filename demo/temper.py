"""The temper of the demo's partner: its modes, and its answers in each. Pure: the time is an argument.

well        answers at once
outage      answers 503, or cuts the connection, in turn
slow        answers after `delay_s`, longer than the shop waits
rate_limit  answers 429 with Retry-After above `limit` requests a second
warming     just back: tolerates a rate that rises over a minute, and falls over when it gets more
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

MODES = ("well", "outage", "slow", "rate_limit", "warming")

WARMING_S = 60.0  # from the first request it dares to answer until it is well
COLD_RATE, WARM_RATE = 8.0, 50.0  # requests/s it can carry at the beginning and the end of warming
STRAIN = 1.3  # more than this times its capacity …
STRAIN_S = 2.0  # … for so long, and it falls over
FALLEN_S = 20.0
SERIES_S = 60  # the length of the series in /state
QUEUED_S, QUEUED = 0.1, 3.0  # so much of a burst, in seconds or requests, one that sheds holds before it refuses

# Seconds since it came back -> requests/s that it can carry.
Curve = Callable[[float], float]


def warm_up(since_s: float) -> float:
    return COLD_RATE + (WARM_RATE - COLD_RATE) * min(1.0, since_s / WARMING_S)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request. Status 0 means that the connection is cut."""

    status: int
    delay_s: float = 0.0
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Mode:
    name: str = "well"
    since: float = 0.0
    delay_s: float = 4.0  # only for `slow`
    limit: float = 2.0  # requests/s, only for `rate_limit`
    scale: float = 1.0  # of what it carries while warming: the played incident fits it to the machine
    until: float | None = None  # a fall while warming ends by itself; then it warms again
    warms_from: float | None = None  # the first request since it came back; None: there was none, and it is cold still


class Temper:
    """The temper of the partner. Pure: the time is an argument (seconds of any clock that only goes forward)."""

    def __init__(self, now: float, curve: Curve | None = None, *, sheds: bool = False) -> None:
        """Create a temper. `curve`: its capacity while warming, which then never ends. One that `sheds` answers 503 to
        requests beyond its capacity; without, there is no sign of overload before it falls over."""
        self.mode = Mode(since=now)
        self._curve = curve
        self._sheds = sheds
        self._room, self._room_at = QUEUED, now  # of one that sheds
        self.falls = 0
        self.served = 0  # requests answered 200
        self._arrived: deque[float] = deque()  # the last STRAIN_S
        self._taken: deque[float] = deque()  # requests that the rate limit let through
        self._seconds: dict[int, Counter[str]] = {}
        self._last_cut = False

    def change(
        self, name: str, now: float, *, delay_s: float | None = None, limit: float | None = None, scale: float = 1.0
    ) -> None:
        """Raises ValueError for a mode there is not, or a number that makes no sense."""
        if name not in MODES:
            raise ValueError(f"{name!r} is not one of {', '.join(MODES)}. Nothing was changed.")
        delay_s = self.mode.delay_s if delay_s is None else delay_s
        limit = self.mode.limit if limit is None else limit
        if not 0 <= delay_s <= 60 or not 0 < limit <= 10_000:
            raise ValueError("delay_s must be 0 to 60 seconds, limit 0.1 to 10,000 requests/s. Nothing was changed.")
        if not 0.01 <= scale <= 1:
            raise ValueError("scale must be 0.01 to 1. Nothing was changed.")
        self.mode = Mode(name, now, delay_s, limit, scale)
        self._arrived.clear()

    def cut_next(self, cut: bool) -> None:
        """In an outage, whether the next request is cut rather than answered 503."""
        self._last_cut = not cut

    def exhaust(self, now: float) -> None:
        """As if the rate limit had just been used up."""
        self._taken.extend([now] * math.ceil(self.mode.limit * max(1.0, 1 / self.mode.limit)))

    def capacity(self, now: float) -> float | None:
        """Requests/s that it can carry now; None where it has no bound."""
        if self.mode.name == "rate_limit":
            return self.mode.limit
        if self.mode.name != "warming":
            return None
        if self._curve is not None:
            return self._curve(now - self.mode.since) * self.mode.scale
        return warm_up(0.0 if self.mode.warms_from is None else now - self.mode.warms_from) * self.mode.scale

    def answer(self, now: float) -> Answer:
        self._settle(now)
        if self.mode.name == "warming" and self.mode.warms_from is None:
            # Not before: a machine on which jobs take long to arrive would find it warm already.
            self.mode = replace(self.mode, warms_from=now)
        self._arrived.append(now)
        while self._arrived and self._arrived[0] <= now - STRAIN_S:
            self._arrived.popleft()
        answer = self._decide(now)
        second = self._seconds.setdefault(int(now), Counter())
        second["cut" if answer.status == 0 else str(answer.status)] += 1
        self.served += answer.status == 200
        if len(self._seconds) > SERIES_S + 1:
            self._seconds = {at: seen for at, seen in self._seconds.items() if at > now - SERIES_S}
        return answer

    def _settle(self, now: float) -> None:
        """Changes that come by themselves with time."""
        mode = self.mode
        if mode.until is not None and now >= mode.until:
            self.mode = replace(mode, name="warming", since=mode.until, until=None, warms_from=None)
            self._arrived.clear()
        elif mode.warms_from is not None and self._curve is None and now - mode.warms_from >= WARMING_S:
            self.mode = replace(mode, name="well", since=now, warms_from=None)

    def _decide(self, now: float) -> Answer:
        mode, capacity = self.mode, self.capacity(now)
        if mode.name == "warming" and capacity and len(self._arrived) > STRAIN * capacity * STRAIN_S:
            self.falls += 1
            self.mode = mode = replace(mode, name="outage", since=now, until=now + FALLEN_S)
        if mode.name == "outage":
            self._last_cut = not self._last_cut
            return Answer(0 if self._last_cut else 503)
        if mode.name == "slow":
            return Answer(200, delay_s=mode.delay_s)
        if mode.name == "rate_limit":
            return self._limited(now, mode.limit)
        if capacity and self._sheds and not self._has_room(now, capacity):
            return Answer(503)
        return Answer(200)

    def _has_room(self, now: float, capacity: float) -> bool:
        self._room = min(max(QUEUED, capacity * QUEUED_S), self._room + (now - self._room_at) * capacity)
        self._room_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def _limited(self, now: float, limit: float) -> Answer:
        # A window of at least a second, so that a limit below 1/s still lets one request through.
        window = max(1.0, 1 / limit)
        while self._taken and self._taken[0] <= now - window:
            self._taken.popleft()
        if len(self._taken) < math.ceil(limit * window):
            self._taken.append(now)
            return Answer(200)
        return Answer(429, retry_after_s=max(1, math.ceil(self._taken[0] + window - now)))

    def state(self, now: float) -> dict[str, Any]:
        """Return its state, for a picture: oldest second first; rates are means of the last five complete seconds.

        `now` and `for_s` are on the clock of `now`: a second of the series is `int(now) - ago_s` of it.
        """
        self._settle(now)
        this_second = int(now)
        series = []
        for at in range(this_second - SERIES_S, this_second):
            second = self._seconds.get(at, Counter())
            series.append({"ago_s": this_second - at, "requests": second.total(), "by_status": dict(second)})
        recent: Counter[str] = Counter()
        for point in series[-5:]:
            recent.update(point["by_status"])
        minute = Counter[str]()
        for point in series:
            minute.update(point["by_status"])
        return {
            "now": round(now, 3),
            "mode": self.mode.name,
            "for_s": round(now - self.mode.since, 3),
            "fell_over": self.mode.until is not None,
            "back_in_s": None if self.mode.until is None else round(max(0.0, self.mode.until - now), 1),
            "falls": self.falls,
            "served": self.served,
            "delay_s": self.mode.delay_s,
            "limit": self.mode.limit,
            "capacity": self.capacity(now),
            "requests_per_s": round(recent.total() / 5, 1),
            "refused_per_s": round((recent.total() - recent["200"]) / 5, 1),
            "by_status": dict(sorted(minute.items())),
            "series": series,
        }
