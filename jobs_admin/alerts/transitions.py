"""Transitions of alerts: each is a conditional update with its event, so that of concurrent attempts one succeeds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q

from jobs_admin.models import Alert, AlertEvent
from jobs_admin.models.alert import AlertState

LONGEST_REASON = 500
# States of a fired alert, including acknowledged and silenced.
FIRED = (AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.SILENCED)


def move(
    alert: Alert, to: str, now: datetime, reason: str, actor: str = "", *, unless: Q | None = None, **changes: Any
) -> AlertEvent | None:
    """Make one transition if the alert is unchanged; otherwise return None and change nothing.

    `unless`: a condition under which the alert is not changed.
    """
    n = alert.transitions + 1
    unchanged = Alert.objects.filter(pk=alert.pk, transitions=alert.transitions, state=alert.state)
    if unless is not None:
        unchanged = unchanged.exclude(unless)
    if not unchanged.update(state=to, transitions=n, **changes):
        return None
    alert.state, alert.transitions = to, n
    for name, value in changes.items():
        setattr(alert, name, value)
    return note(alert, now, reason, actor)


def note(alert: Alert, now: datetime, reason: str, actor: str = "") -> AlertEvent:
    """Write the event of the transition that was just made."""
    return AlertEvent.objects.create(
        alert=alert,
        n=alert.transitions,
        at=now,
        to=alert.state,
        value=alert.value,
        reason=reason[:LONGEST_REASON],
        is_held=bool(alert.held_because),
        actor=actor[:150],
    )
