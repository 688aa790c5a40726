"""Notices of alerts. Those of one rule and source that are open together are told together, under one key.

The first of them that is told is the leader: its number is in the key of every notice. Later ones join, and when all of
them are over that is told once. Who tells has locked the rule, so that notices are numbered one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from jobs_admin.alerts import notice_body
from jobs_admin.alerts.transitions import FIRED, move
from jobs_admin.alerts.wording import duration
from jobs_admin.models import Alert, AlertEvent, Channel, Notice, Rule
from jobs_admin.models.alert import AlertState

FIRING, RESOLVED = "alert.firing", "alert.resolved"
# So many times what joins is told at once; then at most once in so long: queues can be made by the thousand.
AT_ONCE = 5
JOINED_EVERY = timedelta(minutes=1)


def leader_of(alerts: Sequence[Alert]) -> int | None:
    """The leader of what is told together now, from the open alerts of a rule and source."""
    return min((number for one in alerts if (number := bundle_of(one)) is not None), default=None)


def bundle_of(alert: Alert) -> int | None:
    """The number of its leader; None where it was never told."""
    if alert.told_with_id is not None:
        return alert.told_with_id
    return alert.pk if alert.told_at is not None else None


def tell(
    rule: Rule, source: str, now: datetime, *, again: Sequence[Alert] = (), why: str = "", left_out: int = 0
) -> list[Notice]:
    """Write what is to be told of this rule and source, in the transaction of what happened to its alerts.

    `again`: what fires once more because its silence ended. `left_out`: how many more would fire, beyond the bound.
    """
    open_ = list(_of(rule, source).filter(state__in=FIRED))
    number = leader_of(open_) or _ending(rule, source, now)
    fresh = [one for one in open_ if one.state == AlertState.FIRING and bundle_of(one) is None]
    if number is None and not fresh:
        return []
    members = [one for one in open_ if bundle_of(one) == number] if number is not None else []
    leader = _lead(rule, number, fresh, members)
    joining = [one for one in fresh if one.pk != leader.pk]
    Alert.objects.filter(pk__in=[one.pk for one in joining], told_with=None).update(told_with=leader)
    members += fresh
    if not members:
        return _tell_end(rule, leader, now, why)
    return _tell_firing(rule, leader, members, now, again, left_out)


def _lead(rule: Rule, number: int | None, fresh: list[Alert], members: list[Alert]) -> Alert:
    if number is None:
        return max(fresh, key=lambda one: (one.value, -one.pk))
    found = next((one for one in members if one.pk == number), None) or Alert.objects.get(pk=number)
    found.rule = rule
    return found


def _tell_firing(
    rule: Rule, leader: Alert, members: list[Alert], now: datetime, again: Sequence[Alert], left_out: int
) -> list[Notice]:
    n = _last_number(leader)
    untold = list(_bundle(leader).filter(told_at=None).exclude(state=AlertState.SILENCED))
    loud = [one for one in members if one.state == AlertState.FIRING]
    quiet_s = (now - leader.told_at).total_seconds() if leader.told_at else 0.0
    made = []
    reason = ""
    if untold and (n < AT_ONCE or quiet_s >= JOINED_EVERY.total_seconds()):
        reason = "fired" if n == 0 else "joined"
    elif any(one.pk in {other.pk for other in again} for one in members):
        reason = "silence ended"
    elif left_out and is_left_out_due(members, left_out, now):
        reason = "joined"
    elif is_reminder_due(rule, leader, loud, now):
        reason = "reminder"
    if reason:
        made.append(_write(rule, leader, members, now, FIRING, reason, rule.channels.all(), left_out=left_out))
        _mark(leader, untold, made[0], now)
    if is_escalation_due(rule, leader, loud, now):
        made += _escalate(rule, leader, members, loud, now)
    return made


def is_reminder_due(rule: Rule, leader: Alert, loud: Sequence[Alert], now: datetime) -> bool:
    """`loud`: those that fire and nobody acknowledged. What is held says nothing new."""
    if not rule.renotify_s or leader.told_at is None or all(one.held_because for one in loud):
        return False
    return now - leader.told_at >= timedelta(seconds=rule.renotify_s)


def is_left_out_due(alerts: Sequence[Alert], left_out: int, now: datetime) -> bool:
    """Whether what is left out, beyond the bound of open alerts, is new or has doubled since it was told.

    `alerts`: the open ones of a rule and source.
    """
    number = leader_of([one for one in alerts if one.state in FIRED])
    if number is None:
        return False
    notices = Notice.objects.filter(alert=number, type=FIRING).exclude(body__reason="escalated").order_by("-pk")
    last = notices.values_list("body", "key", "alert__told_at").first()
    if last is None:
        return False
    body, key, told_at = last
    told = int(body.get("left_out") or 0)
    if told and left_out < 2 * told:
        return False
    return int(key.rpartition("-")[2]) < AT_ONCE or told_at is None or now - told_at >= JOINED_EVERY


def is_escalation_due(rule: Rule, leader: Alert, loud: Sequence[Alert], now: datetime) -> bool:
    if not rule.escalate_s or leader.escalated_at is not None or not loud:
        return False
    return now - min(one.fired_at or now for one in loud) >= timedelta(seconds=rule.escalate_s)


def _escalate(rule: Rule, leader: Alert, members: list[Alert], loud: list[Alert], now: datetime) -> list[Notice]:
    """Once for all that are told together."""
    if not Alert.objects.filter(pk=leader.pk, escalated_at=None).update(escalated_at=now):
        return []
    leader.escalated_at = now
    to = list(rule.escalate_to.all()) or list(rule.channels.all())
    waited = duration((now - min(one.fired_at or now for one in loud)).total_seconds())
    notice = _write(rule, leader, members, now, FIRING, "escalated", to, before=f"Not acknowledged for {waited}: ")
    Alert.objects.filter(pk=leader.pk).update(told_at=now)
    first = min(loud, key=lambda one: one.pk)
    named = ", ".join(one.name for one in to) or "nobody: the rule names no channel"
    event = move(first, first.state, now, f"Not acknowledged for {waited}: told {named}.")
    if event is not None:
        AlertEvent.objects.filter(pk=event.pk).update(notice=notice)
    return [notice]


def _tell_end(rule: Rule, leader: Alert, now: datetime, why: str) -> list[Notice]:
    """All are over. What joined last and was not told yet is in this one."""
    untold = list(_bundle(leader).filter(told_at=None).exclude(state=AlertState.SILENCED))
    notice = _write(rule, leader, [leader], now, RESOLVED, "resolved", rule.channels.all(), others=untold, why=why)
    _mark(leader, untold, notice, now)
    over = AlertEvent.objects.filter(alert__in=_bundle(leader), to=AlertState.RESOLVED, notice=None)
    over.update(notice=notice)
    return [notice]


def _mark(leader: Alert, untold: Sequence[Alert], notice: Notice, now: datetime) -> None:
    pks = [one.pk for one in untold]
    Alert.objects.filter(Q(pk__in=pks) | Q(pk=leader.pk)).update(told_at=now)
    leader.told_at = now
    AlertEvent.objects.filter(alert__in=pks, to=AlertState.FIRING, notice=None).update(notice=notice)


def _write(
    rule: Rule,
    leader: Alert,
    members: list[Alert],
    now: datetime,
    kind: str,
    reason: str,
    channels: Sequence[Channel],
    *,
    before: str = "",
    why: str = "",
    others: Sequence[Alert] = (),
    left_out: int = 0,
) -> Notice:
    for one in (*members, *others):
        one.rule = rule
    body = notice_body.build(
        leader, members, now, reason=reason, before=before, why=why, others=others, left_out=left_out
    )
    notice = Notice.objects.create(
        key=f"alert-{leader.pk}-{_last_number(leader) + 1}",
        type=kind,
        severity=rule.severity,
        source=leader.source,
        alert=leader,
        is_routed_by_event=False,
        body=body,
    )
    notice.channels.set(channels)
    return notice


def _last_number(leader: Alert) -> int:
    """Of its notices; 0 before the first."""
    key = Notice.objects.filter(alert=leader).order_by("-pk").values_list("key", flat=True).first()
    return int(key.rpartition("-")[2]) if key else 0


def _of(rule: Rule, source: str):
    return Alert.objects.filter(rule=rule, source=source).order_by("pk")


def _bundle(leader: Alert):
    return Alert.objects.filter(Q(pk=leader.pk) | Q(told_with=leader.pk)).order_by("pk")


def _ending(rule: Rule, source: str, now: datetime) -> int | None:
    """The leader of what has just ended, in this transaction: its end is not told yet."""
    over = _of(rule, source).filter(state=AlertState.RESOLVED, resolved_at=now)
    number = leader_of(list(over))
    if number is None:
        return None
    told = Notice.objects.filter(alert=number).order_by("-pk").values_list("type", flat=True).first()
    return number if told == FIRING else None
