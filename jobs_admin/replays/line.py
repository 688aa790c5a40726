"""Sending on time: a thread builds messages while the token bucket fills, and sends them to their queues.

It reads and writes no table, so that neither a slow transaction nor a busy disk delays a job; its results are recorded
afterwards. Another process decrypts messages ahead. The thread never waits for that process, which on a busy machine
may not be scheduled for as long as a hundred jobs take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from jobs_admin import config
from jobs_admin.core.pacing import Bucket
from jobs_admin.core.refused import Refused
from jobs_admin.db.opening import Opener, OpenerGone
from jobs_admin.replays.choosing import KeyRates
from jobs_admin.replays.claiming import Claimed
from jobs_admin.replays.messages import Writer
from jobs_admin.sources.base import OutgoingMessage, SourceError, SourceRefused

log = logging.getLogger(__name__)

_DECRYPTED_AT_ONCE = 400  # some 7 ms
_DECRYPTED_BYTES = 700_000  # so that no request waits for the other process to read it
_DECRYPT_AHEAD_FROM = 1_000  # waiting claimed jobs: below that, starting the process costs as much as decrypting here


class DecryptAhead:
    """Decryption in another process. Affects only speed: the line decrypts what this class does not."""

    def __init__(self) -> None:
        self._opener: Opener | None = None
        self._requested: list[Claimed] = []
        self._is_requested = True  # the start of the process counts as a request
        self._is_ended = False

    def open(self, coming: Iterable[Claimed], waiting: int) -> None:
        """Store finished results and request decryption of some of `coming`. `waiting`: number of waiting jobs."""
        if self._is_ended:
            return
        try:
            if self._opener is None and waiting >= _DECRYPT_AHEAD_FROM:
                self._opener = Opener(config.setting("PAYLOAD_KEYS"))
            if self._opener is not None and self._opener.has_answered():
                self._take(self._opener)
            if self._opener is not None and not self._is_requested and (some := _choose_encrypted(coming)):
                self._requested, self._is_requested = some, True
                self._opener.submit([item.body for item in some])
        except (OpenerGone, OSError):
            log.warning("the process that decrypts beside the line ended; messages are decrypted here")
            self.close()

    def _take(self, opener: Opener) -> None:
        for item, raw in zip(self._requested, opener.answer(), strict=True):
            # No body: the line has already decrypted it.
            if raw is not None and item.body:
                item.body, item.is_open = raw, True
        self._requested, self._is_requested = [], False

    def close(self) -> None:
        self._is_ended = True
        if self._opener is not None:
            self._opener.close()
            self._opener = None


def _choose_encrypted(coming: Iterable[Claimed]) -> list[Claimed]:
    some, size = [], 0
    for item in coming:
        if item.body and not item.is_open and size + len(item.body) < _DECRYPTED_BYTES:
            some.append(item)
            size += len(item.body)
    return some[:_DECRYPTED_AT_ONCE]


_AT_ONCE = 500  # messages per call
_READY = 1_000  # messages built before they are due
_MADE_AT_ONCE = 100  # messages built between two readings of the clock: takes a millisecond or two
_OPENED_HERE, _DECRYPTED_AHEAD = 200, 800  # the items after the first 200 go to the other process
_NEWS = 1_000  # sent messages worth recording immediately
# At high rates, several jobs per call instead of one. The bucket tolerates bursts three times as long.
_BETWEEN_CALLS_S = 0.008

_RECALLED = "withdrawn: the replay was cancelled, or the job excluded, before it was sent"


@dataclass(slots=True)
class Ended:
    """Results of items since they were last collected."""

    sent: list[Claimed] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)  # item id -> why it can never be sent
    unsent: list[Claimed] = field(default_factory=list)
    unknown: list[Claimed] = field(default_factory=list)  # only the source's ledger has the outcome
    failed: dict[str, str] = field(default_factory=dict)  # source -> its last error message


class Line(threading.Thread):
    """The thread that sends one replay's jobs. All methods but `run` may be called from other threads."""

    def __init__(self, key: str, writer: Writer, bucket: Bucket, notify: Callable[[], None]) -> None:
        """Prepare a line for the replay with this key; `notify` is called when there are results to collect."""
        super().__init__(name=f"line-{key[:8]}", daemon=True)
        self.bucket = bucket  # requires the lock
        self.lock = threading.Condition()
        self.error: BaseException | None = None  # the unexpected error that ended the thread
        self._key = key
        self._writer = writer
        self._notify = notify
        self._rates: KeyRates | None = None
        self._until = 0.0  # by the monotonic clock, like the next one
        self._next_call = 0.0
        self._has_begun = False
        self._claimed: deque[Claimed] = deque()
        self._ready: deque[tuple[Claimed, OutgoingMessage]] = deque()
        self._trying: list[tuple[Claimed, OutgoingMessage]] = []
        self._ended = Ended()
        self._is_closed = False
        self._ahead = DecryptAhead()

    @property
    def pending(self) -> int:
        """Claimed items that have not been tried."""
        return len(self._claimed) + len(self._ready)

    def enqueue(self, items: Sequence[Claimed], rates: KeyRates | None) -> None:
        """Send these items when they are due, within the `rates` of their keys."""
        with self.lock:
            self._rates = rates
            self._claimed.extend(items)
            self.lock.notify()

    def lease(self, until: float) -> None:
        """Send nothing after `until`, by the monotonic clock."""
        with self.lock:
            self._until = until
            self.lock.notify()

    def close(self) -> None:
        """Stop sending. Untried items are returned unsent; a call in progress finishes first."""
        with self.lock:
            self._is_closed = True
            self._give_back(lambda _: True)
            self.lock.notify()

    def collect(self) -> Ended:
        with self.lock:
            ended, self._ended = self._ended, Ended()
            return ended

    def run(self) -> None:
        try:
            while not self._is_closed:
                self._turn()
        except BaseException as error:  # the sender reports it; the claims remain
            self.error = error
            with self.lock:
                self._ended.unknown += [item for item, _ in self._trying]
                self._is_closed = True
                self._give_back(lambda _: True)
        self._ahead.close()
        self._notify()

    def _turn(self) -> None:
        with self.lock:
            now = time.monotonic()
            due = self._due(now)
            if not due and (not self._claimed or len(self._ready) >= _READY):
                self.lock.wait(self._wait(now))
                return
            self._trying = due
        if due:
            self._send(due)
        else:
            self._make_ready()

    def _wait(self, now: float) -> float | None:
        """Return the seconds until there is work; None to wait until notified."""
        if not self._ready or now > self._until:
            return None
        wait = self.bucket.wait(now)
        if self._rates:
            wait = max(wait, min(self._key_wait(item.key, now) for item, _ in self._ready))
        return max(wait, self._next_call - now)

    def _key_wait(self, key: str, now: float) -> float:
        return self._rates.wait(key, now) if self._rates and key else 0.0

    def _due(self, now: float) -> list[tuple[Claimed, OutgoingMessage]]:
        if not self._ready or now > self._until or now < self._next_call:
            return []
        if not self._has_begun:
            # Without this, tokens collected while the first messages were built would be spent in one burst.
            self.bucket.change(self.bucket.rate, now)
            self._has_begun = True
        if self._rates:
            return self._due_by_key(now)
        count = self.bucket.take(min(len(self._ready), _AT_ONCE), now)
        return [self._ready.popleft() for _ in range(count)]

    def _due_by_key(self, now: float) -> list[tuple[Claimed, OutgoingMessage]]:
        due: list[tuple[Claimed, OutgoingMessage]] = []
        left: deque[tuple[Claimed, OutgoingMessage]] = deque()
        for one in self._ready:
            key = one[0].key
            may = len(due) < _AT_ONCE and not self._key_wait(key, now)
            if may and self.bucket.take(1, now):
                if self._rates and key:
                    self._rates.take(key, now)
                due.append(one)
            else:
                left.append(one)
        self._ready = left
        return due

    def _make_ready(self) -> None:
        with self.lock:
            items = [self._claimed.popleft() for _ in range(min(_MADE_AT_ONCE, len(self._claimed)))]
            # Skip the next few items, which are decrypted here before an answer could arrive.
            coming = list(islice(self._claimed, _OPENED_HERE, _OPENED_HERE + _DECRYPTED_AHEAD))
            waiting = len(self._claimed)
        self._ahead.open(coming, waiting)
        ready, refused = [], {}
        for item in items:
            try:
                ready.append((item, self._writer.build(item)))
            except (SourceRefused, Refused) as error:
                refused[item.pk] = str(error)
            item.body = b""
        with self.lock:
            self._ready.extend(ready)
            self._ended.refused |= refused
            if self._is_closed:
                self._give_back(lambda _: True)
            is_news = bool(refused) and not self.pending
        if is_news:
            self._notify()

    def _send(self, due: list[tuple[Claimed, OutgoingMessage]]) -> None:
        begun = time.monotonic()
        by_source: dict[str, dict[int, tuple[Claimed, OutgoingMessage]]] = {}
        for item, message in due:
            by_source.setdefault(item.source, {})[item.pk] = (item, message)
        for source, mine in by_source.items():
            try:
                self._send_to(source, mine, begun)
            except SourceError as error:
                # Whether these were sent is unknown: their claims remain, and the ledger is queried when it answers
                # again.
                with self.lock:
                    self._ended.unknown += [item for item, _ in mine.values()]
                    self._ended.failed[source] = str(error)
                    self._give_back(lambda item, source=source: item.source == source)
        with self.lock:
            self._trying = []
            ended = time.monotonic()
            self._next_call = ended + _BETWEEN_CALLS_S
            # A busy machine may have suspended this thread at any point since the tokens were taken.
            self.bucket.delayed(ended - begun)
            is_news = len(self._ended.sent) >= _NEWS or not self.pending or bool(self._ended.failed)
        if is_news:
            self._notify()

    def _send_to(self, source: str, mine: dict[int, tuple[Claimed, OutgoingMessage]], at: float) -> None:
        """Remove items from `mine` as their results become known.

        Raises SourceError, leaving items with unknown results.
        """
        while mine:
            try:
                answers = config.adapter(source).send(self._key, [message for _, message in mine.values()])
            except SourceRefused as error:
                blamed = [pk for pk in mine if error.blames(pk)]
                with self.lock:
                    self._ended.refused.update(dict.fromkeys(blamed, f"{source} refused it: {error}"))
                for pk in blamed:
                    del mine[pk]
                if not blamed:
                    raise
                continue
            with self.lock:
                for pk, (item, _) in mine.items():
                    if answers[pk] == "recalled":
                        self._ended.refused[pk] = _RECALLED
                    else:
                        item.went_at = at
                        self._ended.sent.append(item)
            mine.clear()

    def _give_back(self, which: Callable[[Claimed], bool]) -> None:
        for item in [*(item for item, _ in self._ready), *self._claimed]:
            if which(item):
                self._ended.unsent.append(item)
        self._ready = deque(one for one in self._ready if not which(one[0]))
        self._claimed = deque(item for item in self._claimed if not which(item))
