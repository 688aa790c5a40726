"""Reading of dead letters in RabbitMQ's queues: mirrored (they stay in the queue) or drained into our tables.

Two rules hold for both. A dead letter is always reported under one name: by its content, and by its number among equal
ones. And no message leaves a queue before it is filed, or sent, for good.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobs_admin.sources.amqp import wire as amqp_reading
from jobs_admin.sources.amqp.wire import Taken, Wire
from jobs_admin.sources.base import NO_ROOM
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq.copies import Copies
from jobs_admin.sources.rabbitmq.death import DeadLetter, RawMessage, name_of

# Maximum messages held by one pass over a mirrored queue: other consumers do not see them meanwhile.
MOST_UNACKNOWLEDGED = 100_000
_LONGEST_HOLD_S = 15.0
_MOST_BYTES_READ = 1_000_000_000
_MOST_BYTES_NEW = 48_000_000  # of unknown messages; the next pass reads more
_MOST_NEW = 20_000

_DRAINED_AT_ONCE = 200
_BYTES_DRAINED_AT_ONCE = 16_000_000
_COMES_BACK_S = 600.0
_UNFILED_AGAIN_S, _MIRRORED_AGAIN_S = 30.0, 300.0
_NOTHING = RawMessage(b"", b"", "", "")


@dataclass(frozen=True, slots=True)
class DeadQueue:
    """A dead-letter queue, configured or discovered."""

    name: str
    of: str = ""  # source queue of its dead letters, if they name none
    is_drained: bool = False
    parse: Callable[[RawMessage, str, str], DeadLetter] = rabbitmq_death.parse


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """A dead letter with the name of its job."""

    read: DeadLetter
    job_id: str

    @property
    def name(self) -> str:
        return name_of(self.job_id, self.read.attempt)

    @property
    def size(self) -> int:
        return len(self.read.found.body) + len(self.read.found.properties)


@dataclass(slots=True)
class Numbering:
    """Assigns names: a message's number among its equals, after those removed from the queue before."""

    copies: Copies
    dlq: str
    # Names fetched by an earlier connection: a message delivered before may be one of them, a new one is not.
    left_over: Collection[str] = ()
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def copy(self) -> Numbering:
        return replace(self, _next=dict(self._next))

    def assign_names(self, reads: Sequence[tuple[DeadLetter, bool]]) -> list[NamedMessage]:
        """Name messages in order. Each comes with whether it was delivered before."""
        known = self._known_names(self._untaken_names(reads))
        return [NamedMessage(read, self._number(read, was_out, known)) for read, was_out in reads]

    def _untaken_names(self, reads: Sequence[tuple[DeadLetter, bool]]) -> set[str]:
        """Return the messages' names as if none had been removed before."""
        ahead: dict[tuple[str, int], int] = {}
        names = set()
        for read, _ in reads:
            key = (read.base, read.attempt)
            number = ahead.get(key, self._next.get(key, 1))
            ahead[key] = number + 1
            names.add(name_of(_id(read.base, number), read.attempt))
        return names

    def _number(self, read: DeadLetter, was_out: bool, known: dict[str, bool]) -> str:
        key = (read.base, read.attempt)
        number = self._next.get(key, 1)
        while True:
            job_id = _id(read.base, number)
            name = name_of(job_id, read.attempt)
            if name not in known:
                more = {name_of(_id(read.base, number + n), read.attempt) for n in range(200)}
                known.update(self._known_names(more))
            if was_out if name in self.left_over else not known[name]:
                self._next[key] = number + 1
                return job_id
            number += 1

    def _known_names(self, names: Collection[str]) -> dict[str, bool]:
        taken = self.copies.find_taken(self.dlq, names)
        return {name: name in taken for name in names}


def _id(base: str, number: int) -> str:
    return base if number == 1 else f"{base}~{number}"


def _read(taken: Taken, queue: DeadQueue) -> tuple[DeadLetter, bool]:
    found = RawMessage(taken.message.raw_properties, taken.message.octets, taken.exchange, taken.routing_key)
    return queue.parse(found, queue.name, queue.of), taken.redelivered


Seen = dict[str, DeadLetter]  # by content that is constant across reads: the parsed message without its bytes


@dataclass(slots=True)
class Pass:
    """Result of one pass over a mirrored queue."""

    new: list[NamedMessage] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)  # of known messages
    present: set[str] = field(default_factory=set)  # names of the messages still in the queue
    taken: set[str] = field(default_factory=set)
    expiring: int = 0  # messages with their own time to live
    first: str = ""  # digest of the first message, to recognise it
    is_complete: bool = False  # the queue was read to its end
    took_s: float = 0.0

    @property
    def signature(self) -> str:
        return hashlib.sha256("\n".join(sorted(self.present)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def mirror(
    wire: Wire, queue: DeadQueue, copies: Copies, known: Collection[str], wanted: Collection[str], seen: Seen
) -> Pass:
    """Read a classic queue from its head, and return all messages except the `wanted` ones.

    Raises like `Wire`, and like `Copies`.

    The caller records the removal of those (`Pass.taken`): they are removed even if the store does not record it.

    For `known` messages only `seen` is stored, so that they are not parsed again while other messages wait.
    """
    done, begun = Pass(), time.monotonic()
    numbering = Numbering(copies, queue.name)
    count = wire.depth(queue.name) or 0
    copies.set_unacknowledged(queue.name, count)
    channel = wire.channel()
    size_new, size = 0, 0
    out: list[tuple[int, str]] = []
    messages = amqp_reading.fetch(channel, queue.name, MOST_UNACKNOWLEDGED)
    try:
        for some in _chunks(messages, 200):
            marks = [message_digest(one) for one in some]
            reads = [seen.get(mark) or _read(one, queue)[0] for one, mark in zip(some, marks, strict=True)]
            named = numbering.assign_names([(read, True) for read in reads])
            for one, mark, it in zip(some, marks, named, strict=True):
                size += one.message.body_size
                if it.name in wanted:
                    out.append((one.tag, it.name))
                    continue
                done.first = done.first or mark
                done.present.add(it.name)
                done.expiring += "expiration" in it.read.parts
                if it.name in known:
                    done.seen[mark] = _light(it.read)
                else:
                    done.new.append(NamedMessage(_read(one, queue)[0], it.job_id) if mark in seen else it)
                    size_new += done.new[-1].size
            holding_s = time.monotonic() - begun
            if (
                holding_s > _LONGEST_HOLD_S
                or size > _MOST_BYTES_READ
                or size_new > _MOST_BYTES_NEW
                or len(done.new) > _MOST_NEW
            ):
                break
        else:
            done.is_complete = len(done.present) < MOST_UNACKNOWLEDGED
        messages.close()  # a request now must not read an earlier answer
        if out:
            _take(channel, queue.name, copies, out)
            done.taken = {name for _, name in out}
    finally:
        if wire.is_open:
            messages.close()
            channel.close()  # all unacknowledged messages are back in their place
        copies.set_unacknowledged(queue.name, 0)
    done.took_s = time.monotonic() - begun
    return done


def _light(read: DeadLetter) -> DeadLetter:
    parts = {name: b"" for name in ("expiration",) if name in read.parts}
    return replace(read, found=_NOTHING, parts=parts, headers={})


def _take(channel: Any, dlq: str, copies: Copies, out: Sequence[tuple[int, str]]) -> None:
    copies.begin_taking(dlq, [name for _, name in out])
    acknowledge(channel, [tag for tag, _ in out])


def acknowledge(channel: Any, tags: Iterable[int]) -> None:
    """Acknowledge deliveries. They have left their queue when this returns."""
    for tag in tags:
        channel.basic_ack(tag)
    channel.basic_qos(0, 0, False)  # no effect, but answered only after all earlier requests


def first_digest(wire: Wire, queue: str) -> str:
    """Return the digest of the first message in a classic queue; "" if it is empty."""
    channel = wire.channel()
    try:
        found = next(amqp_reading.fetch(channel, queue, 1), None)
        return message_digest(found) if found else ""
    finally:
        if wire.is_open:
            channel.close()


def message_digest(taken: Taken) -> str:
    properties = taken.message.raw_properties
    return hashlib.sha256(b"%d:" % len(properties) + properties + taken.message.octets).hexdigest()


def _chunks(messages: Iterator[Taken], size: int) -> Iterator[list[Taken]]:
    chunk: list[Taken] = []
    weight = 0
    for one in messages:
        chunk.append(one)
        weight += one.message.body_size
        if len(chunk) == size or weight > 8_000_000:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


@dataclass(slots=True)
class Drain:
    """One queue being drained over one channel: delivered messages stay unacknowledged until they are filed."""

    queue: DeadQueue
    copies: Copies
    channel: Any
    numbering: Numbering
    left: list[str] = field(default_factory=list)  # too large to be stored in full: they stay
    # Returned, and neither filed nor stored as unfiled: they stay too, and are returned again (name -> tag and
    # message).
    unfiled: dict[str, tuple[int, NamedMessage]] = field(default_factory=dict)
    again_at: float = 0.0  # monotonic
    fetched: list[Taken] = field(default_factory=list)  # not yet named because the store was unavailable

    @classmethod
    def begin(cls, wire: Wire, queue: DeadQueue, copies: Copies) -> Drain:
        # Start draining a queue. A killed server brings back messages acknowledged just before.
        left_over = copies.taking(queue.name) | copies.recently_taken(queue.name, _COMES_BACK_S)
        return cls(queue, copies, wire.channel(), Numbering(copies, queue.name, left_over))

    @property
    def is_full(self) -> bool:
        """Return whether it has the maximum of messages that stay, and reads no more."""
        size = sum(one.size for _, one in self.unfiled.values())
        return len(self.left) + len(self.unfiled) >= _DRAINED_AT_ONCE or size >= _BYTES_DRAINED_AT_ONCE

    @property
    def has_more(self) -> bool:
        """Return whether it has messages to return although the queue shows none."""
        return bool(self.fetched) or (bool(self.unfiled) and time.monotonic() >= self.again_at)

    @property
    def why_left(self) -> str:
        """Reason why messages stay, and whether that ends the drain; "" if there is nothing to report."""
        if self.unfiled:
            return NO_ROOM.format(len(self.unfiled)) + (" No more is drained." if self.is_full else "")
        return f"{len(self.left)} dead letters are too large to be stored; no more is drained" if self.is_full else ""

    def batch(self) -> tuple[list[NamedMessage], list[tuple[int, str]]]:
        """Fetch the next dead letters. Return them, and those to remove once filed (tag, name)."""
        if self.unfiled and time.monotonic() >= self.again_at:
            again = list(self.unfiled.values())
            return [one for _, one in again], [(tag, one.name) for tag, one in again]
        if self.is_full:
            return [], []
        # Fetched messages are kept until they are named, even if the store is unavailable: each return would count as a
        # delivery.
        self.fetched = self.fetched or list(
            amqp_reading.fetch(self.channel, self.queue.name, _DRAINED_AT_ONCE, _BYTES_DRAINED_AT_ONCE)
        )
        numbering = self.numbering.copy()
        named = numbering.assign_names([_read(one, self.queue) for one in self.fetched])
        left, going = [], []
        for one, it in zip(self.fetched, named, strict=True):
            if rabbitmq_death.is_too_large(it.read.found):
                left.append(it.name)
            else:
                going.append((one.tag, it.name))
        # Recorded before they are filed, and so before they can be acknowledged: the next process then recognises them.
        self.copies.begin_taking(self.queue.name, [name for _, name in going])
        self.numbering, self.left, self.fetched = numbering, [*self.left, *left], []
        return named, going

    def acknowledge(self, going: Sequence[tuple[int, str]], left: Mapping[str, NamedMessage]) -> list[str]:
        """Acknowledge the removed messages, except those `left` (by name). Return the names removed."""
        out = [(tag, name) for tag, name in going if name not in left]
        if out:
            acknowledge(self.channel, [tag for tag, _ in out])
        for tag, name in going:
            self.unfiled.pop(name, None)
            if name in left:
                self.unfiled[name] = tag, left[name]
        if left:
            self.again_at = time.monotonic() + _UNFILED_AGAIN_S
        return [name for _, name in out]


@dataclass(slots=True)
class Mirrored:
    """State of a mirrored queue in this process."""

    queue: DeadQueue
    filed: set[str] = field(default_factory=set)
    unfiled: set[str] = field(default_factory=set)  # neither filed nor stored as unfiled: returned again later
    again_at: float = 0.0  # monotonic: when those are due
    seen: Seen = field(default_factory=dict)
    waiting: list[NamedMessage] = field(default_factory=list)  # read and not yet returned
    present: set[str] | None = None  # after the last complete pass; None before the first
    signature: str = ""
    first: str = ""
    count: int = -1
    passed_at: float = -1e9  # monotonic
    not_before: float = -1e9
    probed_at: float = -1e9
    missing: set[str] = field(default_factory=set)  # no longer there, for an unknown reason
    baseline: int | None = None  # messages acknowledged in the queue when nothing was missing
    ours: int = 0  # of these, removed by us since
    took_at: float = -1e9  # monotonic: our latest removal
    missing_since: float = -1e9  # monotonic: start of the time with missing messages
    expires: bool = False  # a present or missing message has its own time to live
    unread: int = 0  # messages deeper than a pass reads
    went_off: bool = False  # the last pass did not reach the end

    def forget(self) -> None:
        self.filed.clear()
        self.unfiled.clear()
        self.waiting.clear()
        self.signature, self.not_before, self.count = "", -1e9, -1

    def is_due(self, count: int, now: float) -> bool:
        """Return whether the queue's content may have changed."""
        if now < self.not_before:
            return False
        is_again = bool(self.unfiled) and now >= self.again_at
        return count != self.count or self.went_off or is_again or (count > 0 and now - self.passed_at > AGAIN_S)

    def known_names(self, now: float) -> Collection[str]:
        """Return the names that a pass does not return."""
        return self.filed | self.unfiled if self.unfiled and now < self.again_at else self.filed

    def record_filed(self, names: Iterable[str], left: Collection[str]) -> None:
        """Record that these are filed, except those `left`."""
        self.filed.update(name for name in names if name not in left)
        self.unfiled = (self.unfiled | {*left}) - self.filed
        if left:
            self.again_at = time.monotonic() + _MIRRORED_AGAIN_S

    def record_pass(self, done: Pass, count: int, now: float) -> None:
        """Store the result of a pass.

        Holding messages blocks other consumers, so it takes at most a tenth of the time, or half while there are many
        new ones.
        """
        self.passed_at = now
        pause = 1 if done.new and not done.is_complete else 9
        self.not_before = now + (done.took_s * pause if done.took_s > _SHORT_S else 0.0)
        self.went_off = not done.is_complete and bool(done.new)
        self.unread = 0 if done.is_complete else max(0, count - len(done.present))
        self.count, self.first = count - len(done.taken), done.first
        self.waiting = done.new
        self.seen = done.seen if done.is_complete else self.seen | done.seen
        expired = self.expires
        self.ours += len(done.taken)
        self.took_at = now if done.taken else self.took_at
        if done.is_complete:
            gone = (self.present or set()) - done.present - done.taken
            self.missing_since = self.missing_since if self.missing else now
            self.missing = (self.missing | gone) - done.present
            self.present, self.signature = done.present, done.signature
            self.unfiled &= done.present
        else:
            self.missing -= done.present
        self.expires = done.expiring > 0 or (expired and (bool(self.missing) or not done.is_complete))


_SHORT_S = 0.2  # unnoticeable
_COUNTED_S = 12.0  # RabbitMQ's statistics are some seconds old
_COUNTED_WITHIN_S = 60.0  # complete after this time
AGAIN_S = 600.0  # a queue that seems unchanged is nevertheless read in full


def find_removed_by_others(queue: Mirrored, acknowledged: int, settings: Mapping[str, Any], now: float) -> set[str]:
    """Return the missing messages that others removed: RabbitMQ counts as many acknowledgements by others, and
    drops none here.
    """
    if now - queue.took_at < _COUNTED_S:
        return set()
    by_others = acknowledged - (acknowledged if queue.baseline is None else queue.baseline) - queue.ours
    found: set[str] = set()
    if by_others < 0:  # the statistics restarted, and perhaps the queue: nothing is known of the time before
        queue.missing = set()
    elif queue.missing and (by_others < len(queue.missing) or queue.expires or dropping_setting(settings)):
        if now - queue.missing_since < _COUNTED_WITHIN_S:
            return set()  # not yet counted
        queue.missing = set()  # dropped or purged, which is no evidence about later acknowledgements by others
    elif queue.baseline is not None:
        found, queue.missing = queue.missing, set()
    queue.baseline, queue.ours = acknowledged, 0
    return found


def dropping_setting(settings: Mapping[str, Any]) -> str:
    """Return the setting by which RabbitMQ itself removes messages from the queue; "" if there is none."""
    for name in ("message-ttl", "expires", "max-length", "max-length-bytes"):
        if settings.get(name) is not None:
            refuses_new = settings.get("overflow") in ("reject-publish", "reject-publish-dlx")
            if name in ("message-ttl", "expires") or not refuses_new:
                return f"{name} {settings[name]}"
    return ""
