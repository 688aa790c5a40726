"""Notices of alerts. Alerts of one rule and source that fire shortly after each other form a bundle and share a key.

The first alert with a notice is the leader: its number is in the key of every notice. Later alerts join the bundle
while it is recent and unacknowledged; otherwise they form a new bundle, so that a pager notifies again. When an entire
bundle is resolved, one notice is sent. The caller has locked the rule, so that notices are numbered sequentially.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from jobs_admin.alerts import notice_body
from jobs_admin.alerts.transitions import FIRED, move
from jobs_admin.core.figures import exact_duration
from jobs_admin.models import Alert, AlertEvent, Channel, Notice, Rule
from jobs_admin.models.alert import AlertState
from jobs_admin.models.notice import ALERT_FIRING, ALERT_RESOLVED

_MOST_EVENTS = 5_000  # the latest events that are read
_BEGAN = 1  # transitions of an alert that fired immediately and is still firing


@dataclass(frozen=True, slots=True)
class Called:
    since: datetime
    seconds: float  # excluding the time in which it was held


def measure_called(alerts: Sequence[Alert], now: datetime) -> dict[int, Called]:
    """Return how long firing, unheld alerts have been notifying, by number.

    Time silenced or held does not count; after a silence the time starts again.
    """
    found = {
        one.pk: Called(one.fired_at, (now - one.fired_at).total_seconds()) for one in alerts if one.fired_at is not None
    }
    winding = [one.pk for one in alerts if one.transitions > _BEGAN]
    if winding:
        reported: dict[int, list[tuple[datetime, str, bool]]] = {}
        events = AlertEvent.objects.filter(alert__in=winding).order_by("-at", "-n")
        for pk, *event in events.values_list("alert", "at", "to", "is_held")[:_MOST_EVENTS]:
            reported.setdefault(pk, []).append(tuple(event))
        found |= {
            pk: _measure_events(transitions[::-1], found[pk], now)
            for pk, transitions in reported.items()
            if pk in found
        }
    return found


def _measure_events(events: Sequence[tuple[datetime, str, bool]], otherwise: Called, now: datetime) -> Called:
    since: datetime | None = None
    runs: datetime | None = None  # since when it is not held
    counted = timedelta()
    for at, to, is_blocked in events:
        if to != AlertState.FIRING:
            since, runs, counted = None, None, timedelta()
            continue
        since = since or at
        if is_blocked and runs is not None:
            counted, runs = counted + (at - runs), None
        elif not is_blocked:
            runs = runs or at
    if since is None or since > now:  # unknown, or a clock was set back, and `fired_at` with it
        return otherwise
    return Called(since, (counted + (now - runs if runs is not None else timedelta())).total_seconds())


# Notices about joined alerts sent immediately; then at most one per JOINED_EVERY, because thousands of queues can be
# created.
AT_ONCE = 5
JOINED_EVERY = timedelta(minutes=1)
# An alert that fires this long after the last one of a bundle starts a new bundle.
TOGETHER = timedelta(hours=1)


def bundle_of(alert: Alert) -> int | None:
    """Return the number of its leader; None if it was never in a notice."""
    if alert.told_with_id is not None:
        return alert.told_with_id
    return alert.pk if alert.told_at is not None else None


def write_notices(
    rule: Rule, source: str, now: datetime, *, again: Sequence[Alert] = (), why: str = "", left_out: int = 0
) -> list[Notice]:
    """Write the notices of this rule and source, in the transaction of its alerts' transitions.

    `again`: alerts that fire again because their silence ended. `left_out`: how many more would fire, beyond the limit.
    """
    stories: dict[int, list[Alert]] = defaultdict(list)
    fresh = []
    for one in _read_alerts(rule, source).filter(state__in=FIRED):
        if (number := bundle_of(one)) is not None:
            stories[number].append(one)
        elif one.state == AlertState.FIRING:
            fresh.append(one)
    ended = _ended(rule, source, now, stories)
    if fresh:
        _place(fresh, stories, now)
    leaders = _leaders(rule, [*stories, *ended], [one for members in stories.values() for one in members])
    unreported = _find_unreported(leaders)
    made = []
    for number in ended:
        made += _write_resolved(rule, leaders[number], unreported[number], now, why)
    youngest = max(stories, default=0)
    for number, members in sorted(stories.items()):
        beyond = left_out if number == youngest else 0
        made += _write_firing(rule, leaders[number], members, unreported[number], now, again, beyond)
    return made


def _place(fresh: Sequence[Alert], stories: dict[int, list[Alert]], now: datetime) -> None:
    """Add the alerts to the latest bundle if they may join it, otherwise to a new one."""
    number = max(stories, default=0)
    if not _may_be_joined(stories.get(number, ()), now):
        number = max(fresh, key=lambda one: (one.value, -one.pk)).pk
    joining = [one for one in fresh if one.pk != number]
    Alert.objects.filter(pk__in=[one.pk for one in joining], told_with=None).update(told_with=number)
    for one in joining:
        one.told_with_id = number
    stories[number] += fresh


def _may_be_joined(members: Sequence[Alert], now: datetime) -> bool:
    """Return whether one is unacknowledged and one fired recently.

    A pager does not notify again about an acknowledged bundle.
    """
    waits = any(one.state == AlertState.FIRING for one in members)
    return waits and any(one.fired_at is not None and now - one.fired_at < TOGETHER for one in members)


def _leaders(rule: Rule, numbers: Iterable[int], at_hand: Iterable[Alert]) -> dict[int, Alert]:
    """Return the leaders; a leader may be resolved while other alerts of its bundle are open."""
    known = {one.pk: one for one in at_hand}
    numbers = list(numbers)
    known |= Alert.objects.in_bulk([number for number in numbers if number not in known])
    for number in numbers:
        known[number].rule = rule
    return {number: known[number] for number in numbers}


def _find_unreported(leaders: Mapping[int, Alert]) -> dict[int, list[Alert]]:
    """Return, by bundle, alerts that were in no notice, including resolved ones; silenced ones are excluded."""
    found: dict[int, list[Alert]] = defaultdict(list)
    mine = Alert.objects.filter(Q(pk__in=leaders) | Q(told_with__in=leaders), told_at=None)
    for one in mine.exclude(state=AlertState.SILENCED).order_by("pk"):
        found[one.pk if one.pk in leaders else one.told_with_id].append(one)
    return found


def _write_firing(
    rule: Rule,
    leader: Alert,
    members: list[Alert],
    unreported: list[Alert],
    now: datetime,
    again: Sequence[Alert],
    left_out: int,
) -> list[Notice]:
    loud = [one for one in members if one.state == AlertState.FIRING]
    n = _last_number(leader) if unreported else 0
    is_quiet = leader.told_at is not None and now - leader.told_at >= JOINED_EVERY
    back = [one for one in loud if one.pk in {other.pk for other in again}]
    reason = ""
    if any(one.is_open for one in unreported) and (n < AT_ONCE or is_quiet):
        reason = "fired" if n == 0 else "joined"
    elif back:
        reason = "silence ended"
    elif left_out and is_left_out_due(members, left_out, now):
        reason = "joined"
    elif is_reminder_due(rule, leader, loud, now):
        reason = "reminder"
    made = []
    if reason:
        made.append(
            _write(
                rule, leader, members, now, ALERT_FIRING, reason, rule.channels.all(), left_out=left_out,
                news=[*unreported, *back], others=[one for one in unreported if not one.is_open],
            )
        )  # fmt: skip
        _mark(leader, unreported, made[0], now)
    if is_escalation_due(rule, leader, loud, now):
        made += _escalate(rule, leader, members, loud, now)
    return made


def is_reminder_due(rule: Rule, leader: Alert, loud: Sequence[Alert], now: datetime) -> bool:
    """Return whether a reminder is due.

    `loud`: unacknowledged firing alerts of any bundle. A held alert needs no reminder.
    """
    mine = _with(leader, loud)
    if not rule.renotify_s or leader.told_at is None or all(one.held_because for one in mine):
        return False
    return now - leader.told_at >= timedelta(seconds=rule.renotify_s)


def is_left_out_due(alerts: Sequence[Alert], left_out: int, now: datetime) -> bool:
    """Return whether the number beyond the limit of open alerts is new or has doubled since its last notice.

    `alerts`: the open ones of a rule and source.
    """
    number = max((bundle_of(one) or 0 for one in alerts if one.state in FIRED), default=0)  # the latest bundle
    notices = Notice.objects.filter(alert=number, type=ALERT_FIRING).exclude(body__reason="escalated").order_by("-pk")
    last = notices.values_list("body", "key", "alert__told_at").first()
    if last is None:
        return False
    body, key, notified_at = last
    reported = int(body.get("left_out") or 0)
    if reported and left_out < 2 * reported:
        return False
    return int(key.rpartition("-")[2]) < AT_ONCE or notified_at is None or now - notified_at >= JOINED_EVERY


def is_escalation_due(rule: Rule, leader: Alert, loud: Sequence[Alert], now: datetime) -> bool:
    """Return whether one of the leader's alerts has been notifying long enough, and started after the last escalation.

    `loud`: of any bundle.
    """
    return bool(rule.escalate_s and _longest_loud_s(leader, loud, now, rule.escalate_s) >= rule.escalate_s)


def _longest_loud_s(leader: Alert, loud: Sequence[Alert], now: datetime, at_least: float) -> float:
    before, last = now - timedelta(seconds=at_least), leader.escalated_at
    old = [
        one for one in _with(leader, loud)
        if not one.held_because and one.fired_at is not None and one.fired_at <= before
    ]  # fmt: skip
    called = measure_called(old, now).values()
    return max((one.seconds for one in called if last is None or one.since > last), default=0.0)


def _with(leader: Alert, alerts: Iterable[Alert]) -> list[Alert]:
    return [one for one in alerts if leader.pk in (one.pk, one.told_with_id)]


def _escalate(rule: Rule, leader: Alert, members: list[Alert], loud: list[Alert], now: datetime) -> list[Notice]:
    """Escalate a bundle once, and again for alerts that fired after that."""
    waited = exact_duration(round(_longest_loud_s(leader, loud, now, 0)))
    if not Alert.objects.filter(pk=leader.pk, escalated_at=leader.escalated_at).update(escalated_at=now):
        return []
    leader.escalated_at = now
    to = list(rule.escalate_to.all()) or list(rule.channels.all())
    notice = _write(
        rule, leader, members, now, ALERT_FIRING, "escalated", to, before=f"Not acknowledged for {waited}: "
    )
    Alert.objects.filter(pk=leader.pk).update(told_at=now)
    first = min(loud, key=lambda one: one.pk)
    named = ", ".join(one.name for one in to) or "no one (the rule has no channel)"
    event = move(first, first.state, now, f"Not acknowledged for {waited}: notified {named}.")
    if event is not None:
        AlertEvent.objects.filter(pk=event.pk).update(notice=notice)
    return [notice]


def _write_resolved(rule: Rule, leader: Alert, unreported: Sequence[Alert], now: datetime, why: str) -> list[Notice]:
    """Write the notice that all are resolved, including late alerts that were in no notice."""
    notice = _write(
        rule, leader, [leader], now, ALERT_RESOLVED, "resolved", rule.channels.all(), others=unreported, why=why
    )
    _mark(leader, unreported, notice, now)
    over = AlertEvent.objects.filter(alert__in=_bundle(leader), to=AlertState.RESOLVED, notice=None)
    over.update(notice=notice)
    return [notice]


def _mark(leader: Alert, unreported: Sequence[Alert], notice: Notice, now: datetime) -> None:
    pks = [one.pk for one in unreported]
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
    news: Sequence[Alert] = (),
    left_out: int = 0,
) -> Notice:
    for one in (*members, *others):
        one.rule = rule
    body = notice_body.build(
        leader, members, now, reason=reason, before=before, why=why, others=others, left_out=left_out,
        news={one.pk for one in news},
    )  # fmt: skip
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
    """Return the number of its last notice; 0 before the first."""
    key = Notice.objects.filter(alert=leader).order_by("-pk").values_list("key", flat=True).first()
    return int(key.rpartition("-")[2]) if key else 0


def _read_alerts(rule: Rule, source: str):
    return Alert.objects.filter(rule=rule, source=source).order_by("pk")


def _bundle(leader: Alert):
    return Alert.objects.filter(Q(pk=leader.pk) | Q(told_with=leader.pk)).order_by("pk")


def _ended(rule: Rule, source: str, now: datetime, open_: Mapping[int, Sequence[Alert]]) -> list[int]:
    """Return the leaders of bundles that ended completely in this transaction, without a notice about it."""
    over = _read_alerts(rule, source).filter(state=AlertState.RESOLVED, resolved_at=now)
    numbers = {number for one in over if (number := bundle_of(one)) is not None and number not in open_}
    last: dict[int, str] = dict(Notice.objects.filter(alert__in=numbers).order_by("pk").values_list("alert", "type"))
    return sorted(number for number in numbers if last.get(number) == ALERT_FIRING)
