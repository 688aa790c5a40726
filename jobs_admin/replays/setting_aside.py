"""Groups that a replay excludes: reasons, cancelling of their planned jobs, and bringing them back.

As soon as a group's id is in `Replay.without_groups`, no job of it is claimed. `Replay.set_aside` has the reasons. The
group's planned items are cancelled some hundred at a time, which frees the jobs, and planned again when the group is
brought back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet, Sum

from jobs_admin import config
from jobs_admin.core.pacing import Evidence
from jobs_admin.db import turns
from jobs_admin.models import Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import AT_REST, OPEN_ITEM, RUN, ItemState
from jobs_admin.replays import claiming, freezing, send_results
from jobs_admin.replays.claiming import Claimed
from jobs_admin.replays.freezing import BEGUN
from jobs_admin.replays.messages import Writer
from jobs_admin.sources.base import SourceError, SourceUnreachable

_BATCH = 500  # items per write transaction, which blocks all other writers on SQLite
_CUT = 1_000  # items that an operator excludes by a search, per transaction and audit row
MOST_ASIDE = 500  # groups that one replay sets aside while it runs: its row has a note on each
_EXCLUDED, _MATCHED = "Excluded by ", ": matched "
SET_ASIDE = "Set aside with its group"  # prefix of its items' outcomes


def exclusion_outcome(by: str, search: str) -> str:
    """Return the outcome of an item that an operator excluded by a search."""
    return f"{_EXCLUDED}{by}{_MATCHED}{search}"


def without_search(outcome: str) -> str:
    """Return the outcome without the search that excluded its job, which may name things that a viewer may not see."""
    return outcome.partition(_MATCHED)[0] if outcome.startswith(_EXCLUDED) else outcome


def build_note(
    group: int, phase: str, code: str, reason: str, by: str, now: datetime, jobs: int | None = None
) -> dict[str, Any]:
    """Return the stored reason for excluding a group.

    `phase`: start or run. `jobs`: number excluded in the draft; None: unknown.
    """
    return {
        "group": group, "phase": phase, "code": code, "reason": reason, "by": by, "at": now.isoformat(), "jobs": jobs,
    }  # fmt: skip


def build_failing_note(because: Evidence, by: str, now: datetime) -> dict[str, Any]:
    """Return the stored reason why the controller sets a group aside."""
    assert isinstance(because.group, int)
    row = build_note(because.group, RUN, "failed_again", because.sentence(), by, now)
    return row | {"evidence": because.as_dict()}


def build_columns(
    replay: Replay, add: Iterable[dict[str, Any]] = (), remove: Collection[object] = ()
) -> dict[str, Any]:
    """Return the replay's columns after setting the groups `add` aside and bringing the groups `remove` back."""
    added = {row["group"]: row for row in add}
    notes = [row for row in replay.set_aside if row["group"] not in remove and row["group"] not in added]
    ids = {*replay.without_groups, *added} - set(remove)
    return {"without_groups": sorted(ids), "set_aside": [*notes, *added.values()]}


def apply(replay: Replay, done: dict[str, Any] | None, now: datetime) -> dict[str, Any] | None:
    """Cancel planned items of the groups set aside, and plan the cancelled items of groups brought back.

    Return the progress, to be passed to the next check. A claimed item is in flight; if it returns unsent, a later
    check cancels it, as it does items that their source must withhold first and has not. May be interrupted and called
    again, also by two processes concurrently.
    """
    before = set(done["groups"]) if done else set()
    if before - set(replay.without_groups):
        plan_again(replay, before - set(replay.without_groups))
    if not replay.without_groups:
        return None
    items = ReplayItem.objects.filter(replay=replay)
    last = items.aggregate(last=Max("n"))["last"] or 0
    from_n = done["to_n"] if done and done["groups"] == replay.without_groups else 0
    if last <= from_n:
        return done
    mine = items.filter(n__gt=from_n, n__lte=last, state=ItemState.PLANNED, failure__group__in=replay.without_groups)
    if not _cancel_groups(replay, mine, now):
        return done
    with suppress(SourceError):
        if _withhold(replay, mine, now) and not _cancel_groups(replay, mine, now):
            return done
    claimed = mine.order_by("n").values_list("n", flat=True).first()
    return {"groups": replay.without_groups, "to_n": last if claimed is None else claimed - 1}


def _cancel_groups(replay: Replay, mine: QuerySet[ReplayItem], now: datetime) -> bool:
    """Cancel items that no sender may send. Return False if groups were set aside or brought back meanwhile."""
    while ids := list(mine.filter(claimed_at=None, claim_epoch="").order_by("n").values_list("pk", flat=True)[:_BATCH]):
        with transaction.atomic():
            # Only if unchanged since it was read: a group brought back meanwhile is not cancelled again.
            as_read = Replay.objects.filter(pk=replay.pk, without_groups=replay.without_groups)
            if not as_read.select_for_update(no_key=True).only("pk"):
                return False
            _cancel(replay, ids, f"{SET_ASIDE}: the replay continues without it.", now)
    return True


def _withhold(replay: Replay, items: QuerySet[ReplayItem], now: datetime) -> bool:
    """Withhold these planned items where a stalled sender may still send them, so that they can be cancelled.

    Return whether there were any; items that were already sent are marked as sent. Raises SourceError.
    """
    pks = list(items.filter(claimed_at=None).exclude(claim_epoch="").values_list("pk", flat=True))
    by_source: dict[str, list[Claimed]] = {}
    writer = Writer(replay)
    for item in claiming.find_returned(replay, pks) if pks else ():
        item.job_id = writer.job_id(item)
        by_source.setdefault(item.source, []).append(item)
    for name, returned in by_source.items():
        try:
            source = config.adapter(name)
        except KeyError:
            raise SourceUnreachable(f"{name} is not configured here.") from None
        send_results.settle_claims(replay, source, source.epoch(replay.key), returned, now, withhold=True)
    return bool(pks)


def plan_again(replay: Replay, groups: Collection[int], most: int | None = None) -> int:
    """Plan the cancelled items of groups brought back, if their job is still dead and free. Return their number.

    Each gets a new id: a replay started meanwhile counts an item with an id from before its start as known to it.
    """
    mine = Q(replay=replay, state=ItemState.CANCELLED, sent_at=None, outcome__startswith=SET_ASIDE)
    open_items = ReplayItem.objects.filter(failure=OuterRef("failure"), state__in=OPEN_ITEM)
    free = ReplayItem.objects.filter(
        mine,
        ~Exists(open_items),
        failure__group__in=groups,
        failure__state=FailureState.DEAD,
        run=F("failure__run") + 1,
    )
    planned = 0
    while (most is None or planned < most) and (
        ids := list(free.order_by("n").values_list("pk", flat=True)[: min(_BATCH, most or _BATCH)])
    ):
        try:
            with transaction.atomic():
                # Locked first: an earlier cancel or end is seen here, a later one sees the planned items.
                if not Replay.objects.select_for_update().filter(pk=replay.pk, state__in=BEGUN).only("pk"):
                    return planned
                again = list(ReplayItem.objects.select_for_update().filter(mine, pk__in=ids).order_by("failure"))
                ReplayItem.objects.filter(pk__in=[item.pk for item in again]).delete()
                for item in again:
                    item.pk, item.state, item.settled_at, item.outcome = None, ItemState.PLANNED, None, ""
                count = len(ReplayItem.objects.bulk_create(again))
                Replay.objects.filter(pk=replay.pk).update(
                    planned=F("planned") + count, cancelled=F("cancelled") - count
                )
        except IntegrityError:
            continue  # another replay has just taken one of these jobs
        planned += count
    return planned


def is_any_claimed(replay: Replay, failures: Any) -> bool:
    """Return whether a sender has claimed an item of these failures."""
    claimed = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at__isnull=False)
    return claimed.filter(failure__in=failures).exists()


def exclude_jobs(
    replay: Replay, failures: Any, why: str, now: datetime, note: Callable[[int], None], within_s: float
) -> tuple[int, bool]:
    """Cancel planned jobs of these failures (a queryset), frozen or created.

    Return their number, and whether these are all.

    Each transaction cancels some hundred and calls `note` with their number; stops after `within_s`, or when the replay
    is no longer held or paused. Raises SourceError, with nothing cancelled, if a source has to withhold some first and
    does not answer.
    """
    ends, count = time.monotonic() + within_s, 0
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, failure__in=failures)
    _withhold(replay, planned, now)
    for cut in _split_into_cuts(replay, failures, why, now):
        began = time.monotonic()
        with transaction.atomic():
            # In the lock order of item creation: first the replay, then its batches.
            at_rest = Replay.objects.select_for_update(no_key=True).filter(pk=replay.pk, state__in=AT_REST)
            if not at_rest.only("pk"):
                return count, True
            if some := cut():
                note(some)
                count += some
        if time.monotonic() > ends:
            return count, False
        turns.rest(began)
    return count, True


def _split_into_cuts(replay: Replay, failures: Any, why: str, now: datetime) -> Iterator[Callable[[], int]]:
    """Yield steps that exclude these failures: each cancels some in the caller's transaction, returns their number."""
    frozen = FrozenBatch.objects.filter(replay=replay)
    for pk in list(frozen.order_by("first_n").values_list("pk", flat=True)):
        if (batch := frozen.filter(pk=pk).first()) and (gone := _matching_ids(batch, failures)):
            yield partial(_exclude_frozen, replay, batch, failures, gone)
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, failure__in=failures)
    mine = planned.filter(claimed_at=None, claim_epoch="")
    ids = list(mine.order_by("n").values_list("pk", flat=True))
    for start in range(0, len(ids), _CUT):
        yield partial(_cancel, replay, ids[start : start + _CUT], why, now)


def _matching_ids(batch: FrozenBatch, failures: Any) -> set[int]:
    return set(failures.filter(pk__in=freezing.unpack_ids(batch)).values_list("pk", flat=True))


def _exclude_frozen(replay: Replay, seen: FrozenBatch, failures: Any, gone: Collection[int]) -> int:
    batch = FrozenBatch.objects.filter(pk=seen.pk).first()
    if batch is None:
        return 0  # its items were created meanwhile and are searched
    if batch.count != seen.count:
        gone = _matching_ids(batch, failures)
    ids = freezing.unpack_ids(batch)
    if rest := [one for one in ids if one not in gone]:
        FrozenBatch.objects.filter(pk=batch.pk).update(count=len(rest), ids=freezing.pack_ids(rest))
    else:
        batch.delete()
    count = len(ids) - len(rest)
    _count_cancelled(replay, count)
    return count


def has_others(replay: Replay, groups: Collection[object]) -> bool:
    """Return whether a planned job died of an error outside these groups."""
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED)
    if planned.filter(Q(failure__group=None) | ~Q(failure__group__in=groups)).exists():
        return True
    left = FrozenBatch.objects.filter(replay=replay).aggregate(n=Sum("count"))["n"] or 0
    return bool(left) and any(
        Failure.objects.filter(pk__in=freezing.unpack_ids(batch)).filter(Q(group=None) | ~Q(group__in=groups)).exists()
        for batch in FrozenBatch.objects.filter(replay=replay).order_by("first_n").iterator()
    )


def _cancel(replay: Replay, ids: Sequence[int], why: str, now: datetime) -> int:
    with transaction.atomic():
        free = ReplayItem.objects.filter(pk__in=ids, state=ItemState.PLANNED, claimed_at=None, claim_epoch="")
        count = free.update(state=ItemState.CANCELLED, settled_at=now, outcome=why[:255])
        if count:
            _count_cancelled(replay, count)
    return count


def _count_cancelled(replay: Replay, count: int) -> None:
    Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, cancelled=F("cancelled") + count)
