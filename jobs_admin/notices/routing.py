"""Which notice goes to which channel: a delivery row for each, before any request leaves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction

from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.models.notice import DeliveryState

# A notice that nobody could tell for so long is news no more; what is still true is told again by its reminder.
STALE = timedelta(hours=24)
# Of one type to one channel: a thousand jobs that need a person are not a thousand calls at night.
MOST_A_MINUTE = 60
_AT_ONCE = 100


def route(now: datetime) -> bool:
    """A batch of notices that are not routed yet, the oldest first. Whether there was one."""
    waiting = list(Notice.objects.filter(routed_at=None).order_by("created_at")[:_AT_ONCE])
    if not waiting:
        return False
    with transaction.atomic():
        # Who is second, another watch, finds nothing left to route.
        mine = [one for one in waiting if Notice.objects.filter(pk=one.pk, routed_at=None).update(routed_at=now)]
        channels = list(Channel.objects.order_by("pk"))
        counts = _Counts(now)
        rows = [_delivery(one, channel, now, counts) for one in mine for channel in _wanted_by(one, channels)]
        Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    return True


def _wanted_by(notice: Notice, channels: Iterable[Channel]) -> list[Channel]:
    if notice.is_routed_by_event:
        return [one for one in channels if notice.type in one.events]
    named = set(notice.channels.values_list("pk", flat=True))
    return [one for one in channels if one.pk in named]


def _delivery(notice: Notice, channel: Channel, now: datetime, counts: _Counts) -> Delivery:
    why = ""
    if channel.disabled_at is not None:
        why = f"The channel is disabled: {channel.why_disabled}"
    elif now - notice.created_at > STALE:
        hours = (now - notice.created_at).total_seconds() / 3600
        why = f"It was {hours:.0f} hours old when it could be told: send it by hand if it still matters."
    elif notice.is_routed_by_event and counts.add(channel, notice) > MOST_A_MINUTE:
        why = f"More than {MOST_A_MINUTE} of {notice.type} in a minute: the others are told by their list on the desk only."
    if why:
        return Delivery(notice=notice, channel=channel, state=DeliveryState.PARKED, error=why[:300])
    return Delivery(notice=notice, channel=channel, next_try_at=now)


class _Counts:
    """How many notices of a type went to a channel within the last minute, those of this batch among them."""

    def __init__(self, now: datetime) -> None:
        self.since = now - timedelta(minutes=1)
        self.found: dict[tuple[int, str], int] = {}

    def add(self, channel: Channel, notice: Notice) -> int:
        key = (channel.pk, notice.type)
        if key not in self.found:
            earlier = Delivery.objects.filter(channel=channel, notice__type=notice.type, created_at__gte=self.since)
            newest = earlier.exclude(state=DeliveryState.PARKED).order_by("-pk")[: MOST_A_MINUTE + 1]
            self.found[key] = len(newest.values_list("pk"))
        self.found[key] += 1
        return self.found[key]
