"""Groups that a replay excludes: why each is set aside, cancelling its planned jobs, and bringing them back.

`Replay.without_groups` has their ids, and no job of them is claimed from the moment they stand there. `Replay.set_aside`
says why. Their planned items are cancelled some hundred at a time, so that the jobs are free, and planned again when the
group is brought back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Max, OuterRef, Q, Sum

from jobs_admin.core.pacing import Evidence
from jobs_admin.models import Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM, ItemState
from jobs_admin.replays import freezing
from jobs_admin.replays.laying import BEGUN
from jobs_admin.replays.options import RUN

_BATCH = 500  # items of one write transaction, which blocks all other writers on SQLite
_EXCLUDED, _MATCHED = "Excluded by ", ": matched "
SET_ASIDE = "Set aside with its group"  # how the outcome of its items begins


def excluded(by: str, search: str) -> str:
    """Return the outcome of an item that an operator excluded by a search."""
    return f"{_EXCLUDED}{by}{_MATCHED}{search}"


def without_search(outcome: str) -> str:
    """Return the outcome without the search that excluded its job, which may name what a viewer does not see."""
    return outcome.partition(_MATCHED)[0] if outcome.startswith(_EXCLUDED) else outcome


def note(
    group: int, phase: str, code: str, reason: str, by: str, now: datetime, jobs: int | None = None
) -> dict[str, Any]:
    """Return the stored reason for excluding a group. `phase`: start or run. `jobs`: number excluded in the draft; None: not known."""
    return {
        "group": group, "phase": phase, "code": code, "reason": reason, "by": by, "at": now.isoformat(), "jobs": jobs,
    }  # fmt: skip


def failing(because: Evidence, by: str, now: datetime) -> dict[str, Any]:
    """Return the stored reason why the controller sets a group aside."""
    assert isinstance(because.group, int)
    told = note(because.group, RUN, "failed_again", because.sentence(), by, now)
    return told | {"evidence": because.as_dict()}


def columns(replay: Replay, add: Iterable[dict[str, Any]] = (), remove: Collection[object] = ()) -> dict[str, Any]:
    """Return the replay's columns with the groups `add` set aside and the groups `remove` brought back."""
    added = {row["group"]: row for row in add}
    notes = [row for row in replay.set_aside if row["group"] not in remove and row["group"] not in added]
    ids = {*replay.without_groups, *added} - set(remove)
    return {"without_groups": sorted(ids), "set_aside": [*notes, *added.values()]}


def carry_out(replay: Replay, done: dict[str, Any] | None, now: datetime) -> dict[str, Any] | None:
    """Cancel what is planned of the groups set aside, and plan what was cancelled of those brought back. Answers how far
    that is done, which the next look hands back.

    What a sender has claimed is on its way; should that come back unsent, it is found by a later look. May be broken
    off and called again, also by two at once.
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
    while ids := list(mine.filter(claimed_at=None).order_by("n").values_list("pk", flat=True)[:_BATCH]):
        with transaction.atomic():
            # As it was read: a group that was brought back meanwhile is not cancelled again.
            as_read = Replay.objects.filter(pk=replay.pk, without_groups=replay.without_groups)
            if not as_read.select_for_update(no_key=True).only("pk"):
                return done
            _cancel(replay, ids, f"{SET_ASIDE}: the replay continues without it.", now)
    claimed = mine.order_by("n").values_list("n", flat=True).first()
    return {"groups": replay.without_groups, "to_n": last if claimed is None else claimed - 1}


def plan_again(replay: Replay, groups: Collection[int], most: int | None = None) -> int:
    """Plan the cancelled items of groups that are brought back, where the job is still dead and free. Return how many."""
    mine = Q(replay=replay, state=ItemState.CANCELLED, sent_at=None, outcome__startswith=SET_ASIDE)
    held = ReplayItem.objects.filter(failure=OuterRef("failure"), state__in=OPEN_ITEM)
    free = ReplayItem.objects.filter(
        mine, ~Exists(held), failure__group__in=groups, failure__state=FailureState.DEAD, run=F("failure__run") + 1
    )
    planned = 0
    while (most is None or planned < most) and (
        ids := list(free.order_by("n").values_list("pk", flat=True)[: min(_BATCH, most or _BATCH)])
    ):
        try:
            with transaction.atomic():
                # Locked first: a cancel, or its end, either came before, and is seen here, or finds what is planned now.
                if not Replay.objects.select_for_update().filter(pk=replay.pk, state__in=BEGUN).only("pk"):
                    return planned
                again = ReplayItem.objects.filter(mine, pk__in=ids)
                count = again.update(state=ItemState.PLANNED, settled_at=None, outcome="")
                Replay.objects.filter(pk=replay.pk).update(
                    planned=F("planned") + count, cancelled=F("cancelled") - count
                )
        except IntegrityError:
            continue  # another replay has just claimed one: the job is no longer free
        planned += count
    return planned


def is_any_claimed(replay: Replay, failures: Any) -> bool:
    """Return whether a sender has claimed one of these."""
    claimed = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at__isnull=False)
    return claimed.filter(failure__in=failures).exists()


def leave_out(replay: Replay, failures: Any, why: str, now: datetime) -> int:
    """Cancel what is planned of these failures (a queryset), laid out or not; how many. Of a replay that sends nothing,
    in one transaction with the act."""
    count = _leave_out_frozen(replay, failures)
    mine = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at=None, failure__in=failures)
    ids = list(mine.values_list("pk", flat=True))
    return count + sum(_cancel(replay, ids[start : start + _BATCH], why, now) for start in range(0, len(ids), _BATCH))


def _leave_out_frozen(replay: Replay, failures: Any) -> int:
    count = 0
    for pk in list(FrozenBatch.objects.filter(replay=replay).order_by("first_n").values_list("pk", flat=True)):
        with transaction.atomic():
            # In the order of who lays out: first the replay, then its batches.
            list(Replay.objects.select_for_update().filter(pk=replay.pk).only("pk"))
            batch = FrozenBatch.objects.filter(pk=pk).first()
            if batch is None:
                continue  # laid out meanwhile: its items are looked through
            ids = freezing.unpacked(batch)
            gone = set(failures.filter(pk__in=ids).values_list("pk", flat=True))
            rest = [one for one in ids if one not in gone]
            if not gone:
                continue
            if rest:
                FrozenBatch.objects.filter(pk=pk).update(count=len(rest), ids=freezing.packed(rest))
            else:
                batch.delete()
            _count(replay, len(gone))
            count += len(gone)
    return count


def has_others(replay: Replay, groups: Collection[object]) -> bool:
    """Return whether a planned job died of an error outside these groups."""
    planned = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED)
    if planned.filter(Q(failure__group=None) | ~Q(failure__group__in=groups)).exists():
        return True
    left = FrozenBatch.objects.filter(replay=replay).aggregate(n=Sum("count"))["n"] or 0
    return bool(left) and any(
        Failure.objects.filter(pk__in=freezing.unpacked(batch)).filter(Q(group=None) | ~Q(group__in=groups)).exists()
        for batch in FrozenBatch.objects.filter(replay=replay).order_by("first_n").iterator()
    )


def _cancel(replay: Replay, ids: Sequence[int], why: str, now: datetime) -> int:
    with transaction.atomic():
        free = ReplayItem.objects.filter(pk__in=ids, state=ItemState.PLANNED, claimed_at=None)
        count = free.update(state=ItemState.CANCELLED, settled_at=now, outcome=why[:255])
        if count:
            _count(replay, count)
    return count


def _count(replay: Replay, count: int) -> None:
    Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, cancelled=F("cancelled") + count)
