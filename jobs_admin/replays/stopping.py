"""What a cancelled replay lets go: what it has not sent, and what it sent and nobody has fetched. Some hundred at a time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from jobs_admin import config
from jobs_admin.models import Attempt, Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import ItemState
from jobs_admin.sources.base import SourceRefused, SourceUnreachable

_BATCH = 500  # items of one write transaction: on SQLite nobody else writes meanwhile
_AT_ONCE = 10_000  # laid out items that one round cancels: a second or less
_AGAIN_S = 60.0  # what was on its way, or with a worker, may be back on the queue
_UNREACHABLE_S = 5.0
_TAKEN_BACK = "taken back from its queue: it did not run"


def drop_planned(replay: Replay, now: datetime, most: int = _AT_ONCE) -> int:
    """Cancel what nobody has claimed, of a replay that sends no more; how many. Stops where `most` are reached: to be
    called again, so that a million of them hold up neither who cancels nor what is settled meanwhile.

    Claimed ones are on their way: the sender, or who takes over from it, says whether they went. May be broken off and
    called again, also by two at once.
    """
    frozen, dropped = _drop_frozen(replay), 0
    free = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at=None)
    while dropped < most and (ids := list(free.order_by("n").values_list("pk", flat=True)[:_BATCH])):
        with transaction.atomic():
            count = free.filter(pk__in=ids).update(state=ItemState.CANCELLED, settled_at=now)
            if count:
                _count_dropped(replay, count)
        dropped += len(ids)
    return frozen + dropped


def _drop_frozen(replay: Replay) -> int:
    """What was not laid out yet: no row says what became of each."""
    frozen = FrozenBatch.objects.filter(replay=replay)
    if not frozen.exists():
        return 0
    with transaction.atomic():
        # In the order of who lays out: first the replay, then its batches.
        list(Replay.objects.select_for_update().filter(pk=replay.pk).only("pk"))
        count = frozen.aggregate(n=Sum("count"))["n"] or 0
        frozen.delete()
        _count_dropped(replay, count)
    return count


def _count_dropped(replay: Replay, count: int) -> None:
    Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, cancelled=F("cancelled") + count)


# What this process has asked: replay -> (what it had planned then, when to ask again by the monotonic clock).
_asked: dict[int, tuple[int, float]] = {}


def take_back(replay: Replay, now: datetime) -> int:
    """Take from the queues what a cancelled replay sent and nobody has fetched, where the source can; how many.

    Those jobs are dead again, in the run before. A source tells all that it ever took back, so this too may be broken
    off at any point and called again.
    """
    planned, at = _asked.get(replay.pk, (-1, 0.0))
    if not replay.sent or (planned == replay.planned and time.monotonic() < at):
        return 0
    wait_s, taken = _AGAIN_S, 0
    for source, queues in _sent_to(replay).items():
        try:
            adapter = config.adapter(source)
            tokens = adapter.recall(replay.key, sorted(queues)) if adapter.can.recall else set()
        except (KeyError, SourceRefused):
            continue  # it cannot; what was sent runs on
        except SourceUnreachable:
            wait_s = _UNREACHABLE_S
            continue
        waiting = sorted(tokens)
        for start in range(0, len(waiting), _BATCH):
            taken += _write_taken_back(replay, waiting[start : start + _BATCH], now)
    if len(_asked) > 1_000:
        _asked.clear()
    _asked[replay.pk] = (replay.planned, time.monotonic() + wait_s)
    return taken


def _sent_to(replay: Replay) -> dict[str, set[str]]:
    """source -> the queues that something on its way was sent to."""
    sent = ReplayItem.objects.filter(replay=replay, state__in=(ItemState.SENT, ItemState.UNCERTAIN)).order_by()
    found: dict[str, set[str]] = defaultdict(set)
    for source, queue in sent.values_list("failure__source", "failure__queue").distinct():
        found[source].add(replay.to_queue or queue)
    return found


def _write_taken_back(replay: Replay, items: Collection[int], now: datetime) -> int:
    with transaction.atomic():
        moved = {state: _cancel(replay, items, state, now) for state in (ItemState.SENT, ItemState.UNCERTAIN)}
        failures = [pk for pks in moved.values() for pk in pks]
        if not failures:
            return 0
        _die_again(replay, failures)
        Replay.objects.filter(pk=replay.pk).update(
            sent=F("sent") - len(moved[ItemState.SENT]),
            uncertain=F("uncertain") - len(moved[ItemState.UNCERTAIN]),
            cancelled=F("cancelled") + len(failures),
        )
    return len(failures)


def _cancel(replay: Replay, items: Collection[int], state: str, now: datetime) -> list[int]:
    """The failures of those that were in this state."""
    named = ", ".join(str(int(pk)) for pk in items)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {ReplayItem._meta.db_table} SET state = %s, settled_at = %s, outcome = %s "
            f"WHERE id IN ({named}) AND replay_id = %s AND state = %s RETURNING failure_id",
            [ItemState.CANCELLED, connection.ops.adapt_datetimefield_value(now), _TAKEN_BACK, replay.pk, state],
        )
        return [pk for (pk,) in cursor.fetchall()]


def _die_again(replay: Replay, failures: Collection[int]) -> None:
    """In the run before, under the id that the job had in it; unless the run has told how it went."""
    item = ReplayItem.objects.filter(replay=replay, failure=OuterRef("pk")).values("run")[:1]
    before = Attempt.objects.filter(failure=OuterRef("pk"), run=OuterRef("run") - 1).order_by("-attempt", "-pk")
    Failure.objects.filter(pk__in=list(failures), state=FailureState.REPLAYING, run=Subquery(item)).update(
        state=FailureState.DEAD,
        run=F("run") - 1,
        job_id=Coalesce(Subquery(before.values("job_id")[:1]), F("first_job_id")),
        due_at=None,
    )
