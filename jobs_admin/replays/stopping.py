"""Release of the jobs of a cancelled replay in batches: unsent jobs, and sent ones that no worker has fetched."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime

from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from jobs_admin import config
from jobs_admin.db.turns import lock_writers
from jobs_admin.models import Attempt, Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import ItemState
from jobs_admin.sources.base import SourceRefused, SourceUnreachable

_BATCH = 500  # items per write transaction: SQLite allows no other writer meanwhile
_AT_ONCE = 10_000  # created items cancelled per round: takes a second or less
_AGAIN_S = 60.0  # jobs in transit or with a worker may return to the queue
_UNREACHABLE_S = 5.0
_ROUND_S = 1.0  # for recalling
_RECALLED = "withdrawn from its queue before it ran"


def drop_planned(replay: Replay, now: datetime, most: int = _AT_ONCE) -> int:
    """Cancel unclaimed items of a replay that no longer sends; return their number.

    Stops at `most`, to be called again, so that a million items block neither the operator nor settling.

    Claimed items are in flight: the sender, or its successor, records whether they were sent. Items that an earlier
    sender had claimed and may still send (`send_results.mark_unsent`) are claimed again. May be interrupted and called
    again, also by two processes concurrently.
    """
    frozen, dropped = _drop_frozen(replay), 0
    unclaimed = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at=None)
    free = unclaimed.filter(claim_epoch="")
    with transaction.atomic():
        if unclaimed.exclude(claim_epoch="").update(claimed_at=now):
            # Claims are settled only for a sender with a name and an expired lease.
            Replay.objects.filter(pk=replay.pk, sender="").update(sender="nobody")
    while dropped < most and (ids := list(free.order_by("n").values_list("pk", flat=True)[:_BATCH])):
        with transaction.atomic():
            count = free.filter(pk__in=ids).update(state=ItemState.CANCELLED, settled_at=now)
            if count:
                _count_dropped(replay, count)
        dropped += len(ids)
    return frozen + dropped


def _drop_frozen(replay: Replay) -> int:
    """Delete frozen batches; individual outcomes are not recorded."""
    frozen = FrozenBatch.objects.filter(replay=replay)
    if not frozen.exists():
        return 0
    with transaction.atomic():
        # In the lock order of item creation: first the replay, then its batches.
        list(Replay.objects.select_for_update().filter(pk=replay.pk).only("pk"))
        count = frozen.aggregate(n=Sum("count"))["n"] or 0
        frozen.delete()
        _count_dropped(replay, count)
    return count


def _count_dropped(replay: Replay, count: int) -> None:
    Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, cancelled=F("cancelled") + count)


class _Recall:
    """Progress of this process in recalling the jobs that one replay sent."""

    def __init__(self, replay: Replay) -> None:
        self.planned = replay.planned  # its planned jobs at that time
        self.steps: Iterator[set[int]] | None = self._iter_recalled(replay)  # None: complete
        self.again_at = 0.0  # time of the next recall, by the monotonic clock
        self._wait_s = _AGAIN_S

    def _iter_recalled(self, replay: Replay) -> Iterator[set[int]]:
        for source, queues in _find_sent_queues(replay).items():
            try:
                adapter = config.adapter(source)
                if adapter.can.recall:
                    yield from adapter.recall(replay.key, sorted(queues))
            except (KeyError, SourceRefused):
                continue  # the source cannot recall; sent jobs continue
            except SourceUnreachable:
                self._wait_s = _UNREACHABLE_S

    def is_to_go_on(self, planned: int) -> bool:
        return self.steps is not None or self.planned != planned or time.monotonic() >= self.again_at

    def end(self) -> None:
        self.steps, self.again_at = None, time.monotonic() + self._wait_s


_recalls: dict[int, _Recall] = {}


def recall_sent(replay: Replay, now: datetime, within_s: float = _ROUND_S) -> bool:
    """Recall from the queues the sent jobs of a cancelled replay that no worker has fetched, if the source can.

    Stops when the time is up, to be called again: a million jobs block no other settling. Return True if some were
    recalled, or may still be.

    Recalled jobs are dead again, in the previous run. A source returns all jobs that it ever recalled, so this may be
    interrupted at any point and called again.
    """
    known = _recalls.pop(replay.pk, None)
    if not replay.sent:
        return False
    if known is not None and not known.is_to_go_on(replay.planned):
        _recalls[replay.pk] = known
        return False
    # Removed during the work: if a write fails, the next round starts over and gets all.
    recall = known if known is not None and known.steps is not None else _Recall(replay)
    ends, taken = time.monotonic() + within_s, 0
    for tokens in recall.steps or ():
        for start in range(0, len(tokens), _BATCH):
            taken += _write_recalled(replay, sorted(tokens)[start : start + _BATCH], now)
        if time.monotonic() >= ends:
            break
    else:
        recall.end()
    if len(_recalls) > 1_000:
        _recalls.clear()
    _recalls[replay.pk] = recall
    return bool(taken) or recall.steps is not None


def _find_sent_queues(replay: Replay) -> dict[str, set[str]]:
    """Return source -> the queues that an unsettled item was sent to."""
    sent = ReplayItem.objects.filter(replay=replay, state__in=(ItemState.SENT, ItemState.UNCERTAIN)).order_by()
    found: dict[str, set[str]] = defaultdict(set)
    for source, queue in sent.values_list("failure__source", "failure__queue").distinct():
        found[source].add(replay.to_queue or queue)
    return found


def _write_recalled(replay: Replay, items: Collection[int], now: datetime) -> int:
    with transaction.atomic():
        lock_writers()
        moved = {state: _cancel(replay, items, state, now) for state in (ItemState.SENT, ItemState.UNCERTAIN)}
        failures = [pk for pks in moved.values() for pk in pks]
        if not failures:
            return 0
        _mark_dead_again(replay, failures)
        Replay.objects.filter(pk=replay.pk).update(
            sent=F("sent") - len(moved[ItemState.SENT]),
            uncertain=F("uncertain") - len(moved[ItemState.UNCERTAIN]),
            cancelled=F("cancelled") + len(failures),
        )
    return len(failures)


def _cancel(replay: Replay, items: Collection[int], state: str, now: datetime) -> list[int]:
    """Cancel items in this state. Return their failures."""
    named = ", ".join(str(int(pk)) for pk in items)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {ReplayItem._meta.db_table} SET state = %s, settled_at = %s, outcome = %s "
            f"WHERE id IN ({named}) AND replay_id = %s AND state = %s RETURNING failure_id",
            [ItemState.CANCELLED, connection.ops.adapt_datetimefield_value(now), _RECALLED, replay.pk, state],
        )
        return [pk for (pk,) in cursor.fetchall()]


def _mark_dead_again(replay: Replay, failures: Collection[int]) -> None:
    """Return failures to the previous run, with the job id of that run, unless the run was reported."""
    item = ReplayItem.objects.filter(replay=replay, failure=OuterRef("pk")).values("run")[:1]
    before = Attempt.objects.filter(failure=OuterRef("pk"), run=OuterRef("run") - 1).order_by("-attempt", "-pk")
    theirs = Failure.objects.filter(pk__in=list(failures), run=Subquery(item))
    # If its source does not report how a job ends, the failure was gone, with that as its reason.
    theirs.filter(state=FailureState.GONE).update(
        state=FailureState.REPLAYING, reason=Coalesce(Subquery(before.values("reason")[:1]), Value(""))
    )
    theirs.filter(state=FailureState.REPLAYING).update(
        state=FailureState.DEAD,
        run=F("run") - 1,
        job_id=Coalesce(Subquery(before.values("job_id")[:1]), F("first_job_id")),
        due_at=None,
    )
