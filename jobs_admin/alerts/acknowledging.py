"""Acknowledgement of alerts by an operator: reminders and escalation stop until the acknowledgement is undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from jobs_admin.alerts import reading, silencing
from jobs_admin.alerts.transitions import move
from jobs_admin.core.figures import clock
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Alert, AuditEvent, Rule
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.alert import UNACKNOWLEDGED, AlertState
from jobs_admin.rights import alert_sight

LONGEST_COMMENT = 500  # as stored in its event and the audit
ACT, UNDO_ACT = "alert.acknowledge", "alert.unacknowledge"
# States that can be acknowledged; a silenced alert only individually.
CALLING = (AlertState.FIRING, AlertState.SILENCED)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Result of an act: the alert, and all changes."""

    alert: Alert
    changed: list[int]  # numbers of alerts, including itself unless it was resolved meanwhile
    others: int = 0  # after an undo: unchanged alerts of the same acknowledgement


def acknowledge(viewer: Viewer, pk: int, comment: str = "", *, only_this: bool = False) -> Acknowledgement:
    """Acknowledge the alert and all firing alerts of its bundle, or only this one.

    Of two concurrent operators, one succeeds. Silenced alerts are not changed: they notify when their silence ends.
    Raises Refused, with the name of the operator who has already acknowledged it, and NotFound.
    """
    found = reading.get(viewer, pk)
    _authorize(viewer, found, ACT, "Acknowledging")
    text = comment.strip()
    if len(text) > LONGEST_COMMENT:
        message = f"The comment has {len(text):,} characters; the limit is {LONGEST_COMMENT}. Nothing was changed."
        raise Refused("invalid", message, "comment")
    now = timezone.now()
    with transaction.atomic():
        _lock_rule(found)
        wanted = Alert.objects.filter(pk=pk) if only_this else reading.bundle(found)
        alerts = list(wanted.select_for_update().filter(Q(state=AlertState.FIRING) | Q(pk=pk, state__in=CALLING)))
        mine = [one for one in alerts if one.pk == found.pk] and [
            one for one in alerts if move(one, AlertState.ACKNOWLEDGED, now, text, viewer.name, acknowledged_at=now,
                                        acknowledged_by=viewer.name[:150])
        ]  # fmt: skip
        if not mine:
            raise Refused("wrong_state", _refusal_reason(pk, now))
        changed = [one.pk for one in mine]
        audit.record(viewer, ACT, f"alert:{pk}", source=found.source, reason=text, after={"alerts": changed[:100]})
    return Acknowledgement(reading.get(viewer, pk), changed)


def unacknowledge(viewer: Viewer, pk: int) -> Acknowledgement:
    """Undo one's own acknowledgement: alerts unchanged since then notify again. Escalation counts from now.

    Raises Refused if all these alerts were resolved, or are acknowledged by another operator, and NotFound.
    """
    found = reading.get(viewer, pk)
    _authorize(viewer, found, UNDO_ACT, "Undoing an acknowledgement")
    now = timezone.now()
    with transaction.atomic():
        rule = _lock_rule(found)
        found = reading.get(viewer, pk)
        taken = list(alert_sight.own_acknowledgement(viewer, found).select_for_update())
        silences, changed = silencing.in_force(now), []
        for one in taken:
            if one.state != AlertState.ACKNOWLEDGED:
                continue
            one.rule = rule
            is_silenced = silencing.silenced_by(silences, one, rule.name) is not None
            to = AlertState.SILENCED if is_silenced else AlertState.FIRING
            if move(one, to, now, UNACKNOWLEDGED, viewer.name, acknowledged_at=None, acknowledged_by=""):
                changed.append(one.pk)
        if not changed:
            raise Refused("wrong_state", _undo_refusal(viewer, found, len(taken), now))
        object_ = _acknowledged_object(viewer, found, taken)
        audit.record(viewer, UNDO_ACT, object_, source=found.source, after={"alerts": changed[:100]})
    return Acknowledgement(reading.get(viewer, pk), changed, len(taken) - len(changed))


@dataclass(frozen=True, slots=True)
class Calling:
    """The number of alerts that an acknowledgement of an alert and its notification includes."""

    changed: int = 0  # alerts, including itself
    silenced: int = 0  # other alerts, which it does not change


def count_calling(alerts: Collection[Alert]) -> dict[int, Calling]:
    """Return the reach by number of alert, in one query."""
    leaders = {one.told_with_id or one.pk for one in alerts}
    whose = Coalesce(F("told_with"), F("pk"))
    if not leaders:
        return {}
    rows = Alert.objects.filter(Q(pk__in=leaders) | Q(told_with__in=leaders), state__in=CALLING).order_by()
    counted = rows.values_list(whose, "state").annotate(n=Count("pk"))
    counts = Counter({(leader, state): n for leader, state, n in counted})
    found = {}
    for one in alerts:
        leader, itself = one.told_with_id or one.pk, one.state == AlertState.SILENCED
        firing, silenced = counts[leader, AlertState.FIRING], counts[leader, AlertState.SILENCED]
        found[one.pk] = Calling(firing + itself, silenced - itself)
    return found


def count_undoable(viewer: Viewer, alert: Alert) -> int:
    """Return how many alerts would notify again if this viewer undid the acknowledgement; 0 for another operator's."""
    return alert_sight.own_acknowledgement(viewer, alert).filter(state=AlertState.ACKNOWLEDGED).count()


def _lock_rule(alert: Alert) -> Rule:
    """Lock the rule first, as the evaluation does: of two processes that change several of its alerts, one waits."""
    return Rule.objects.select_for_update(of=("self",)).get(pk=alert.rule_id)


def _acknowledged_object(viewer: Viewer, found: Alert, taken: list[Alert]) -> str:
    """Return the object of the acknowledgement in the audit: the alert on which it was made."""
    own = AuditEvent.objects.filter(act=ACT, allowed=True, user_id=viewer.person_id, token_id=viewer.token_id)
    names = [f"alert:{one.pk}" for one in taken]
    made = own.filter(object__in=names, at__gte=found.acknowledged_at).order_by("pk").values_list("object", flat=True)
    return made.first() or f"alert:{found.pk}"


def _authorize(viewer: Viewer, alert: Alert, act: str, doing: str) -> None:
    source = alert.source or EVERY_SOURCE  # operators of this source can act on it
    message = f"{doing} needs the role {{role}} on {{where}}. Nothing was changed."
    authorize(viewer, OPERATOR, source, act, f"alert:{alert.pk}", message=message, field="source")


def _refusal_reason(pk: int, now: datetime) -> str:
    found = Alert.objects.get(pk=pk)
    if found.state == AlertState.ACKNOWLEDGED:
        return f"Already {_acknowledged(found, now)}. Nothing was changed."
    if found.state == AlertState.RESOLVED:
        return f"The alert was resolved{_at(found.resolved_at, now)}. Nothing was changed."
    return "The alert is pending: only firing alerts can be acknowledged. Nothing was changed."


def _undo_refusal(viewer: Viewer, found: Alert, taken: int, now: datetime) -> str:
    if found.state == AlertState.RESOLVED:
        which = f"all {taken} alerts were" if taken > 1 else "the alert was"
        return f"Can’t undo: {which} resolved{_at(found.resolved_at, now)}. Nothing was changed."
    if found.state == AlertState.ACKNOWLEDGED and found.acknowledged_by != viewer.name[:150]:
        return f"Can’t undo: the alert is {_acknowledged(found, now)}. Nothing was changed."
    return "Can’t undo: the alert is not acknowledged. Nothing was changed."


def _acknowledged(found: Alert, now: datetime) -> str:
    return f"acknowledged by {found.acknowledged_by or 'an operator'}{_at(found.acknowledged_at, now)}"


def _at(moment: datetime | None, now: datetime) -> str:
    return f" at {clock(moment, now, with_seconds=True)} UTC" if moment else ""
