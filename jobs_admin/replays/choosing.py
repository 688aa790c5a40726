"""Which items of a replay go next: in the order of sending, but past those whose customer, queue or source has to wait.

Each planned row is passed once. What is left behind is found again by its key's place in an index, or by going back to
the beginning when a queue or a source takes jobs again: one customer with 40,000 waiting jobs costs the others nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from jobs_admin.models import Replay
from jobs_admin.replays import claiming
from jobs_admin.replays.claiming import Claimed
from jobs_admin.replays.key_rates import KeyRates

_PASSED_AT_ONCE = 2_000  # rows looked at for one slice: some ms
_KEYS_AT_ONCE = 100  # waiting keys looked at for one slice
_LOOK_BACK_S = 5.0  # the longest that something left behind waits to be found again
_BYTES = 16_000_000  # of messages in one slice, however large each of them is

Lane = tuple[str, str]  # source, queue


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key, a queue and a source take now. None is no such limit."""

    concurrency: int | None  # jobs of one key that were sent and have not ended
    rates: KeyRates | None
    out: Counter[str]  # key -> jobs of ours that are not yet marked as sent
    room: Callable[[Lane], float]  # how many more jobs a queue takes
    resting: Collection[str]  # sources that take nothing now
    queue: Callable[[Claimed], str]  # where an item goes
    ahead_s: float  # what is chosen goes within so many seconds

    @property
    def is_by_key(self) -> bool:
        return self.concurrency is not None or self.rates is not None


@dataclass(slots=True)
class Choice:
    """Remembers where it is in the plan of one replay. What it gives is not claimed yet."""

    far: int = 0  # all places up to here were passed
    waiting: dict[str, None] = field(default_factory=dict)  # keys with jobs left behind, the longest unserved first
    full: set[Lane] = field(default_factory=set)  # what jobs were left behind for
    _looked_back: float = 0.0

    def of(self, replay: Replay, count: int, limits: Limits) -> list[Claimed]:
        """Up to `count` items."""
        slice_ = _Slice(replay, count, limits)
        self._look_back(slice_)
        self._take_waiting(slice_)
        self._go_on(slice_)
        return slice_.chosen

    def again(self, items: Iterable[Claimed]) -> None:
        """These were not sent, and are to be found again."""
        self.far = min([self.far, *(item.n - 1 for item in items)])

    def _look_back(self, slice_: _Slice) -> None:
        now = time.monotonic()
        if any(slice_.has_room(lane) for lane in self.full) or now - self._looked_back > _LOOK_BACK_S:
            self._looked_back = now
            self.far = 0
            self.full.clear()

    def _take_waiting(self, slice_: _Slice) -> None:
        """Those left behind whose keys may send again, some of each in turn."""
        keys = [key for key, _ in zip(self.waiting, range(_KEYS_AT_ONCE), strict=False)]
        slice_.see(keys)
        wanted = {key: max(0, min(slice_.free(key), slice_.count)) for key in keys}
        rows = claiming.planned_of(slice_.replay, [(key, free) for key, free in wanted.items() if free])
        found = Counter(row.key for row in rows)
        for key, free in wanted.items():
            # Behind the others, or nowhere when nothing of it is left.
            del self.waiting[key]
            if found[key] == free:
                self.waiting[key] = None
        for row in rows:
            if not (slice_.wants_more and self._offer(slice_, row)):
                self.waiting[row.key] = None

    def _go_on(self, slice_: _Slice) -> None:
        passed = 0
        while slice_.wants_more and passed < _PASSED_AT_ONCE:
            asked = min(_PASSED_AT_ONCE - passed, max(50, slice_.count))
            rows = claiming.planned(slice_.replay, self.far, asked)
            slice_.see({row.key for row in rows})
            for row in rows:
                if not slice_.wants_more:
                    break
                # A key's jobs stay in their order: none goes past those that wait.
                if row.key in self.waiting or not self._offer(slice_, row):
                    self.waiting[row.key] = None
                self.far = row.n
            passed += len(rows)
            if len(rows) < asked:
                break

    def _offer(self, slice_: _Slice, row: Claimed) -> bool:
        """Choose it, or leave it behind. False where its key has to wait."""
        lane = (row.source, slice_.limits.queue(row))
        if not slice_.has_room(lane):
            self.full.add(lane)
        elif slice_.free(row.key) <= 0:
            return False
        else:
            slice_.take(row, lane)
        return True


class _Slice:
    """What is chosen now, and what each key and queue still takes."""

    def __init__(self, replay: Replay, count: int, limits: Limits) -> None:
        self.replay = replay
        self.count = count
        self.limits = limits
        self.chosen: list[Claimed] = []
        self._bytes = 0
        self._room: dict[Lane, float] = {}
        self._unsettled: dict[str, int] = {}
        self._taken: Counter[str] = Counter()

    @property
    def wants_more(self) -> bool:
        return len(self.chosen) < self.count and self._bytes < _BYTES

    def see(self, keys: Iterable[str]) -> None:
        """Look up how many jobs of these keys have not ended."""
        if self.limits.concurrency is not None and (new := [k for k in keys if k and k not in self._unsettled]):
            self._unsettled |= dict.fromkeys(new, 0) | claiming.unsettled_by_key(self.replay, new)

    def free(self, key: str) -> int:
        """How many more jobs of the key may go. What has no key has no limit."""
        if not (key and self.limits.is_by_key):
            return self.count
        ours, free = self.limits.out[key] + self._taken[key], self.count
        if self.limits.concurrency is not None:
            free = self.limits.concurrency - self._unsettled[key] - ours
        if self.limits.rates is not None:
            free = min(free, self.limits.rates.ahead(key, self.limits.ahead_s) - ours)
        return free

    def has_room(self, lane: Lane) -> bool:
        if lane[0] in self.limits.resting:
            return False
        if lane not in self._room:
            self._room[lane] = self.limits.room(lane)
        return self._room[lane] > 0

    def take(self, row: Claimed, lane: Lane) -> None:
        self.chosen.append(row)
        self._bytes += row.size
        self._taken[row.key] += 1
        self._room[lane] -= 1
