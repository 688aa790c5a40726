"""Dead-letter queues of RabbitMQ, from any producer: read in place or drained, and replayed to their source queue.

Messages are published with the broker's confirmation, and recorded in Redrive's store before and after
(`amqp/sender.py`). RabbitMQ does not report how a job ended, unless it dies again: then its header identifies the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from os import getpid
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError

from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.amqp import fields as amqp_fields
from jobs_admin.sources.amqp import wire as amqp_reading
from jobs_admin.sources.amqp.management import Management, QueueState
from jobs_admin.sources.amqp.sender import Message, Sender, management
from jobs_admin.sources.amqp.wire import Blocked, Wire, Written
from jobs_admin.sources.base import (
    NO_ROOM,
    Capabilities,
    Depth,
    Finding,
    JobChanges,
    OutgoingMessage,
    Pulled,
    Ref,
    Rescheduled,
    SourceError,
    SourceRefused,
    SourceSettings,
    SourceUnreachable,
    Unread,
)
from jobs_admin.sources.ledger import Ledger, StoreLedger
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import findings as rabbitmq_findings
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from jobs_admin.sources.rabbitmq import reading
from jobs_admin.sources.rabbitmq import settings as rabbitmq_settings
from jobs_admin.sources.rabbitmq.copies import Copies, Owed
from jobs_admin.sources.rabbitmq.reading import DeadQueue, Drain, Mirrored

log = logging.getLogger(__name__)

_FOUND_FOR_S = 60.0
_HEAD_EVERY_S = 10.0
_COUNTED_EVERY_S, _COUNTED_AGAIN_S = 5.0, 30.0
_PAGE = 300
_PAGE_BYTES = 16_000_000
_MOST_GONE = 100_000
_LONGEST_SHOWN = 200  # characters of a queue's name
_MOST_PLACES = 100  # of at most 4,000 characters


@dataclass(frozen=True, slots=True)
class _Receipt:
    dlq: str
    named: tuple[reading.NamedMessage, ...] = ()  # of the reports, then of those that are unread
    drain: Drain | None = None
    going: tuple[tuple[int, str], ...] = ()


class RabbitMQ(StoreLedger):
    """A `sources.PulledSource`. Options: docs/sources/rabbitmq.md."""

    can = Capabilities(edit=True, redirect=True, remove=True, holds_dead=True)
    every_s = 2.0
    outcome_within_s = 3600.0

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options."""
        name, url = given.name, given.url
        self._settings = self._read_settings(given)
        self.name = name
        if all(one.is_drained for one in self._settings.dead) and (self._settings.dead or self._settings.is_drained):
            self.can = replace(type(self).can, remove=False)  # they are already removed
        self._queues = tuple(given.queues)
        self._ledger = Ledger(name, given.store, given.store_prefix)
        self._sender = Sender(name, url, self._settings.ssl, self._ledger, self._settings.confirm_within_s)
        self._management = management(name, url, self._settings.management_url)
        self._copies = Copies(name, given.store, given.store_prefix)
        self._lock = threading.Lock()
        self._found: tuple[float, tuple[DeadQueue, ...], frozenset[str]] | None = None
        self._dramatiq: tuple[str, ...] = ()  # discovered, and left to a source of their own
        self._known_at = -1e9  # monotonic: latest check that the server's version is known
        # Used by the pulling thread only.
        self._turn = 0
        self._reader: Wire | None = None
        self._reader_pid = getpid()
        self._mirrors: dict[str, Mirrored] = {}
        self._drains: dict[str, Drain] = {}
        self._out: Pulled | None = None  # returned and not yet filed
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._counted_at: dict[str, float] = {}
        self._acked: list[tuple[str, Collection[str]]] = []  # not yet recorded because the store was unavailable

    def _read_settings(self, given: SourceSettings) -> rabbitmq_settings.Settings:
        return rabbitmq_settings.Settings.from_options(given.name, given.options)

    # Depth and health

    def depths(self) -> list[Depth]:
        """See `base.Source`.

        Dead letters are counted without being fetched, under their source queue if they have only one.
        """
        dead, origins = self._dead_queues()
        with self._sender.wire() as wire:
            dlqs = {one.name for one in dead}
            names = sorted({*self._queues, *origins, *(one.of for one in dead if one.of)} - dlqs)
            # A missing queue is unknown: its name may be a mistake, and 0 would look healthy.
            counts = {name: wire.ready(name) for name in dlqs}
            waiting = {name: wire.ready(name) for name in names}
        unacknowledged = self._unacknowledged_counts(dlqs)
        there: dict[str, int | None] = {}
        for one in dead:
            count = counts[one.name]
            home = one.of or one.name
            before = there.get(home, 0)
            there[home] = (
                None if count is None or before is None else before + max(count, unacknowledged.get(one.name, 0))
            )
        return [
            Depth(
                name,
                waiting=waiting[name] if name in waiting else None if there[name] is None else 0,
                source_dead=there.get(name),
            )
            for name in sorted({*names, *there})
        ]

    def _unacknowledged_counts(self, dlqs: set[str]) -> dict[str, int]:
        try:
            return self._copies.unacknowledged_counts(dlqs)
        except (SourceUnreachable, SourceRefused):
            return {}

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        with self._sender.wire() as wire:
            return {queue: wire.depth(queue) for queue in queues}

    def workers(self) -> dict[str, set[str]] | None:
        """Return None: RabbitMQ knows connections, not workers."""
        return None

    def findings(self) -> list[Finding]:
        """Return settings that lose dead letters, or prevent Redrive from reading or sending them.

        Raises SourceUnreachable.
        """
        dead, _ = self._dead_queues()
        with self._bare() as wire:
            found = rabbitmq_findings.collect_findings(self.name, wire, dead, self._management, self._sender.where)
        is_searched = self._management is not None and not self._settings.dead
        return found + (rabbitmq_findings.unread_dramatiq(self._dramatiq) if is_searched else [])

    def _dead_queues(self) -> tuple[tuple[DeadQueue, ...], frozenset[str]]:
        """Return the dead-letter queues, and their source queues as far as known."""
        with self._lock:
            found = self._found
        if found is not None and time.monotonic() - found[0] < _FOUND_FOR_S:
            return found[1], found[2]
        dead, origins = self._settings.dead, frozenset(one.of for one in self._settings.dead if one.of)
        if self._management is not None:
            try:
                states = self._management.queues()
                seen = self._find_dead_queues(self._management, states)
            except SourceUnreachable:
                if not dead and found is None:
                    raise
                return (found[1], found[2]) if found else (dead, origins)
            of = {one.name: one.of for one in seen}
            dead = (
                tuple(one if one.of else DeadQueue(one.name, of.get(one.name, ""), one.is_drained) for one in dead)
                or seen
            )
            origins = frozenset(one.of for one in dead if one.of)
        with self._lock:
            self._found = (time.monotonic(), dead, origins)
        return dead, origins

    def _find_dead_queues(self, of: Management, states: Mapping[str, QueueState]) -> tuple[DeadQueue, ...]:
        self._dramatiq = rabbitmq_settings.dramatiq_queues(states)
        return rabbitmq_settings.find_dead_queues(states, of.bindings(), self._settings.is_drained)

    # Reading dead letters

    def dead_letters(self, after: str) -> Pulled:
        """See `base.PulledSource`. Pages that were not filed are returned again."""
        if after == "":
            for known in self._mirrors.values():
                known.forget()
            if self._out is not None and self._out.receipt.drain is None:
                self._out = None
        if self._out is not None:
            return self._out
        dead, _ = self._dead_queues()
        failing: dict[str, str] = {}
        with self._reading() as wire:
            self._note_acked()
            self._turn += 1  # start at another queue each time, so that an endless one does not starve the rest
            for n in range(len(dead)):
                queue = dead[(self._turn + n) % len(dead)]
                try:
                    page = self._drained(wire, queue, after) if queue.is_drained else self._mirrored(wire, queue, after)
                except AccessRefused:
                    failing[queue.name] = "this user may not read it"
                    continue
                except (AMQPError, OSError, Blocked, SourceError):
                    raise
                except Exception as error:  # one queue: the others are still read
                    log.error("The dead letters in %s cannot be read.", queue.name, exc_info=error)
                    failing[queue.name] = f"{type(error).__name__}: {error}"
                    continue
                if page is not None:
                    self._out = page
                    return page
                if (drain := self._drains.get(queue.name)) is not None and drain.why_left:
                    failing[queue.name] = drain.why_left
                elif (mirrored := self._mirrors.get(queue.name)) is not None and mirrored.unfiled:
                    failing[queue.name] = NO_ROOM.format(len(mirrored.unfiled))
        return Pulled([], after or "{}", failing=failing)

    def confirm_filed(self, pulled: Pulled) -> None:
        """See `base.PulledSource`. Drained messages are acknowledged now."""
        self.confirm_in_part(pulled, ())

    def confirm_in_part(self, pulled: Pulled, left: Collection[int]) -> None:
        """See `base.DivisibleSource`."""
        receipt: _Receipt | None = pulled.receipt
        if receipt is None or pulled is not self._out:
            return
        stay = {receipt.named[n].name: receipt.named[n] for n in left}
        if receipt.drain is not None and receipt.going:
            with self._reading():
                out = receipt.drain.acknowledge(receipt.going, stay)
            self._acked.append((receipt.dlq, out))
        elif receipt.dlq in self._mirrors:
            self._mirrors[receipt.dlq].record_filed((one.name for one in receipt.named), stay)
        self._out = None
        self._note_acked()

    def _out_of(self, dlq: str, names: Collection[str]) -> None:
        if names:
            self._acked.append((dlq, names))
            self._note_acked()

    def _note_acked(self) -> None:
        while self._acked:
            dlq, names = self._acked[0]
            self._copies.finish_taking(dlq, names)
            self._acked.pop(0)

    def _drained(self, wire: Wire, queue: DeadQueue, after: str) -> Pulled | None:
        drain = self._drains.get(queue.name)
        if rabbitmq_findings.why_unknown(wire, self._sender.where):
            return None
        if not wire.depth(queue.name) and (drain is None or not drain.has_more):
            return None
        if drain is None:
            if amqp_reading.read_settings(wire, queue.name).get("queue-type") == "stream":
                return None
            drain = self._drains[queue.name] = Drain.begin(wire, queue, self._copies)
        try:
            batch, going = drain.batch()
        except AccessRefused:
            self._drains.pop(queue.name).channel.close()
            raise
        if not batch:
            return None
        reports, unread, named = self._reports(batch, queue)
        receipt = _Receipt(queue.name, named, drain, tuple(going))
        return Pulled(reports, after or "{}", True, receipt, unread=unread, is_divisible=True)

    def _mirrored(self, wire: Wire, queue: DeadQueue, after: str) -> Pulled | None:
        known = self._mirrors.setdefault(queue.name, Mirrored(queue))
        if not known.waiting:
            self._scan(wire, known, after)
        if not known.waiting:
            is_filed = known.present is not None and not known.unfiled
            place = _signed(after, queue.name, known.signature) if is_filed else after
            if place != after:
                return Pulled([], place, True, _Receipt(queue.name))
            return None
        size = 0
        page: list[reading.NamedMessage] = []
        while known.waiting and len(page) < _PAGE and size < _PAGE_BYTES:
            page.append(known.waiting.pop(0))
            size += page[-1].size
        reports, unread, named = self._reports(page, queue)
        receipt = _Receipt(queue.name, named)
        return Pulled(reports, after or "{}", True, receipt, unread=unread, is_divisible=True)

    def _reports(
        self, named: Sequence[reading.NamedMessage], queue: DeadQueue
    ) -> tuple[list[Envelope], list[Unread], tuple[reading.NamedMessage, ...]]:
        """Return the reports, the unread ones, and the messages of both in this order."""
        now = time.time()
        reports, unread, of_reports, of_unread = [], [], [], []
        for one in named:
            try:
                reports.append(self._report(one, queue.name, now))
                of_reports.append(one)
            except Exception as error:  # one message of a page: the others are still read
                raw = one.read.found.properties + one.read.found.body
                unread.append(Unread.from_error(queue.name, one.job_id, raw, error))
                of_unread.append(one)
        return reports, unread, (*of_reports, *of_unread)

    def _report(self, one: reading.NamedMessage, dlq: str, now: float) -> Envelope:
        return rabbitmq_death.build_envelope(one.read, one.job_id, self.name, dlq, self._settings.words, now)

    def _scan(self, wire: Wire, known: Mirrored, after: str, wanted: Sequence[str] = ()) -> set[str]:
        """Read the queue if it may have changed, or if messages are to be removed. Return those removed."""
        queue, now = known.queue, time.monotonic()
        if now < known.not_before or (count := wire.depth(queue.name)) is None:
            self._explain(known)
            return set()
        self._leave_left_over(known)
        going = {*wanted, *self._paid(queue.name)}
        if known.present is not None:
            going &= known.present | known.missing
        is_due = known.is_due(count, now) or bool(going)
        if not is_due and not wanted and count and now - known.probed_at > _HEAD_EVERY_S:
            known.probed_at = now
            is_due = self._may_peek(wire, queue) and reading.first_digest(wire, queue.name) != known.first
        if not (is_due or (wanted and going)) or not self._may_peek(wire, queue):
            self._explain(known)
            return set()
        done = reading.mirror(wire, queue, self._copies, known.known_names(now), going, known.seen)
        known.record_pass(done, count, time.monotonic())
        known.probed_at = time.monotonic()
        self._out_of(queue.name, done.taken)
        if done.is_complete and not known.filed and done.signature == _signature(after, queue.name):
            known.filed, known.waiting = set(done.present), []  # an earlier reader filed all of them
        if done.is_complete:
            known.filed &= done.present
            self._copies.leave(queue.name, going - done.taken)
        for name in done.present:
            self._gone.pop(name.rpartition("|")[0], None)
        self._explain(known, at_once=True)
        return done.taken

    def _may_peek(self, wire: Wire, queue: DeadQueue) -> bool:
        """Return whether reading leaves the queue unchanged: a quorum queue counts each reading as a delivery, a
        classic one does not.
        """
        try:
            return rabbitmq_findings.queue_type(wire, queue.name, self._management) == "classic"
        except SourceUnreachable:
            return False

    def _leave_left_over(self, known: Mirrored) -> None:
        """Abandon removals that a dead process began: whether they happened is unknown, so no equal message is
        mistaken for them.
        """
        if known.present is None and (names := self._copies.taking(known.queue.name)):
            self._copies.leave(known.queue.name, names)

    def _paid(self, dlq: str) -> set[str]:
        """Return the names of copies whose replay is known to be sent."""
        by_replay: dict[str, dict[int, str]] = {}
        for name, owed in self._copies.owed(dlq).items():
            by_replay.setdefault(owed.replay, {})[owed.token] = name
        paid = set()
        for replay, names in by_replay.items():
            tokens = list(names)
            for start in range(0, len(tokens), 1000):
                paid |= {names[token] for token in self._ledger.was_sent(replay, tokens[start : start + 1000])}
        return paid

    def _explain(self, known: Mirrored, at_once: bool = False) -> None:
        """Find out whether others removed the missing messages."""
        now, dlq = time.monotonic(), known.queue.name
        if self._management is None or known.present is None:
            return
        is_needed = bool(known.missing) or known.baseline is None
        every_s = _COUNTED_EVERY_S if is_needed else _COUNTED_AGAIN_S
        if not (at_once and is_needed) and now - self._counted_at.get(dlq, -1e9) < every_s:
            return
        self._counted_at[dlq] = now
        with contextlib.suppress(SourceUnreachable):
            state = self._management.queue(dlq)
            names = reading.find_removed_by_others(known, state.acknowledged, state.settings, now)
            why = f"Removed from {dlq[:80]} by someone else: RabbitMQ counts it as acknowledged there."
            there = {name.rpartition("|")[0] for name in known.present}
            for job_id in {name.rpartition("|")[0] for name in names} - there:
                self._gone[job_id] = why
        while len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        """See `base.PulledSource`. Drained messages are never gone: only Redrive has them."""
        with self._reading() as wire:
            for known in list(self._mirrors.values())[:1]:
                wire.depth(known.queue.name)
        return JobChanges(gone={job: self._gone[job.job_id] for job in jobs if job.job_id in self._gone})

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """See `base.PulledSource`. Drained messages are already removed."""
        by_id = {job.job_id: job for job in jobs}
        self._refuse_unknown()
        found: set[Ref] = set()
        for known in self._mirrors.values():
            names = [name for name in known.present or () if name.rpartition("|")[0] in by_id]
            if not names:
                continue
            with self._reading() as wire:
                taken = self._scan(wire, known, "", names)
            found |= {by_id[name.rpartition("|")[0]] for name in taken if name.rpartition("|")[0] in by_id}
        return found

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("RabbitMQ knows no retries that wait. Nothing was changed.")

    # Sending

    def epoch(self, replay: str) -> str:
        return self._sender.epoch(replay)

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All messages are built before the first is sent; copies in a mirrored queue are
        removed afterwards.
        """
        ready: dict[int, Message] = {}
        owed: dict[str, dict[str, Owed]] = {}
        dead, _ = self._dead_queues()
        dlqs, drained = {one.name for one in dead}, {one.name for one in dead if one.is_drained}
        for outgoing in messages:
            message = self._build_message(outgoing)
            found = rabbitmq_messages.unpack(outgoing.raw)
            if outgoing.queue in dlqs or outgoing.queue == found.dlq:
                raise SourceRefused(
                    f"{outgoing.queue[:100]} is where dead letters lie, and which queue they came from is not known. Say it in "
                    f'sources.toml ({{name = "{outgoing.queue[:100]}", of = "…"}}), or choose a queue. Nothing was sent.',
                    outgoing.token,
                )
            # A failure stores only this much of a queue's name.
            queue = found.queue if outgoing.queue == found.queue[:_LONGEST_SHOWN] else outgoing.queue
            ready.setdefault(outgoing.token, (queue, message))
            owed.setdefault(found.dlq, {})[found.name] = Owed(replay, outgoing.token)
        self._refuse_unknown()
        for dlq in owed.keys() - drained:
            self._copies.add_owed(dlq, owed[dlq])
        try:
            return self._sender.send(replay, ready)
        except SourceUnreachable as error:
            if isinstance(error.__cause__, AccessRefused):
                raise SourceRefused(f"{self._sender.where} lets this user send nothing. Nothing was sent.") from error
            raise

    def _build_message(self, outgoing: OutgoingMessage) -> Written:
        return rabbitmq_messages.build_message(outgoing, self._settings.words.stripped)

    def _refuse_unknown(self) -> None:
        if time.monotonic() - self._known_at < _FOUND_FOR_S:
            return
        with self._bare() as wire:
            if why := rabbitmq_findings.why_unknown(wire, self._sender.where):
                raise SourceRefused(f"{why} Nothing was changed.")
        self._known_at = time.monotonic()

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused("RabbitMQ gives no message back by its name: what was sent runs. Nothing was changed.")

    # Messages

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        found = rabbitmq_messages.unpack(raw)
        return rabbitmq_messages.arguments(found.parts, found.body)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        rabbitmq_messages.edit_body(rabbitmq_messages.unpack(raw), args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        found = rabbitmq_messages.unpack(raw)
        try:
            headers = amqp_fields.decode(found.parts.get("headers", b"\0\0\0\0"))
        except amqp_fields.Malformed as error:
            raise SourceRefused("Its headers cannot be read.") from error
        return rabbitmq_death.shown_headers(found.parts, headers, self._settings.words)

    def is_chord_member(self, raw: bytes) -> bool:
        return False

    def expires_at(self, raw: bytes) -> datetime | None:
        return None

    def close(self) -> None:
        self._sender.close()
        self._forget_reader()

    # Connection of the pulling thread, which holds its unacknowledged messages.

    @contextmanager
    def _reading(self) -> Iterator[Wire]:
        if self._reader_pid != getpid():  # forked: the connection is the parent's
            self._reader, self._reader_pid = None, getpid()
            self._drains, self._out = {}, None
        with self._border(self._forget_reader):
            if self._reader is None:
                self._reader = self._sender.dial()
            yield self._reader

    @contextmanager
    def _bare(self) -> Iterator[Wire]:
        """Return a connection that was not checked by sending."""
        wires: list[Wire] = []
        try:
            with self._border(lambda: None):
                wires.append(self._sender.dial())
                yield wires[0]
        finally:
            for wire in wires:
                wire.close()

    @contextmanager
    def _border(self, broken: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except (AMQPError, OSError, Blocked) as error:
            broken()
            raise self._sender.unreachable(error) from error
        except (SourceUnreachable, SourceRefused):
            raise
        except BaseException:
            broken()
            raise

    def _forget_reader(self) -> None:
        if self._reader is not None and self._reader_pid == getpid():
            self._reader.close()
        self._reader = None
        self._drains = {}
        if self._out is not None and self._out.receipt.drain is not None:
            self._out = None  # RabbitMQ delivers it again


def _places(after: str) -> dict[str, str]:
    try:
        places = json.loads(after)
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in places.items()} if isinstance(places, dict) else {}


def _signature(after: str, dlq: str) -> str:
    return _places(after).get(_short(dlq), "")


def _signed(after: str, dlq: str, signature: str) -> str:
    """Return the cursor with the signature of a mirrored queue whose messages are all filed.

    It stores a hundred queues; messages of others are reported again after a restart.
    """
    places = _places(after)
    if len(places) >= _MOST_PLACES and _short(dlq) not in places:
        return after
    return after if places.get(_short(dlq)) == signature else json.dumps(places | {_short(dlq): signature})


def _short(dlq: str) -> str:
    return keys.short(dlq)[:8]
