"""The step of `watch` that sends: claims due items, passes them to a line that sends them, and records the results.

An item is claimed in SQL before it is sent and marked afterwards. A crash in between leaves a claim, and the next
holder of the replay's lease queries the source's ledger. So each job is sent once, or reported as uncertain.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.pacing import Bucket
from jobs_admin.models import Replay
from jobs_admin.models.replay import ENDED, SENDING, ReplayState
from jobs_admin.replays import claiming, send_results
from jobs_admin.replays.choosing import Choice, KeyRates, Lane, Limits
from jobs_admin.replays.claiming import LEASE_S, Claimed
from jobs_admin.replays.line import Line
from jobs_admin.replays.messages import Writer
from jobs_admin.replays.send_results import Batches
from jobs_admin.sources.base import Source, SourceError

log = logging.getLogger(__name__)

_ROUND_S = 0.1  # longest time until a pause takes effect
_AHEAD_S = 0.3  # items are claimed this early, so that a slow transaction delays no job
_MOST_AHEAD = 6_000  # limit for items due at the same time
# Sent items that are not marked yet. Marking is the most expensive work for the database, so it may lag: it costs some
# 15 MB of memory at most, and an unmarked claim needs a query of the ledger but loses nothing.
_MOST_BEHIND = 20_000
_TRY_AGAIN_S = 5.0  # longest wait before retrying an unreachable source
_SILENT_S = 0.5  # after that time without progress, the reason is shown
_CHECK_STOPPED_S = 2.0  # between checks for claims of dead senders in stopped replays

_STOPPED = (ReplayState.PAUSED, ReplayState.HELD, ReplayState.WAITING, ReplayState.CANCELLED, ReplayState.STOPPED)
_COLUMNS = (
    "key", "state", "pace", "rate", "edit", "patch", "attempts", "to_queue", "same_job_id", "may_send", "held_because",
    "total", "planned", "sent", "running", "cancelled", "without_groups",
)  # fmt: skip


@dataclass(slots=True)
class _ActiveReplay:
    """State of a replay that this process sends."""

    replay: Replay  # as last read
    writer: Writer
    line: Line
    leased_at: float  # by the monotonic clock, like all times here
    choice: Choice = field(default_factory=Choice)
    batches: Batches = field(default_factory=Batches)
    rates: KeyRates | None = None
    depths: dict[Lane, int] = field(default_factory=dict)  # waiting jobs of a capped queue, as last queried
    out: dict[int, Claimed] = field(default_factory=dict)  # claimed by this process and not marked: item id -> item
    went: deque[Claimed] = field(default_factory=deque)  # sent and not marked, in the order of sending
    # Claims of an earlier sender, or own claims with an unknown result, are settled before anything is sent.
    to_look_up: bool = True
    moved_at: float = -math.inf

    def forget(self, items: Sequence[Claimed]) -> None:
        for item in items:
            self.out.pop(item.pk, None)


@dataclass(slots=True)
class _Rest:
    """An unusable source, which is not called until a probe succeeds."""

    replay: str  # key of a replay that has jobs for the source
    until: float
    wait: float
    answers: bool = False
    knock: threading.Thread | None = None

    def probe(self, source: str, notify: Callable[[], None]) -> None:
        with contextlib.suppress(KeyError, SourceError):  # not configured or unreachable: it stays unused
            config.adapter(source).epoch(self.replay)
            self.answers = True
            notify()


class Sender:
    """Sender of the due items of all running replays. One per process; it keeps the token buckets."""

    def __init__(self, name: str) -> None:
        # Identifies the process: a pid alone may be reused.
        self.name = f"{name[:36]}/{os.getpid()}/{uuid.uuid4().hex[:8]}"[:64]
        self._active: dict[int, _ActiveReplay] = {}
        self._ending: dict[int, _ActiveReplay] = {}  # stopped during a call to their source
        self._resting: dict[str, _Rest] = {}  # by source
        self._news = threading.Event()
        self._checked_stopped_at = -math.inf
        self._clock = timezone.now(), time.monotonic()  # the same moment by both clocks

    def round(self, now: datetime | None = None) -> bool:
        """Send for a tenth of a second or less. Return True if there is more to send."""
        moment = now or timezone.now()
        self._clock = moment, time.monotonic()
        self._knock()
        running = list(Replay.objects.filter(state__in=SENDING, planned__gt=0).only(*_COLUMNS).order_by("pk"))
        try:
            for pk in self._active.keys() - {replay.pk for replay in running}:
                self._stop(pk, moment)
            self._settle_stopped(moment)
            for replay in running:
                self._serve(replay, moment)
            if (running or self._ending) and not self._is_behind():
                self._news.wait(_ROUND_S)
            self._news.clear()
            for active in self._active.values():
                self._mark(active, now or timezone.now())
            for pk in list(self._ending):
                self._end(pk, now or timezone.now())
        except BaseException:
            # Sent but unmarked items keep their claims: the next round, in this or another process, queries the
            # ledgers.
            self.close()
            raise
        return bool(running or self._ending)

    def _is_behind(self) -> bool:
        return any(active.went for active in (*self._active.values(), *self._ending.values()))

    def close(self) -> None:
        """Stop sending, and leave unmarked items to the next round."""
        self._ending |= self._active
        self._active = {}
        for active in self._ending.values():
            active.line.close()

    def _serve(self, replay: Replay, now: datetime) -> None:
        """Claim items due soon and pass them to the line."""
        active = self._hold(replay, now)
        if active is None:
            return
        if active.to_look_up:
            active.to_look_up = self._look_up_claims(replay, now, active)
        count = min(self._due(active), _MOST_BEHIND - len(active.out))
        if count <= 0:
            return
        room, why = _room(replay, len(active.out))
        if active.to_look_up and (why or replay.pace.get("per_key")):
            return  # the number in flight is unknown
        if room > 0:
            items = self._claim(active, min(count, room), now)
            if items:
                active.moved_at = time.monotonic()
                active.line.enqueue(items, active.rates)
                if not any(name in self._resting for name, _ in active.choice.full):
                    _write_reason(replay, "")
                return
            why = _waiting_reason(active)
        if why and not active.out and time.monotonic() - active.moved_at > _SILENT_S:
            _write_reason(replay, why)

    def _hold(self, replay: Replay, now: datetime) -> _ActiveReplay | None:
        """Take the replay's lease. Return None if another process sends it, or if a call of ours has not finished."""
        active, monotonic = self._active.get(replay.pk), time.monotonic()
        if active is None or monotonic - active.leased_at > LEASE_S / 2:
            if replay.pk in self._ending or not claiming.take_lease(replay, self.name, now):
                self._stop(replay.pk, now)
                return None
            if active is None:
                writer = Writer(replay)
                bucket = Bucket(replay.rate, monotonic, replay.pace.get("jitter") or 0.0)
                active = self._active[replay.pk] = _ActiveReplay(
                    replay, writer, Line(replay.key, writer, bucket, self._news.set), monotonic
                )
                active.line.start()
            active.leased_at = monotonic
            # The next sender waits longer than that.
            active.line.lease(monotonic + LEASE_S * 0.8)
        active.replay = replay
        jitter = replay.pace.get("jitter") or 0.0
        if (active.line.bucket.rate, active.line.bucket.jitter) != (replay.rate, jitter):
            with active.line.lock:
                active.line.bucket.change(replay.rate, monotonic, jitter)
        active.writer.priority = replay.pace.get("priority")
        rate = (replay.pace.get("per_key") or {}).get("rate")
        if (active.rates.rate if active.rates else None) != rate:
            active.rates = KeyRates(rate) if rate is not None else None
        return active

    def _due(self, active: _ActiveReplay) -> int:
        """Return how many items to claim now: those due soon and not on the line.

        Claims several at a time rather than one by one.
        """
        with active.line.lock:
            ahead = active.line.bucket.ahead(_AHEAD_S, time.monotonic())
            pending = active.line.pending
        wanted = min(ahead, _MOST_AHEAD)
        return wanted - pending if pending <= wanted / 2 else 0

    def _claim(self, active: _ActiveReplay, count: int, now: datetime) -> list[Claimed]:
        replay = active.replay
        chosen = active.choice.choose(replay, count, self._limits(active))
        gone = [item for item in chosen if not item.is_dead_still]
        reasons = {item.pk: f"not sent: the job is already {item.state}" for item in gone}
        active.choice.put_back(self._refuse(active, gone, reasons, now))
        going = [item for item in chosen if item.pk not in reasons]
        epochs = {name: epoch for name in {item.source for item in going} if (epoch := self._epoch(replay, name))}
        left = [item for item in going if item.source not in epochs]
        active.choice.put_back(left)
        going = [item for item in going if item.source in epochs]
        for item in going:
            item.job_id = active.writer.job_id(item)
        claimed = claiming.claim(replay, self.name, going, epochs, now) if going else []
        active.out.update((item.pk, item) for item in claimed)
        return claimed

    def _limits(self, active: _ActiveReplay) -> Limits:
        pace = active.replay.pace
        per_key, cap = pace.get("per_key") or {}, pace.get("queue_cap")
        return Limits(
            concurrency=per_key.get("concurrency"),
            rates=active.rates,
            out=Counter(item.key for item in active.out.values()) if per_key else Counter(),
            room=(lambda _: math.inf) if cap is None else partial(self._room_in, active, cap),
            resting=set(self._resting),
            queue=active.writer.queue,
            ahead_s=_AHEAD_S,
        )

    def _room_in(self, active: _ActiveReplay, cap: int, lane: Lane) -> float:
        """Return how many more jobs this queue accepts before it reaches its cap."""
        name, queue = lane
        source = self._source(active.replay, name)
        try:
            waiting = source.waiting([queue])[queue] if source else cap
        except SourceError as error:
            self._rest(active.replay, name, _retry_sentence(name, error))
            waiting = cap
        if waiting is None:
            return math.inf
        active.depths[lane] = waiting
        ours = sum((item.source, active.writer.queue(item)) == lane for item in active.out.values())
        return cap - waiting - ours

    # -- sources -----------------------------------------------------------------------------------------------

    def _source(self, replay: Replay, name: str) -> Source | None:
        """Return the source; None while it is unusable."""
        if name in self._resting:
            return None
        try:
            return config.adapter(name)
        except KeyError:
            why = f"{name} is not configured here (CELERY_BROKER_URL or REDRIVE_SOURCES), so its jobs wait."
        except SourceError as error:
            why = _retry_sentence(name, error)
        self._rest(replay, name, why)
        return None

    def _epoch(self, replay: Replay, name: str) -> str | None:
        """Return the epoch of the replay's ledger in the source; None while it cannot be queried."""
        if (source := self._source(replay, name)) is None:
            return None
        try:
            epoch = source.epoch(replay.key)
        except SourceError as error:
            self._rest(replay, name, _retry_sentence(name, error))
            return None
        return epoch

    def _rest(self, replay: Replay, source: str, why: str) -> None:
        before = self._resting.get(source)
        wait = min(_TRY_AGAIN_S, 2 * before.wait if before else 0.5)
        self._resting[source] = _Rest(replay.key, time.monotonic() + wait, wait)
        _write_reason(replay, why)

    def _knock(self) -> None:
        """Probe sources that have rested long enough, each in its own thread: one may hang and block all other jobs."""
        for source, rest in list(self._resting.items()):
            if rest.knock is None and time.monotonic() >= rest.until:
                rest.knock = threading.Thread(target=rest.probe, args=(source, self._news.set), daemon=True)
                rest.knock.start()
            elif rest.answers:
                del self._resting[source]
            elif rest.knock is not None and not rest.knock.is_alive():
                wait = min(_TRY_AGAIN_S, 2 * rest.wait)
                self._resting[source] = _Rest(rest.replay, time.monotonic() + wait, wait)

    # -- results -----------------------------------------------------------------------------------------------

    def _mark(self, active: _ActiveReplay, now: datetime) -> None:
        """Record the results of the line; of the sent items, as many as time allows."""
        ended, replay = active.line.collect(), active.replay
        active.went.extend(ended.sent)
        refused = [active.out[pk] for pk in ended.refused if pk in active.out]
        unknown = [*ended.unknown, *self._refuse(active, refused, ended.refused, now)]
        # Items claimed by an earlier sender may still be sent by it: their claims are settled again.
        unsent = [item for item in ended.unsent if not item.claim_epoch]
        unknown += [item for item in ended.unsent if item.claim_epoch]
        if unsent:
            send_results.mark_unsent(replay, [item.pk for item in unsent], now)
            active.choice.put_back(unsent)
        for items in (unsent, unknown, refused):
            active.forget(items)
        if unknown:
            active.to_look_up = True
        for source, why in ended.failed.items():
            log.warning("replay #%s: %d of unknown end: %s", replay.pk, len(ended.unknown), why)
            self._rest(replay, source, _retry_sentence(source, why))
        if active.line.error is not None and replay.pk in self._active:
            raise active.line.error
        self._mark_sent(active)

    def _refuse(
        self, active: _ActiveReplay, items: Sequence[Claimed], why: Mapping[int, str], now: datetime
    ) -> list[Claimed]:
        """Cancel these items, which are never sent.

        Those that a stalled sender may still send are first withheld by their source. Return those whose source does
        not answer, which are unchanged.
        """
        replay, left = active.replay, []
        returned: dict[str, list[Claimed]] = {}
        for item in items:
            if item.claim_epoch:
                item.job_id = active.writer.job_id(item)
                returned.setdefault(item.source, []).append(item)
        for name, some in returned.items():
            if not self._settle_claims(replay, name, some, now, withhold=True):
                left += some
        waiting = {item.pk for item in left}
        send_results.mark_refused(replay, {item.pk: why[item.pk] for item in items if item.pk not in waiting}, now)
        return left

    def _mark_sent(self, active: _ActiveReplay) -> None:
        (moment, then), begun = self._clock, time.monotonic()
        while active.went:
            part = [active.went.popleft() for _ in range(min(active.batches.size, len(active.went)))]
            # No item is marked as sent later than it was: it would count as an observation of another rate.
            send_results.mark_sent(
                active.replay, part, moment + timedelta(seconds=part[0].went_at - then), active.batches
            )
            active.forget(part)
            # Refilling a line that runs empty, and noticing a pause, take precedence.
            if time.monotonic() - begun > _ROUND_S or any(self._is_hungry(active) for active in self._active.values()):
                return

    def _is_hungry(self, active: _ActiveReplay) -> bool:
        out = len(active.out)
        return out < min(_MOST_BEHIND, active.replay.planned) and self._due(active) > 0

    def _stop(self, pk: int, now: datetime) -> None:
        """Stop sending a replay. A call in progress finishes first."""
        if active := self._active.pop(pk, None):
            active.line.close()
            self._ending[pk] = active
            self._end(pk, now)

    def _end(self, pk: int, now: datetime) -> None:
        active = self._ending[pk]
        active.line.join(_ROUND_S)
        if active.line.is_alive():
            return
        self._mark(active, now)
        if active.went:
            return
        del self._ending[pk]
        if not active.out and not active.to_look_up:
            # Nothing is left to settle.
            Replay.objects.filter(pk=pk, sender=self.name).update(sender="")

    # -- claims of earlier senders -----------------------------------------------------------------------------

    def _look_up_claims(self, replay: Replay, now: datetime, mine: _ActiveReplay | None = None) -> bool:
        """Settle claims with an unknown result. Return True while a source does not answer.

        `mine`: the state of this process; its items in flight are skipped.
        """
        by_source: dict[str, list[Claimed]] = {}
        writer = Writer(replay)
        for item in claiming.find_claimed(replay):
            if mine is None or item.pk not in mine.out:
                item.job_id = writer.job_id(item)
                by_source.setdefault(item.source, []).append(item)
        is_over = replay.state in ENDED
        answers = {
            name: self._settle_claims(replay, name, items, now, withhold=is_over) for name, items in by_source.items()
        }
        if mine is not None:
            mine.choice.put_back(item for items in by_source.values() for item in items)
        return not all(answers.values())

    def _settle_claims(self, replay: Replay, name: str, items: list[Claimed], now: datetime, *, withhold: bool) -> bool:
        """Return whether the source could be queried."""
        epoch, source = self._epoch(replay, name), self._source(replay, name)
        if epoch is None or source is None:
            return False
        try:
            send_results.settle_claims(replay, source, epoch, items, now, withhold=withhold)
        except SourceError as error:
            self._rest(replay, name, _retry_sentence(name, error))
            return False
        return True

    def _settle_stopped(self, now: datetime) -> None:
        """Settle claims that a dead sender left in a replay that has been paused or cancelled since."""
        monotonic = time.monotonic()
        if monotonic - self._checked_stopped_at < _CHECK_STOPPED_S:
            return
        self._checked_stopped_at = monotonic
        left = Replay.objects.filter(
            state__in=_STOPPED, planned__gt=0, sender_until__lt=now - timedelta(seconds=LEASE_S)
        ).exclude(sender="")
        for replay in left.exclude(pk__in=self._ending).only(*_COLUMNS):
            if not self._look_up_claims(replay, now):
                # Prevents scanning its planned items again, which may be a million.
                Replay.objects.filter(pk=replay.pk, sender_until__lt=now).update(sender="")


_senders: dict[tuple[str, int], Sender] = {}


def is_due() -> bool:
    """Return whether a replay has jobs to send, or claims that a dead sender may have left."""
    is_stopped = Q(state__in=_STOPPED) & ~Q(sender="")
    return Replay.objects.filter(Q(state__in=SENDING) | is_stopped, planned__gt=0).exists()


def send(sender: str, now: datetime | None = None) -> bool:
    """Send for a slice, as the step of `watch`. Return True if it is to be called again immediately."""
    mine = _senders.setdefault((sender, os.getpid()), Sender(sender))
    return mine.round(now)


def _room(replay: Replay, out: int) -> tuple[int, str]:
    """Return how many more jobs may be claimed, and what others wait for. `out`: own unmarked items."""
    rooms = []
    if replay.may_send is not None:
        went = replay.total - replay.planned - replay.cancelled
        left = replay.may_send - went - out
        rooms.append((left, "Waiting for the outcomes of sent jobs"))
    if (most := replay.pace.get("in_flight")) is not None:
        under_way = replay.sent + replay.running
        rooms.append((most - under_way - out, f"Waiting: {under_way:,} sent jobs have not ended (at most {most:,})"))
    return min(rooms, default=(2**31, ""))


def _waiting_reason(active: _ActiveReplay) -> str:
    """Return why no planned job may be sent, as a sentence; empty if unknown."""
    pace = active.replay.pace
    for (_, queue), waiting in active.depths.items():
        if waiting >= (cap := pace.get("queue_cap") or math.inf):
            return f"{queue} holds {waiting:,} already (cap {cap:,})"
    most = (pace.get("per_key") or {}).get("concurrency")
    if active.choice.waiting and most is not None:
        key, *others = active.choice.waiting
        more = f", and so for {len(others):,} more" if others else ""
        return f"Waiting: {most} of {most} jobs of {key} are running{more}"
    return ""


def _retry_sentence(source: str, what: object) -> str:
    return f"{source}: {what} Retrying automatically."


def _write_reason(replay: Replay, why: str) -> None:
    """Write the reason for a lack of progress on the replay's row; empty once it continues."""
    if replay.held_because != why:
        Replay.objects.filter(pk=replay.pk, state__in=SENDING).update(held_because=why)
        replay.held_because = why
