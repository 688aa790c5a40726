"""The end of alerts that nobody watches any more: their rule was switched off, deleted, or looks elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from jobs_admin.alerts import telling
from jobs_admin.alerts.transitions import move
from jobs_admin.core.matching import matches
from jobs_admin.models import Alert, Rule
from jobs_admin.models.alert import AlertState

_SAME = ("metric", "task", "group", "tenant")


def close_rule(rule: Rule, reason: str, now: datetime) -> None:
    """In the transaction that ends the rule, which has locked it."""
    _close(rule, Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED), reason, now)


def close_what_it_watches_no_more(rule: Rule, before: Mapping[str, Any], by: str, now: datetime) -> None:
    """After a change, in its transaction: a rule that was switched off, or looks elsewhere."""
    if not rule.enabled:
        if before["enabled"]:
            close_rule(rule, f"{by} switched the rule off.", now)
        return
    is_same = before["view"] == rule.view_id and all(before[name] == getattr(rule, name) for name in _SAME)
    open_ = Alert.objects.filter(rule=rule).exclude(state=AlertState.RESOLVED)
    gone = [one for one in open_ if not (is_same and _looks_at(rule, one))]
    open_.update(threshold=rule.threshold, severity=rule.severity)
    _close(rule, gone, f"{by} changed the rule: it does not look at this any more.", now)


def _looks_at(rule: Rule, alert: Alert) -> bool:
    queue = rule.queue == "*" or matches(rule.queue, alert.subject)
    return queue and (rule.source == "*" or matches(rule.source, alert.source))


def _close(rule: Rule, alerts: Iterable[Alert], reason: str, now: datetime) -> None:
    over: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        alert.rule = rule
        if alert.state == AlertState.PENDING:
            alert.delete()
        elif move(alert, AlertState.RESOLVED, now, reason, resolved_at=now, held_because=""):
            over[alert.source].append(alert)
    for source in over:
        telling.tell(rule, source, now, why=reason)
