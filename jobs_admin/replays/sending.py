"""The step of `watch` that sends: claim, put on the queue, mark.

An item is claimed in SQL before it goes and marked after. Who dies in between leaves a claim; whoever holds the
replay next asks the source's ledger whether it went. So each goes once, or is said to be uncertain.
"""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from jobs_admin import config, filing
from jobs_admin.core.editing import EditRefused
from jobs_admin.core.pacing import Bucket
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import SENDING, ItemState, ReplayState
from jobs_admin.replays import letters
from jobs_admin.sources.base import Letter, Source, SourceError, SourceRefused, SourceUnreachable

log = logging.getLogger(__name__)

LEASE_S = 5.0
# What is claimed at once, and how long a pause may go unnoticed. So short because claiming and marking a slice must fit
# into the stall that the bucket forgives.
_SLICE_S = 0.1
_BATCH = 500
_TRY_AGAIN_S = 5.0  # the longest wait before an unreachable source is tried again

# Which process this is: a pid alone comes again.
_BOOT = uuid.uuid4().hex[:8]


@dataclass(slots=True)
class _Held:
    """What this process remembers of a replay that it sends."""

    bucket: Bucket
    # Claims of a sender before us, or of ours with an unknown end, are to be looked up before anything is sent.
    to_look_up: bool = True
    leased_at: float = 0.0  # by the monotonic clock
    # The sources of what is still planned, read anew now and then: it takes a look at every planned item.
    sources: list[str] = field(default_factory=list)
    sources_at: float = -math.inf

    def has_nothing_due(self, rate: float | None, now: float) -> bool:
        """True while our lease is young and no job may go soon: a slow replay costs no writing between its jobs."""
        fresh = now - self.leased_at < LEASE_S / 2
        return fresh and not self.to_look_up and self.bucket.rate == rate and not self.bucket.ahead(_SLICE_S, now)


@dataclass(slots=True)
class _Batch:
    """Claimed items of one replay and one source."""

    replay: Replay
    held: _Held
    source: Source
    until: float  # when our lease ends, by the monotonic clock
    pending: list[Letter]
    sent: list[int] = field(default_factory=list)  # item ids
    refused: dict[int, str] = field(default_factory=dict)
    unknown: bool = False

    def send(self, count: int) -> None:
        letters_, self.pending = self.pending[:count], self.pending[count:]
        while letters_:
            try:
                self.source.send(self.replay.key, letters_)
            except SourceRefused as error:
                blamed = [x for x in letters_ if error.token is None or x.token == error.token]
                self.refused |= {x.token: str(error) for x in blamed}
                letters_ = [x for x in letters_ if x.token not in self.refused]
                continue
            self.sent += [x.token for x in letters_]
            return


class Sender:
    """Sends what is due of all running replays. One in each process; keeps what its buckets have let through."""

    def __init__(self, name: str) -> None:
        self.name = f"{name[:36]}/{os.getpid()}/{_BOOT}"[:64]
        self._held: dict[int, _Held] = {}
        self._resting: dict[str, tuple[float, float, str]] = {}  # source -> (until, last wait, why)

    def round(self, now: datetime | None = None) -> bool:
        """One slice of a tenth of a second or two. True when there is more to send."""
        running = list(Replay.objects.filter(state__in=SENDING, planned__gt=0).order_by("pk"))
        self._look_after_stopped(now)
        for pk in self._held.keys() - {replay.pk for replay in running}:
            del self._held[pk]
        batches = [batch for replay in running for batch in self._claim(replay, now or timezone.now())]
        try:
            self._send_paced(batches)
        finally:
            for batch in batches:
                mark(batch.replay, batch.sent, batch.refused, [x.token for x in batch.pending], batch.unknown, now)
        if not batches and running:
            time.sleep(min(_SLICE_S, self._until_next(running)))
        return bool(running)

    def _until_next(self, running: Sequence[Replay]) -> float:
        now = time.monotonic()
        waits = [self._held[r.pk].bucket.wait(now) for r in running if r.pk in self._held]
        # At least a little: a replay that another process sends, or whose source rests, must not make us spin.
        return max(0.02, min(waits, default=_SLICE_S)) if not self._resting else _SLICE_S

    def _send_paced(self, batches: list[_Batch]) -> None:
        ends = time.monotonic() + 2 * _SLICE_S
        while any(batch.pending and not batch.unknown for batch in batches):
            now = time.monotonic()
            if now > ends:
                return
            wait = _SLICE_S
            for batch in batches:
                if not batch.pending or batch.unknown or now > batch.until:
                    continue
                if count := batch.held.bucket.take(min(len(batch.pending), _BATCH), now):
                    self._try(batch, count)
                wait = min(wait, batch.held.bucket.wait(now) if batch.pending else _SLICE_S)
            if all(now > batch.until for batch in batches if batch.pending):
                return
            if any(batch.pending and not batch.unknown for batch in batches):
                # A floor of some ms: at high rates a few jobs go at a time rather than one call for each.
                time.sleep(max(wait, 0.004) if wait else 0)

    def _try(self, batch: _Batch, count: int) -> None:
        tried = batch.pending[:count]
        try:
            batch.send(count)
        except SourceError as error:
            # Whether they went is not known; their claims stand, and the ledger is asked when it answers again.
            batch.unknown = batch.held.to_look_up = True
            gone = set(batch.sent) | set(batch.refused)
            batch.pending = [x for x in batch.pending if x not in tried]
            log.warning("replay #%s: %s of unknown end: %s", batch.replay.pk, len(set(tried)) - len(gone), error)
            self._rest(batch.source.name, str(error))
            _say(batch.replay, f"{batch.source.name}: {error} Trying again by itself.")
        else:
            if batch.replay.held_because:
                _say(batch.replay, "")

    def _rest(self, source: str, why: str) -> None:
        wait = min(_TRY_AGAIN_S, 2 * self._resting.get(source, (0, 0.25, ""))[1])
        self._resting[source] = (time.monotonic() + wait, wait, why)

    def _answers(self, replay: Replay, name: str) -> tuple[Source, str] | None:
        """The source and the epoch of the replay's ledger there; None while it cannot be used."""
        if name in self._resting and time.monotonic() < self._resting[name][0]:
            return None
        try:
            source = config.adapter(name)
            epoch = source.epoch(replay.key)
        except KeyError:
            why = f"{name} is not configured here (CELERY_BROKER_URL or REDRIVE_SOURCES), so its jobs wait."
        except SourceError as error:
            why = f"{name}: {error} Trying again by itself."
        else:
            self._resting.pop(name, None)
            return source, epoch
        self._rest(name, why)
        _say(replay, why)
        return None

    def _claim(self, replay: Replay, now: datetime) -> list[_Batch]:
        """Take what will be due within a slice. Empty when somebody else has the replay, or nothing is due."""
        monotonic = time.monotonic()
        held = self._held.get(replay.pk)
        if held is not None and held.has_nothing_due(replay.rate, monotonic):
            return []
        if not take_lease(replay, self.name, now):
            self._held.pop(replay.pk, None)
            return []
        if held is None:
            held = self._held[replay.pk] = _Held(Bucket(replay.rate, monotonic))
        elif held.bucket.rate != replay.rate:
            held.bucket.change(replay.rate, monotonic)
        held.leased_at = monotonic
        if held.to_look_up:
            held.to_look_up = self._look_up_claims(replay, now)
        count = min(held.bucket.ahead(_SLICE_S, monotonic), _BATCH)
        if not count:
            return []
        if monotonic - held.sources_at > LEASE_S:
            held.sources, held.sources_at = _sources(replay), monotonic
        usable = {}
        for name in held.sources:
            if answer := self._answers(replay, name):
                usable[name] = answer
        if not usable:
            return []
        epochs = {name: epoch for name, (_, epoch) in usable.items()}
        claimed = claim(replay, self.name, count, epochs, now, only_these=len(usable) < len(held.sources))
        by_source = defaultdict(list)
        refused: dict[int, str] = {}
        payloads = letters.payloads_for(claimed)
        for item in claimed:
            try:
                ready = letters.letter(replay, item, payloads.get(item.failure_id))
            except (SourceRefused, EditRefused) as error:
                refused[item.pk] = str(error)
            else:
                by_source[item.failure.source].append(ready)
        if refused:
            mark(replay, [], refused, [], False, now)
        return [
            _Batch(replay, held, usable[name][0], monotonic + LEASE_S * 0.8, ready) for name, ready in by_source.items()
        ]

    def _look_up_claims(self, replay: Replay, now: datetime) -> bool:
        """Settle claims whose end is unknown. True while some source does not answer."""
        left = False
        stale = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at__isnull=False)
        by_source = defaultdict(list)
        for item in stale.select_related("failure").order_by("n"):
            by_source[item.failure.source].append(item)
        for name, items in by_source.items():
            answer = self._answers(replay, name)
            if answer is None:
                left = True
                continue
            source, epoch = answer
            known = [item for item in items if item.claim_epoch == epoch]
            try:
                sent = source.was_sent(replay.key, [item.pk for item in known])
            except SourceUnreachable as error:
                self._rest(name, str(error))
                left = True
                continue
            mark(replay, sorted(sent), {}, [item.pk for item in known if item.pk not in sent], False, now)
            lost = [item.pk for item in items if item.claim_epoch != epoch]
            if lost:
                doubt(replay, lost, "The ledger was lost while it was being sent: whether it went is not known.", now)
        return left

    def _look_after_stopped(self, now: datetime | None) -> None:
        """Claims that a dead sender left in a replay that was paused or cancelled since."""
        moment = now or timezone.now()
        left = ReplayItem.objects.filter(
            replay__state__in=(ReplayState.PAUSED, ReplayState.HELD, ReplayState.CANCELLED, ReplayState.STOPPED),
            replay__planned__gt=0,
            state=ItemState.PLANNED,
            claimed_at__lt=moment - timedelta(seconds=2 * LEASE_S),
        )
        stopped = Replay.objects.exclude(state__in=SENDING).filter(planned__gt=0, sender_until__lt=moment)
        for replay in stopped.filter(pk__in=left.values("replay")):
            self._look_up_claims(replay, moment)


_senders: dict[tuple[str, int], Sender] = {}


def send(sender: str, now: datetime | None = None) -> bool:
    """The step of `watch`: send for a slice. True when it is to be called again at once."""
    mine = _senders.setdefault((sender, os.getpid()), Sender(sender))
    return mine.round(now)


def take_lease(replay: Replay, sender: str, now: datetime) -> bool:
    """Be the one that sends this replay for LEASE_S seconds. False when another one is, or it is not running."""
    free = Q(sender=sender) | Q(sender="") | Q(sender_until__isnull=True) | Q(sender_until__lt=now)
    return bool(
        Replay.objects.filter(free, pk=replay.pk, state__in=SENDING).update(
            sender=sender, sender_until=now + timedelta(seconds=LEASE_S)
        )
    )


def claim(
    replay: Replay, sender: str, count: int, epochs: dict[str, str], now: datetime, *, only_these: bool = False
) -> list[ReplayItem]:
    """The next items, marked as on their way. Those whose failure is no longer dead are cancelled instead.

    `epochs`: source -> epoch of its ledger. With `only_these`, items of other sources are left for later.
    """
    with transaction.atomic():
        # Locked, so that a pause or cancel that comes now waits for the claim, and then finds it. (SQLite's write
        # transactions are serial anyway, and Django leaves the lock out there.)
        if not Replay.objects.select_for_update().filter(pk=replay.pk, state__in=SENDING, sender=sender):
            return []
        free = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at=None)
        if only_these:
            free = free.filter(failure__source__in=list(epochs))
        shown = ("failure__args", "failure__kwargs") if replay.edit is None else ()
        items = list(free.select_related("failure").defer(*_HEAVY, *shown).order_by("n")[:count])
        going, stale = [], {}
        for item in items:
            failure = item.failure
            if failure.state == FailureState.DEAD and failure.run == item.run - 1:
                item.job_id = letters.new_job_id(replay, item.n)
                item.claimed_at = now
                item.claim_epoch = epochs[failure.source]
                going.append(item)
            else:
                stale[item.pk] = f"not sent: it is {failure.state} meanwhile"
        _write_claims(going, now)
    if stale:
        mark(replay, [], stale, [], False, now)
    return going


_HEAVY = (
    "failure__message", "failure__headers", "failure__reason", "failure__worker", "failure__host",
)  # fmt: skip


def _write_claims(items: list[ReplayItem], now: datetime) -> None:
    if not items:
        return
    rows = ", ".join(["(%s, %s, %s)"] * len(items))
    parameters: list[object] = [connection.ops.adapt_datetimefield_value(now)]
    for item in items:
        parameters += [item.pk, item.job_id, item.claim_epoch]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {ReplayItem._meta.db_table} SET claimed_at = %s, job_id = v.column2, claim_epoch = v.column3 "
            f"FROM (VALUES {rows}) AS v WHERE id = v.column1",
            parameters,
        )


def mark(
    replay: Replay,
    sent: Sequence[int],
    refused: dict[int, str],
    unsent: Sequence[int],
    unknown: bool,
    now: datetime | None = None,
) -> None:
    """Write down how a batch ended, in one transaction: items, failures, the replay's counts and the queue's.

    `refused` is never sent: its item ends as cancelled with the reason, its failure stays dead and free. `unsent` goes
    back to be claimed again. With `unknown`, what is in none of the three keeps its claim.
    """
    if not (sent or refused or unsent):
        return
    now = now or timezone.now()
    with transaction.atomic():
        planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED)
        gone = _mark_sent(replay, sent, now) if sent else 0
        dropped = 0
        for pk, why in refused.items():
            dropped += planned.filter(pk=pk).update(state=ItemState.CANCELLED, settled_at=now, outcome=why[:255])
        if unsent:
            over = Replay.objects.filter(pk=replay.pk, state__in=(ReplayState.CANCELLED, ReplayState.STOPPED))
            back = planned.filter(pk__in=unsent)
            if over.exists():
                dropped += back.update(state=ItemState.CANCELLED, settled_at=now, claimed_at=None)
            else:
                back.update(claimed_at=None, claim_epoch="")
        if gone or dropped:
            Replay.objects.filter(pk=replay.pk).update(
                planned=F("planned") - gone - dropped, sent=F("sent") + gone, cancelled=F("cancelled") + dropped
            )


def _mark_sent(replay: Replay, sent: Sequence[int], now: datetime) -> int:
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, pk__in=sent)
    # Read before they change: those marked already by who took over from us are counted there.
    queues = defaultdict(int)
    for source, queue in planned.values_list("failure__source", "failure__queue"):
        queues[source, queue] += 1
    count = planned.update(state=ItemState.SENT, sent_at=now)
    _mark_replaying(replay, sent, ItemState.SENT)
    for (source, queue), n in sorted(queues.items()):
        _count_sent(source, queue, n, now)
    return count


def _mark_replaying(replay: Replay, items: Sequence[int], state: str) -> None:
    """Their failures are in the new run, unless ingest has already heard how that run ended."""
    item = ReplayItem.objects.filter(failure=OuterRef("pk"), replay=replay, pk__in=items, state=state)
    failures = ReplayItem.objects.filter(pk__in=items, replay=replay, state=state)
    Failure.objects.filter(
        pk__in=failures.values("failure"),
        state=FailureState.DEAD,
        run=Subquery(item.values(before=F("run") - 1)[:1]),
    ).update(state=FailureState.REPLAYING, run=F("run") + 1, job_id=Subquery(item.values("job_id")[:1]), due_at=None)


def _count_sent(source: str, queue: str, n: int, now: datetime) -> None:
    filing.count_queues({(source, queue, now): {"sent": n}})


def doubt(replay: Replay, items: Sequence[int], why: str, now: datetime) -> None:
    """These may have been sent, and may not. A person settles them; no machine sends them again."""
    with transaction.atomic():
        planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, pk__in=items)
        count = planned.update(state=ItemState.UNCERTAIN, sent_at=now, outcome=why[:255])
        _mark_replaying(replay, items, ItemState.UNCERTAIN)
        Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, uncertain=F("uncertain") + count)


def _sources(replay: Replay) -> list[str]:
    found = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED).order_by()
    return sorted(found.values_list("failure__source", flat=True).distinct())


def _say(replay: Replay, why: str) -> None:
    """Tell on the replay's page why nothing moves; empty when it moves again."""
    if replay.held_because != why:
        Replay.objects.filter(pk=replay.pk, state__in=SENDING).update(held_because=why)
        replay.held_because = why
