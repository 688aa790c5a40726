"""Dead letters out of RabbitMQ's own queues: mirrored, so that they stay in the queue, or drained into our tables.

Two rules hold in both. A dead letter is reported under one name, however often it is read: by its content, and by its
number among those that are equal in all. And nothing leaves a queue that is not filed, or sent, for good.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobs_admin.sources.amqp import wire as amqp_reading
from jobs_admin.sources.amqp.wire import Taken, Wire
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq.copies import Copies
from jobs_admin.sources.rabbitmq.death import DeadLetter, RawMessage, name_of

# Most messages that one pass over a mirrored queue holds: while it does, other consumers do not see these messages.
MOST_UNACKNOWLEDGED = 100_000
_LONGEST_HOLD_S = 15.0
_MOST_BYTES_READ = 1_000_000_000
_MOST_BYTES_NEW = 48_000_000  # of messages that are not known; the next pass brings more
_MOST_NEW = 20_000

_DRAINED_AT_ONCE = 200
_BYTES_DRAINED_AT_ONCE = 16_000_000
_COMES_BACK_S = 600.0
_NOTHING = RawMessage(b"", b"", "", "")


@dataclass(frozen=True, slots=True)
class DeadQueue:
    """A dead-letter queue, as it is configured or was found."""

    name: str
    of: str = ""  # the queue whose dead letters these are, where they do not say
    is_drained: bool = False


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
    """Gives each message its name: its number among its equals, past those that were taken out of the queue before."""

    copies: Copies
    dlq: str
    # Names that another connection had fetched before this one: a message that was handed out before may be one of them, a new one
    # is none.
    left_over: Collection[str] = ()
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def copy(self) -> Numbering:
        return replace(self, _next=dict(self._next))

    def assign_names(self, reads: Sequence[tuple[DeadLetter, bool]]) -> list[NamedMessage]:
        """Name messages in their order; with each, whether it was handed out before."""
        known = self._known_names(self._untaken_names(reads))
        return [NamedMessage(read, self._number(read, was_out, known)) for read, was_out in reads]

    def _untaken_names(self, reads: Sequence[tuple[DeadLetter, bool]]) -> set[str]:
        """Names of the messages if none was taken before."""
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
    return rabbitmq_death.parse(found, queue.name, queue.of), taken.redelivered


Seen = dict[str, DeadLetter]  # by what is the same whenever a message is read: what was read in it, without its bytes


@dataclass(slots=True)
class Pass:
    """Result of one pass over a mirrored queue."""

    new: list[NamedMessage] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)  # of those that were known
    present: set[str] = field(default_factory=set)  # names of those that lie there after it
    taken: set[str] = field(default_factory=set)
    expiring: int = 0  # those that have a time to live of their own
    first: str = ""  # of the first message, to know it again
    is_complete: bool = False  # the queue was seen to its end
    took_s: float = 0.0

    @property
    def signature(self) -> str:
        return hashlib.sha256("\n".join(sorted(self.present)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def mirror(
    wire: Wire, queue: DeadQueue, copies: Copies, known: Collection[str], wanted: Collection[str], seen: Seen
) -> Pass:
    """Read a classic queue from its head, and give all of it back but what is `wanted`.

    Raises as `Wire`, and as `Copies`.

    The caller records that those are out (`Pass.taken`): they are, whether the store takes that down or not.

    Of those that are `known` nothing is stored but what is `seen`, so that they are not read again while others wait
    for them.
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
        messages.close()  # a request now must not take an earlier answer for its own
        if out:
            _take(channel, queue.name, copies, out)
            done.taken = {name for _, name in out}
    finally:
        if wire.is_open:
            messages.close()
            channel.close()  # and all that was not acknowledged is in its place again
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
    """Acknowledge deliveries. They are out of their queue when this returns."""
    for tag in tags:
        channel.basic_ack(tag)
    channel.basic_qos(0, 0, False)  # says nothing, and is answered only after what came before it


def first_digest(wire: Wire, queue: str) -> str:
    """Digest of the first message in a classic queue; "" where it is empty."""
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
    """One queue being drained over one channel: what it gave out stays unacknowledged until it is filed."""

    queue: DeadQueue
    copies: Copies
    channel: Any
    numbering: Numbering
    left: list[str] = field(default_factory=list)  # too large to be stored in full: they stay
    fetched: list[Taken] = field(default_factory=list)  # and not named yet, as the store was away

    @classmethod
    def begin(cls, wire: Wire, queue: DeadQueue, copies: Copies) -> Drain:
        # A server that was killed brings back what was acknowledged just before.
        left_over = copies.taking(queue.name) | copies.recently_taken(queue.name, _COMES_BACK_S)
        return cls(queue, copies, wire.channel(), Numbering(copies, queue.name, left_over))

    @property
    def is_full(self) -> bool:
        """Return whether it holds the most messages too large to be stored, and reads no further."""
        return len(self.left) >= _DRAINED_AT_ONCE

    def batch(self) -> tuple[list[NamedMessage], list[tuple[int, str]]]:
        """Fetch the next dead letters; and those of them that are removed (tag, name) once they are filed."""
        if self.is_full:
            return [], []
        # What was fetched is ours until it is named, however often the store is away: given back, each time would count as a delivery.
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
        # Known before they are filed, and so before they can be acknowledged: who comes after us knows them again.
        self.copies.begin_taking(self.queue.name, [name for _, name in going])
        self.numbering, self.left, self.fetched = numbering, [*self.left, *left], []
        return named, going

    def acknowledge(self, going: Sequence[tuple[int, str]]) -> None:
        acknowledge(self.channel, [tag for tag, _ in going])


@dataclass(slots=True)
class Mirrored:
    """State of a mirrored queue, as this process knows it."""

    queue: DeadQueue
    filed: set[str] = field(default_factory=set)  # filed
    seen: Seen = field(default_factory=dict)
    waiting: list[NamedMessage] = field(default_factory=list)  # read, and not handed out yet
    present: set[str] | None = None  # after the last complete pass; None before the first
    signature: str = ""
    first: str = ""
    count: int = -1
    passed_at: float = -1e9  # monotonic
    not_before: float = -1e9
    probed_at: float = -1e9
    missing: set[str] = field(default_factory=set)  # not there any more, for an unknown reason
    baseline: int | None = None  # acknowledged out of the queue when nothing was missing
    ours: int = 0  # of these, what we took since
    took_at: float = -1e9  # monotonic: when we last took any
    missing_since: float = -1e9  # monotonic: start time
    expires: bool = False  # one of those that are there, or are missing, has a time to live of its own
    unread: int = 0  # lie deeper than a pass reaches
    went_off: bool = False  # the last pass did not see the end

    def forget(self) -> None:
        self.filed.clear()
        self.waiting.clear()
        self.signature, self.not_before, self.count = "", -1e9, -1

    def is_due(self, count: int, now: float) -> bool:
        """Return whether the queue may hold something else than it did."""
        if now < self.not_before:
            return False
        return count != self.count or self.went_off or (count > 0 and now - self.passed_at > AGAIN_S)

    def record_pass(self, done: Pass, count: int, now: float) -> None:
        """Take over the result of a pass.

        Holding costs those who consume here: it is a tenth of the time at most, half of it while there is much that is
        new.
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
        else:
            self.missing -= done.present
        self.expires = done.expiring > 0 or (expired and (bool(self.missing) or not done.is_complete))


_SHORT_S = 0.2  # unnoticeable
_COUNTED_S = 12.0  # RabbitMQ's statistics are some seconds old
_COUNTED_WITHIN_S = 60.0  # by then they are complete
AGAIN_S = 600.0  # a queue that seems unchanged is read in full all the same


def find_removed_by_others(queue: Mirrored, acknowledged: int, settings: Mapping[str, Any], now: float) -> set[str]:
    """Return the missing ones that were taken by someone else: RabbitMQ counts as many acknowledged by others, and
    drops none here."""
    if now - queue.took_at < _COUNTED_S:
        return set()
    by_others = acknowledged - (acknowledged if queue.baseline is None else queue.baseline) - queue.ours
    found: set[str] = set()
    if by_others < 0:  # statistics began again, and perhaps the queue: nothing is known of before
        queue.missing = set()
    elif queue.missing and (by_others < len(queue.missing) or queue.expires or dropping_setting(settings)):
        if now - queue.missing_since < _COUNTED_WITHIN_S:
            return set()  # not counted yet
        queue.missing = set()  # dropped or purged, and no evidence of what others acknowledge later
    elif queue.baseline is not None:
        found, queue.missing = queue.missing, set()
    queue.baseline, queue.ours = acknowledged, 0
    return found


def dropping_setting(settings: Mapping[str, Any]) -> str:
    """The setting by which RabbitMQ itself takes messages out of the queue; "" where there is none."""
    for name in ("message-ttl", "expires", "max-length", "max-length-bytes"):
        if settings.get(name) is not None:
            refuses_new = settings.get("overflow") in ("reject-publish", "reject-publish-dlx")
            if name in ("message-ttl", "expires") or not refuses_new:
                return f"{name} {settings[name]}"
    return ""
