"""Letting go of the jobs of groups that a replay goes on without, some hundred at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, Max

from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.replay import ItemState

_BATCH = 500  # items of one write transaction: on SQLite nobody else writes meanwhile
_WHY = "Left out: the replay was resumed without its group."


def leave_out(replay: Replay, done: dict[str, Any] | None, now: datetime) -> dict[str, Any] | None:
    """Cancel what is planned of `without_groups`. Answers how far that is done, which the next look hands back.

    What a sender has claimed is on its way; should that come back unsent, it is found by a later look. May be broken
    off and called again, also by two at once.
    """
    if not replay.without_groups:
        return None
    items = ReplayItem.objects.filter(replay=replay)
    last = items.aggregate(last=Max("n"))["last"] or 0
    from_n = done["to_n"] if done and done["groups"] == replay.without_groups else 0
    if last <= from_n:
        return done
    mine = items.filter(n__gt=from_n, n__lte=last, state=ItemState.PLANNED, failure__group__in=replay.without_groups)
    while ids := list(mine.filter(claimed_at=None).order_by("n").values_list("pk", flat=True)[:_BATCH]):
        _cancel(replay, ids, now)
    claimed = mine.order_by("n").values_list("n", flat=True).first()
    return {"groups": replay.without_groups, "to_n": last if claimed is None else claimed - 1}


def _cancel(replay: Replay, ids: list[int], now: datetime) -> None:
    with transaction.atomic():
        free = ReplayItem.objects.filter(pk__in=ids, state=ItemState.PLANNED, claimed_at=None)
        count = free.update(state=ItemState.CANCELLED, settled_at=now, outcome=_WHY)
        if count:
            Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, cancelled=F("cancelled") + count)
