"""Letting go of what a cancelled replay has not sent, some hundred items at a time."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.replay import ItemState

_BATCH = 500  # items of one write transaction: on SQLite nobody else writes meanwhile


def drop_planned(replay: Replay, now: datetime) -> int:
    """Cancel the items that nobody has claimed, of a replay that sends no more; how many.

    Claimed ones are on their way: the sender, or who takes over from it, says whether they went. May be broken off and
    called again, also by two at once.
    """
    dropped = 0
    free = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, claimed_at=None)
    while ids := list(free.order_by("n").values_list("pk", flat=True)[:_BATCH]):
        with transaction.atomic():
            count = free.filter(pk__in=ids).update(state=ItemState.CANCELLED, settled_at=now)
            if count:
                Replay.objects.filter(pk=replay.pk).update(
                    planned=F("planned") - count, cancelled=F("cancelled") + count
                )
        dropped += count
    return dropped
