"""Dead-letter queues of Amazon SQS, of any producer: messages are drained into Redrive's tables, and replayed to their
source queue.

SQS has no read without a receive, which hides a message for a while and counts against its redrive policy. A message is
deleted after its report is filed: if the reader crashes in between, the message returns and gives the same report.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from os import getpid
from typing import Any

from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, Lineage
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
    Unread,
)
from jobs_admin.sources.celery import message as celery_message
from jobs_admin.sources.ledger import Border, Ledger, StoreLedger
from jobs_admin.sources.sqs import findings, messages, reports
from jobs_admin.sources.sqs.queues import DeadQueue, Found, Queues, QueueState, States
from jobs_admin.sources.sqs.sender import Entry, Sender
from jobs_admin.sources.sqs.settings import Settings
from jobs_admin.sources.sqs.wire import Denied, NoSuchQueue, Wire

log = logging.getLogger(__name__)

HIDDEN_S = 120  # a received message returns after this time, unless it is deleted
_RECEIVED_AT_ONCE = 10
_PAGE = 100
_PAGE_BYTES = 16_000_000
_PAGE_S = 10.0
_REFUSED_FOR_S = 600.0  # a queue that refuses deletes is not read for this time
_FRESH_S = 5.0  # findings reuse counts of this age
_PINGED_S = 10.0
_LONGEST_LIFE_S = 15 * 86_400  # SQS stores a message for 14 days at most

Received = dict[str, Any]  # a message in the form of the SDK


@dataclass(frozen=True, slots=True)
class _Page:
    """Received messages, hidden from other consumers."""

    queue: DeadQueue
    messages: list[Received]
    expires: float  # monotonic; after it SQS returns them to the queue


@dataclass(frozen=True, slots=True)
class _Receipt:
    queue: str
    handles: tuple[str, ...]  # of the reports, then of those that are unread
    expires: float


class SQS(StoreLedger):
    """A `sources.PulledSource`. Options: docs/sources/sqs.md."""

    can = Capabilities(edit=True, redirect=True, holds_dead=True)
    outcome_within_s = 3600.0

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable settings."""
        self._settings = Settings.from_source(given)
        self.name, self.every_s = given.name, self._settings.every_s
        self._store, self._prefix = given.store, given.store_prefix
        self._wire = Wire(given.name, self._settings.region, self._settings.endpoint_url)
        self._queues = Queues(self._wire, self._settings)
        self._ledger = Ledger(given.name, given.store, given.store_prefix)
        self._sender = Sender(self._wire, self._queues, self._ledger)
        self._sampled: tuple[float, States] = (-1e9, {})
        # Used by the pulling thread.
        self._turn = 0
        self._received: _Page | None = None  # received, not returned yet
        self._out: Pulled | None = None  # returned, not filed yet
        self._pid = getpid()
        self._paused: dict[str, tuple[float, str]] = {}  # queue -> end of its pause (monotonic), and reason
        self._refused: dict[str, str] = {}  # queue -> reason of the last refused receive
        self._left: dict[str, tuple[float, str]] = {}  # queue -> time until which messages left there are reported
        self._failing: dict[str, str] = {}  # of the last round; see `Pulled.failing`
        self._pinged_at = -1e9

    # Depth and health

    def depths(self) -> list[Depth]:
        """See `base.Source`. Dead letters count under their source queue if their queue has only one."""
        found = self._queues.find()
        states = self._sample()
        dead: dict[str, int | None] = {}
        for one in found.dead:
            home = one.of[0] if len(one.of) == 1 else one.name
            state, before = states[one.name], dead.get(home, 0)
            dead[home] = None if before is None or not isinstance(state, QueueState) else before + state.count
        live = {name: states[name] for name in found.queues}
        return [_depth(name, live.get(name), dead.get(name)) for name in sorted({*live, *dead})]

    def _sample(self) -> States:
        found = self._queues.find()
        self._sampled = (-1e9, {})
        states = self._queues.states([*found.queues, *(one.name for one in found.dead)])
        self._sampled = (time.monotonic(), states)
        return states

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        counts: dict[str, int | None] = {}
        for name, state in self._queues.states(queues).items():
            counts[name] = state.visible if isinstance(state, QueueState) else None if isinstance(state, Denied) else 0
        return counts

    def workers(self) -> dict[str, set[str]] | None:
        """Return None: SQS does not report consumers."""
        return None

    def findings(self) -> list[Finding]:
        """Return findings on settings that lose dead letters or prevent reading them. Raises SourceUnreachable."""
        at, states = self._sampled
        if time.monotonic() - at > _FRESH_S:
            states = self._sample()
        return findings.collect_findings(self._queues.find(), states, self._settings)

    # Reading dead letters

    def dead_letters(self, after: str) -> Pulled:
        """See `base.PulledSource`. A page that was not filed is returned again until its messages reappear in SQS."""
        if self._pid != getpid():  # forked: the pages are the parent process's
            self._out, self._received, self._pid = None, None, getpid()
        if self._out is not None and time.monotonic() < self._out.receipt.expires:
            return self._out
        self._out = None
        if self._settings.is_read_only:
            self._queues.ping()
            return Pulled([], after or "{}")
        found = self._queues.find()
        if self._received is None or time.monotonic() >= self._received.expires:
            self._received = self._receive(found)
        if (page := self._received) is None:
            return Pulled([], after or "{}", failing=self._failing)
        filed, unread, handles = self._reports(
            page, found
        )  # if the store is unreachable, the page stays for the next call
        receipt = _Receipt(page.queue.name, handles, page.expires)
        self._received = None
        self._out = Pulled(filed, after or "{}", True, receipt, unread=unread, failing=self._failing, is_divisible=True)
        return self._out

    def _receive(self, found: Found) -> _Page | None:
        """Receive the next page of one queue; None if all are empty. Record the queues that cannot be read."""
        states = self._queues.states(one.name for one in found.dead)
        unread = {name: why for name, state in states.items() if (why := self._why_unread(name, state))}
        page = None
        self._turn += 1  # start at another queue each time, so that a long one does not starve the rest
        for n in range(len(found.dead)):
            queue = found.dead[(self._turn + n) % len(found.dead)]
            if queue.name in unread:
                continue
            try:
                page = self._page(queue, states[queue.name])
            except SourceRefused as error:
                self._refused[queue.name] = str(error)
                continue
            self._refused.pop(queue.name, None)
            if page.messages:
                break
            page = None
        refused = {name: why for name, why in self._refused.items() if name in states}
        left = {name: why for name, (until, why) in self._left.items() if time.monotonic() < until}
        self._failing = {**found.unread, **refused, **left, **unread}
        return page

    def _why_unread(self, name: str, state: QueueState | SourceRefused) -> str:
        """Return why a dead-letter queue is not read; "" if it is."""
        if not isinstance(state, QueueState):
            return str(state)
        if self._queues.is_live(name, state):  # changed since discovery
            return f"{name} now has its own redrive policy."
        until, why = self._paused.get(name, (0.0, ""))
        return why if time.monotonic() < until else ""

    def _page(self, queue: DeadQueue, state: QueueState | SourceRefused) -> _Page:
        """Receive at most one page of a queue."""
        waiting = state.visible if isinstance(state, QueueState) else 0
        found: list[Received] = []
        begun, size = time.monotonic(), 0
        while len(found) < min(waiting, _PAGE) and size < _PAGE_BYTES and time.monotonic() - begun < _PAGE_S:
            try:
                some = self._wire.call(
                    "receive_message",
                    QueueUrl=self._queues.url(queue.name),
                    MaxNumberOfMessages=_RECEIVED_AT_ONCE,
                    VisibilityTimeout=HIDDEN_S,
                    WaitTimeSeconds=1,  # a short poll reads only some of SQS's servers
                    MessageSystemAttributeNames=["All"],
                    MessageAttributeNames=["All"],
                ).get("Messages", [])
            except SourceError:
                if not found:
                    raise
                break  # what was received is filed
            found += some
            size += sum(len(one.get("Body", "")) for one in some)
            if not some or queue.name.endswith(
                ".fifo"
            ):  # a FIFO queue returns no more of a group before these are deleted
                break
        return _Page(queue, found, begun + HIDDEN_S - _PAGE_S)

    def _reports(self, page: _Page, found: Found) -> tuple[list[Envelope], list[Unread], tuple[str, ...]]:
        now, dlq = time.time(), page.queue.name
        stored = [
            messages.from_sdk(one, dlq, reports.origin_of(one, page.queue, self._settings.is_aws))
            for one in page.messages
        ]
        lineages = self._own_lineages(stored)
        filed, unread, handles, unread_handles = [], [], [], []
        for message, one in zip(page.messages, stored, strict=True):
            try:
                receives = found.max_receives.get(one.queue)
                filed.append(reports.build_envelope(self.name, one, message, lineages.get(one.id), receives, now))
                handles.append(message["ReceiptHandle"])
            except Exception as error:  # one bad message does not stop the rest of the page
                unread.append(Unread.from_error(dlq, one.id, json.dumps(message, default=str).encode(), error))
                unread_handles.append(message["ReceiptHandle"])
        return filed, unread, (*handles, *unread_handles)

    def _own_lineages(self, stored: Sequence[messages.StoredMessage]) -> dict[str, Lineage]:
        """Return message id -> lineage of the replay that sent it.

        If a consumer copied a message, only the first copy has the lineage.
        """
        lineages = {one.id: lineage for one in stored if (lineage := reports.lineage_of(one)) is not None}
        if not lineages:
            return {}
        names = [keys.dead_letters(self.name, "run", str(one.sent_as), self._prefix) for one in lineages.values()]
        with Border.of_source(self.name, self._store) as client:
            pipe = client.pipeline()
            for name, message_id in zip(names, lineages, strict=True):
                pipe.set(name, message_id, nx=True, ex=_LONGEST_LIFE_S)
            pipe.mget(names)
            owners = [(owner or b"").decode() for owner in pipe.execute()[-1]]
        return {
            message_id: lineage
            for (message_id, lineage), owner in zip(lineages.items(), owners, strict=True)
            if owner == message_id
        }

    def confirm_filed(self, pulled: Pulled) -> None:
        """See `base.PulledSource`. Delete the filed messages in SQS."""
        self.confirm_in_part(pulled, ())

    def confirm_in_part(self, pulled: Pulled, left: Collection[int]) -> None:
        """See `base.DivisibleSource`.

        Messages left return to the queue; if nothing else was received, the queue is paused meanwhile.
        """
        receipt: _Receipt | None = pulled.receipt
        if receipt is None:
            return
        going = [handle for n, handle in enumerate(receipt.handles) if n not in left]
        if left:
            why = NO_ROOM.format(len(left))
            self._left[receipt.queue] = time.monotonic() + 2 * HIDDEN_S, why
            if not going:
                self._paused[receipt.queue] = time.monotonic() + HIDDEN_S, why
        try:
            for start in range(0, len(going), _RECEIVED_AT_ONCE):
                part = going[start : start + _RECEIVED_AT_ONCE]
                entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(part)]
                # A message that is not deleted returns and gives the same report.
                url = self._queues.url(receipt.queue)
                answer = self._wire.call("delete_message_batch", QueueUrl=url, Entries=entries)
                if failed := answer.get("Failed"):
                    text = (
                        f"{self._wire.where} did not delete {len(failed)} filed messages ({failed[0].get('Code', '')})."
                    )
                    self._pause(receipt.queue, HIDDEN_S, text)
        except NoSuchQueue as error:  # the queue was deleted in between
            log.warning("Filed dead letters of %s are not deleted: %s", receipt.queue, error)
        except SourceRefused as error:
            self._pause(receipt.queue, _REFUSED_FOR_S, str(error))
        if pulled is self._out:
            self._out = None

    def _pause(self, queue: str, seconds: float, why: str) -> None:
        log.warning("Filed dead letters of %s are not deleted: %s", queue, why)
        self._paused[queue] = time.monotonic() + seconds, f"{why} The messages return to the queue."

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        """See `base.PulledSource`. No changes: only Redrive has drained messages."""
        if time.monotonic() - self._pinged_at > _PINGED_S:
            self._queues.ping()
            self._pinged_at = time.monotonic()
        return JobChanges()

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """See `base.PulledSource`. Nothing to remove: drained messages are no longer in SQS."""
        return set()

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("SQS has no scheduled retries. Nothing was changed.")

    # Sending

    def epoch(self, replay: str) -> str:
        self._queues.ping()
        return self._ledger.epoch(replay)

    def send(self, replay: str, outgoing: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. Every message is built before the first is sent."""
        if self._settings.is_read_only:
            raise SourceRefused(f"{findings.READ_ONLY_TEXT} Nothing was sent.")
        ready: dict[int, Entry] = {}
        for one in outgoing:
            entry = messages.build_entry(self.name, one, reports.STRIPPED, self._queues.largest(one.queue))
            self._check_target(one, messages.unpack(one.raw))
            ready.setdefault(one.token, (one.queue, entry))
        return self._sender.send(replay, ready)

    def _check_target(self, one: OutgoingMessage, stored: messages.StoredMessage) -> None:
        """Raise SourceRefused for a queue that Redrive drains: a job sent there would be filed as dead again."""
        if one.queue == stored.dlq and not stored.queue:
            why = "is the dead-letter queue of the message, and its source queue is unknown. Choose a queue"
        elif (one.queue != stored.queue or one.queue in self._settings.dead) and one.queue in {
            dead.name for dead in self._queues.find().dead
        }:
            why = "is a dead-letter queue of this source, which Redrive drains. Choose another queue"
        else:
            return
        raise SourceRefused(f"{one.queue} {why}. Nothing was sent.", one.token)

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused("SQS cannot return a sent message: jobs that were sent will run. Nothing was changed.")

    # A stored message

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return messages.arguments(messages.unpack(raw).body)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        messages.edit_body(messages.unpack(raw).body, args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return reports.shown_headers(messages.unpack(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        return celery_message.is_chord_member(_celery_part(raw))

    def expires_at(self, raw: bytes) -> datetime | None:
        return celery_message.expires_at(_celery_part(raw))

    def close(self) -> None:
        self._wire.close()


def _depth(name: str, state: QueueState | SourceRefused | None, dead: int | None) -> Depth:
    if not isinstance(state, QueueState):
        return Depth(name, source_dead=dead)
    return Depth(name, state.visible, state.in_flight, state.delayed, dead)


def _celery_part(raw: bytes) -> bytes:
    """Return the Celery message in a stored message; b"" if there is none."""
    with suppress(SourceRefused):
        celery = messages.celery_bytes(messages.unpack(raw).body)
        return celery[0] if celery else b""
    return b""
