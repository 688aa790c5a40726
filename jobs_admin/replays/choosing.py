"""Choice of the next items of a replay, in the order of sending; skips items whose key, queue or source has to wait.

Each planned row is read once. A skipped item is found again through its key's index, or by rewinding when a queue or
source accepts jobs again. So a customer with 40,000 waiting jobs does not delay the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from jobs_admin.core.pacing import Bucket
from jobs_admin.models import Replay
from jobs_admin.replays import claiming
from jobs_admin.replays.claiming import Claimed

_MOST_BUCKETS = 10_000  # keys; beyond that, buckets of keys that may send immediately are dropped


class KeyRates:
    """Token buckets, one per requested key (a customer, or any other key of a pace). Thread-safe."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # jobs per second
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def ahead(self, key: str, seconds: float) -> int:
        """Return how many jobs of the key may be sent within `seconds`."""
        now = time.monotonic()
        with self._lock:
            return self._bucket(key, now).ahead(seconds, now)

    def wait(self, key: str, now: float) -> float:
        """Return the seconds until the next job of the key may be sent."""
        with self._lock:
            return self._bucket(key, now).wait(now)

    def take(self, key: str, now: float) -> None:
        with self._lock:
            self._bucket(key, now).take(1, now)

    def _bucket(self, key: str, now: float) -> Bucket:
        if (found := self._buckets.get(key)) is None:
            if len(self._buckets) >= _MOST_BUCKETS:
                self._buckets = {k: b for k, b in self._buckets.items() if b.wait(now)}
            found = self._buckets[key] = Bucket(self.rate, now)
        return found


_PASSED_AT_ONCE = 2_000  # rows read for one slice: takes some ms
_KEYS_AT_ONCE = 100  # waiting keys checked for one slice
_REWIND_S = 5.0  # longest time until a skipped item is found again
_BYTES = 16_000_000  # total size of the messages in one slice

Lane = tuple[str, str]  # source, queue


@dataclass(frozen=True, slots=True)
class Limits:
    """Free capacity of keys, queues and sources. None: no such limit."""

    concurrency: int | None  # sent jobs of one key that have not ended
    rates: KeyRates | None
    out: Counter[str]  # key -> our jobs that are not yet marked as sent
    room: Callable[[Lane], float]  # how many more jobs a queue accepts
    resting: Collection[str]  # sources that accept nothing now
    queue: Callable[[Claimed], str]  # target queue of an item
    ahead_s: float  # chosen items are sent within this many seconds

    @property
    def is_by_key(self) -> bool:
        return self.concurrency is not None or self.rates is not None


@dataclass(slots=True)
class Choice:
    """Position in the plan of one replay. The returned items are not claimed yet."""

    far: int = 0  # all places up to this one were read
    waiting: dict[str, None] = field(default_factory=dict)  # keys with skipped jobs, the longest unserved first
    full: set[Lane] = field(default_factory=set)  # lanes for which jobs were skipped
    _rewound_at: float = 0.0

    def choose(self, replay: Replay, count: int, limits: Limits) -> list[Claimed]:
        """Return up to `count` items."""
        slice_ = _Slice(replay, count, limits)
        self._rewind(slice_)
        self._choose_waiting(slice_)
        self._choose_planned(slice_)
        return slice_.chosen

    def put_back(self, items: Iterable[Claimed]) -> None:
        """Make these unsent items available again."""
        self.far = min([self.far, *(item.n - 1 for item in items)])

    def _rewind(self, slice_: _Slice) -> None:
        now = time.monotonic()
        if any(slice_.has_room(lane) for lane in self.full) or now - self._rewound_at > _REWIND_S:
            self._rewound_at = now
            self.far = 0
            self.full.clear()

    def _choose_waiting(self, slice_: _Slice) -> None:
        """Choose skipped items of keys that may send again, some of each key in turn."""
        keys = [key for key, _ in zip(self.waiting, range(_KEYS_AT_ONCE), strict=False)]
        slice_.load_unsettled(keys)
        wanted = {key: max(0, min(slice_.free(key), slice_.count)) for key in keys}
        rows = claiming.find_planned_by_key(slice_.replay, [(key, free) for key, free in wanted.items() if free])
        found = Counter(row.key for row in rows)
        for key, free in wanted.items():
            # Move the key to the end, or drop it if it has no more items.
            del self.waiting[key]
            if found[key] == free:
                self.waiting[key] = None
        for row in rows:
            if not (slice_.wants_more and self._offer(slice_, row)):
                self.waiting[row.key] = None

    def _choose_planned(self, slice_: _Slice) -> None:
        passed = 0
        while slice_.wants_more and passed < _PASSED_AT_ONCE:
            requested = min(_PASSED_AT_ONCE - passed, max(50, slice_.count))
            rows = claiming.find_planned(slice_.replay, self.far, requested)
            slice_.load_unsettled({row.key for row in rows})
            for row in rows:
                if not slice_.wants_more:
                    break
                # Jobs of a key are sent in order: none overtakes a waiting one.
                if row.key in self.waiting or not self._offer(slice_, row):
                    self.waiting[row.key] = None
                self.far = row.n
            passed += len(rows)
            if len(rows) < requested:
                break

    def _offer(self, slice_: _Slice, row: Claimed) -> bool:
        """Choose or skip the item. Return False if its key has to wait."""
        lane = (row.source, slice_.limits.queue(row))
        if not slice_.has_room(lane):
            self.full.add(lane)
        elif slice_.free(row.key) <= 0:
            return False
        else:
            slice_.take(row, lane)
        return True


class _Slice:
    """Items chosen so far, and the free capacity of each key and queue."""

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

    def load_unsettled(self, keys: Iterable[str]) -> None:
        """Read how many jobs of each key have not ended."""
        if self.limits.concurrency is not None and (new := [k for k in keys if k and k not in self._unsettled]):
            self._unsettled |= dict.fromkeys(new, 0) | claiming.count_unsettled_by_key(self.replay, new)

    def free(self, key: str) -> int:
        """Return how many more jobs of the key may be sent. An item without a key has no limit."""
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
