"""Which notice goes to which channel: a delivery row for each, before any request leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import QuerySet

from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.models.notice import DeliveryState

# A notice that nobody could tell for so long is news no more; what is still true is told again by its reminder.
STALE = timedelta(hours=24)
# Of one type to one channel: a thousand jobs that need a person are not a thousand calls at night.
MOST_A_MINUTE = 60
_RULES_AT_ONCE, _EVENTS_AT_ONCE = 100, 500


def route(now: datetime) -> bool:
    """A batch of notices that are not routed yet: those of rules first, each kind the oldest first. Whether there was one."""
    waiting = Notice.objects.filter(routed_at=None).order_by("created_at")
    if not waiting.exists():
        return False
    # However many jobs ask for a person, an alert does not wait behind them.
    of_rules = _routed(waiting.filter(is_routed_by_event=False)[:_RULES_AT_ONCE], now)
    return bool(_routed(waiting.filter(is_routed_by_event=True)[:_EVENTS_AT_ONCE], now) + of_rules)


def _routed(waiting: QuerySet[Notice], now: datetime) -> int:
    with transaction.atomic():
        if connection.features.has_select_for_update_skip_locked:  # else nobody else writes while we do
            waiting = waiting.select_for_update(of=("self",), skip_locked=True)
        mine = list(waiting)
        if not mine:
            return 0
        Notice.objects.filter(pk__in=[one.pk for one in mine]).update(routed_at=now)
        channels = list(Channel.objects.order_by("pk"))
        named = _named(mine)
        counts = _Counts(now)
        rows = [
            _delivery(one, channel, now, counts)
            for one in mine
            for channel in channels
            if (one.type in channel.events if one.is_routed_by_event else channel.pk in named[one.pk])
        ]
        Delivery.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)
    return len(mine)


def _named(notices: Iterable[Notice]) -> dict[int, set[int]]:
    """Notice -> the channels that its rule names."""
    found: dict[int, set[int]] = defaultdict(set)
    of_rules = [one.pk for one in notices if not one.is_routed_by_event]
    for link in Notice.channels.through.objects.filter(notice_id__in=of_rules):
        found[link.notice_id].add(link.channel_id)
    return found


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
