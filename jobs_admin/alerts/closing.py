"""Transitions of alerts, each a conditional update with its event, and the end of those that nobody watches any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from jobs_admin.core.matching import matches
from jobs_admin.models import Alert, AlertEvent, Rule
from jobs_admin.models.alert import AlertState

LONGEST_REASON = 500


def move(alert: Alert, to: str, now: datetime, reason: str, actor: str = "", **changes: Any) -> bool:
    """Make one transition, if it still stands as it was read; whether that was so. Writes its event."""
    n = alert.transitions + 1
    stands = Alert.objects.filter(pk=alert.pk, transitions=alert.transitions, state=alert.state)
    if not stands.update(state=to, transitions=n, **changes):
        return False
    alert.state, alert.transitions = to, n
    for name, value in changes.items():
        setattr(alert, name, value)
    AlertEvent.objects.create(
        alert=alert, n=n, at=now, to=to, value=alert.value, reason=reason[:LONGEST_REASON], actor=actor[:150]
    )
    return True


def close_rule(rule: Rule, reason: str, now: datetime) -> None:
    """In the transaction that ends the rule."""
    _close(Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED), reason, now)


def close_what_it_watches_no_more(rule: Rule, before: Mapping[str, Any], by: str, now: datetime) -> None:
    """After a change, in its transaction: a rule that was switched off, or looks elsewhere."""
    if not rule.enabled:
        if before["enabled"]:
            close_rule(rule, f"{by} switched the rule off.", now)
        return
    same = all(before[name] == getattr(rule, name) for name in ("metric", "task", "group", "tenant", "view_id")
               if name != "view_id") and before["view"] == rule.view_id  # fmt: skip
    open_ = list(Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED))
    gone = [
        one for one in open_ if not (same and matches(rule.source, one.source) and matches(rule.queue, one.subject))
    ]
    _close(gone, f"{by} changed the rule: it does not look at this any more.", now)


def _close(alerts: Iterable[Alert], reason: str, now: datetime) -> None:
    for alert in alerts:
        if alert.state == AlertState.PENDING:
            alert.delete()
        else:
            move(alert, AlertState.RESOLVED, now, reason, resolved_at=now, held_because="")
