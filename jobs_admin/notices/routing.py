"""Routing of notices to channels: a delivery row for each, before any request leaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, QuerySet

from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.models.notice import REPLAY_AWAITING_APPROVAL, DeliveryState

# A notice that could not be sent for this long is no longer news; a condition that continues is repeated by its
# reminder.
STALE = timedelta(hours=24)
# Of one type to one channel: a thousand jobs that need an operator must not cause a thousand calls at night.
MOST_A_MINUTE = 60
_RULES_AT_ONCE, _EVENTS_AT_ONCE = 100, 500  # notices per transaction
_ROWS_AT_ONCE = 500  # and deliveries: with as many channels as there may be, the last notice makes some more
_MOST_READ = 50_000  # deliveries of the last minute


def route(now: datetime) -> bool:
    """A batch of notices that are not routed yet: those of rules first, each kind the oldest first. Whether there was one."""
    waiting = Notice.objects.filter(routed_at=None).order_by("created_at")
    if not waiting.exists():
        return False
    # However many jobs escalate, an alert does not wait behind them.
    of_rules = _routed(waiting.filter(is_routed_by_event=False)[:_RULES_AT_ONCE], None, now)
    of_events = waiting.filter(is_routed_by_event=True)
    if not of_events.exists():
        return of_rules > 0
    return bool(_routed(of_events[:_EVENTS_AT_ONCE], _Lately(now), now) + of_rules)


def _routed(waiting: QuerySet[Notice], lately: _Lately | None, now: datetime) -> int:
    """`lately`: of notices that no rule sends."""
    with transaction.atomic():
        if connection.features.has_select_for_update_skip_locked:  # otherwise no other process writes meanwhile
            waiting = waiting.select_for_update(of=("self",), skip_locked=True)
        found = list(waiting)
        if not found:
            return 0
        channels = list(Channel.objects.order_by("pk"))
        named = _read_named_channels(found)
        mine: list[Notice] = []
        rows: list[Delivery] = []
        for one in found:
            if len(rows) >= _ROWS_AT_ONCE:
                break
            mine.append(one)
            if lately is None:
                rows += [_delivery(one, channel, now) for channel in channels if channel.pk in named[one.pk]]
            else:
                wanting = [channel for channel in channels if _wants(channel, one.type)]
                rows += filter(None, [lately.delivery(one, channel, now) for channel in wanting])
        Notice.objects.filter(pk__in=[one.pk for one in mine]).update(routed_at=now)
        Delivery.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)
        if lately is not None:
            lately.count_the_others()
    return len(mine)


def _read_named_channels(notices: Iterable[Notice]) -> dict[int, set[int]]:
    """Return notice -> the channels that its rule names."""
    found: dict[int, set[int]] = defaultdict(set)
    of_rules = [one.pk for one in notices if not one.is_routed_by_event]
    for link in Notice.channels.through.objects.filter(notice_id__in=of_rules):
        found[link.notice_id].add(link.channel_id)
    return found


def _wants(channel: Channel, type_: str) -> bool:
    """Return whether the channel gets events of this type. A rejection would leave an incident open at PagerDuty."""
    return type_ in channel.events and (channel.kind, type_) != ("pagerduty", REPLAY_AWAITING_APPROVAL)


def _delivery(notice: Notice, channel: Channel, now: datetime) -> Delivery:
    why = ""
    if channel.disabled_at is not None:
        why = f"The channel is disabled: {channel.why_disabled}"
    elif now - notice.created_at > STALE:
        hours = (now - notice.created_at).total_seconds() / 3600
        why = f"The notice was {hours:.0f} hours old and was not sent. Send it again if it is still relevant."
    if why:
        return _parked(notice, channel, why)
    return Delivery(notice=notice, channel=channel, next_try_at=now)


def _parked(notice: Notice, channel: Channel, why: str, counts: int = 0) -> Delivery:
    return Delivery(notice=notice, channel=channel, state=DeliveryState.PARKED, error=why[:300], counts=counts)


class _Lately:
    """Deliveries of each channel and type within the last minute, those of this batch among them.

    Beyond MOST_A_MINUTE one row counts the others: a storm leaves no row for each notice and channel.
    """

    def __init__(self, now: datetime) -> None:
        self._made: Counter[tuple[int, str]] = Counter()
        self._counting: dict[tuple[int, str], int] = {}  # the row that counts the others
        self._begun: dict[tuple[int, str], Delivery] = {}  # the same, not stored yet
        self._others: Counter[int] = Counter()
        since = now - timedelta(minutes=1)
        latest = Delivery.objects.order_by("-pk").values_list(
            "pk", "channel_id", "notice__type", "notice__is_routed_by_event", "counts", "created_at"
        )
        # Ids increase with time: read until the minute is over.
        for pk, channel, type_, is_event, counts, at in latest[:_MOST_READ].iterator(chunk_size=500):
            if at < since:
                break
            if counts:
                self._counting.setdefault((channel, type_), pk)
            elif is_event:
                self._made[channel, type_] += 1

    def delivery(self, notice: Notice, channel: Channel, now: datetime) -> Delivery | None:
        """Return the delivery; None if a counting row represents it."""
        key = (channel.pk, notice.type)
        if self._made[key] < MOST_A_MINUTE:
            self._made[key] += 1
            return _delivery(notice, channel, now)
        if key in self._counting:
            self._others[self._counting[key]] += 1
            return None
        if key in self._begun:
            self._begun[key].counts += 1
            return None
        why = f"More than {MOST_A_MINUTE} of {notice.type} in a minute: the others are listed on the desk, without notifications."
        self._begun[key] = _parked(notice, channel, why, 1)
        return self._begun[key]

    def count_the_others(self) -> None:
        for pk, n in self._others.items():
            Delivery.objects.filter(pk=pk).update(counts=F("counts") + n)
