"""Closing of alerts that are no longer evaluated.

Their rule or saved view was deleted, disabled, or given another condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs_admin.alerts import notices
from jobs_admin.alerts.transitions import move
from jobs_admin.core.matching import matches
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited
from jobs_admin.models import Alert, Rule, SavedView
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import AlertState

_SAME = ("metric", "task", "group", "tenant")


def close_rule(rule: Rule, reason: str, now: datetime) -> bool:
    """Close the rule's alerts. The caller's transaction has locked the rule. Return whether there was one."""
    return _close(rule, _open(rule), reason, now)


def close_uncovered(rule: Rule, before: Mapping[str, Any], by: str, now: datetime) -> None:
    """Close alerts after a change, in its transaction: the rule was disabled, or has another condition."""
    if not rule.enabled:
        if before["enabled"]:
            close_rule(rule, f"Rule disabled by {by}.", now)
        return
    is_same = before["view"] == rule.view_id and all(before[name] == getattr(rule, name) for name in _SAME)
    open_ = _open(rule)
    gone = [one for one in open_ if not (is_same and is_covered(rule, one))]
    Alert.objects.filter(pk__in=[one.pk for one in open_]).update(threshold=rule.threshold, severity=rule.severity)
    _close(rule, gone, f"Rule changed by {by}: {ELSEWHERE}", now)


ELSEWHERE = "the new condition does not cover this subject."


def close_subjects(rule: Rule, source: str, reasons: Mapping[str, str], now: datetime) -> bool:
    """Close a source's alerts on these subjects, which are no longer evaluated.

    The rule is locked. Return whether there was one.
    """
    gone = [one for one in _open(rule) if one.source == source and one.subject in reasons]
    changed = False
    for reason in dict.fromkeys(reasons.values()):
        changed |= _close(rule, [one for one in gone if reasons[one.subject] == reason], reason, now)
    return changed


def is_covered(rule: Rule, alert: Alert) -> bool:
    """Return whether the rule now covers the alert's source and subject."""
    queue = rule.queue == "*" or matches(rule.queue, alert.subject)
    # An alert without a source belongs to all sources that a pattern matches.
    source = "*" in rule.source if not alert.source else matches(rule.source, alert.source)
    return queue and source


def _open(rule: Rule) -> list[Alert]:
    """Return the rule's open alerts, locked: a concurrent acknowledgement comes before or after the closing."""
    open_ = Alert.objects.select_for_update().filter(rule=rule).exclude(state=AlertState.RESOLVED)
    return list(open_.order_by("pk"))


def _close(rule: Rule, alerts: Iterable[Alert], reason: str, now: datetime) -> bool:
    changed = False
    over: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        alert.rule = rule
        if alert.state == AlertState.PENDING:
            alert.delete()
            changed = True
        elif move(alert, AlertState.RESOLVED, now, reason, resolved_at=now, held_because=""):
            over[alert.source].append(alert)
            changed = True
    for source in over:
        notices.write_notices(rule, source, now, why=reason)
    return changed


DESK = Viewer("redrive")  # actor in the audit for consequences of another act
WHY = "The view of the rule was deleted. The rule is disabled."


def switch_off_rules_on(view: SavedView) -> None:
    """Disable the rules on a view before it is deleted, in the same transaction.

    Their alerts are closed with a notice.
    """
    with transaction.atomic():
        for rule in Rule.objects.select_for_update().filter(view=view.pk, deleted_at=None).order_by("pk"):
            now = timezone.now()
            close_rule(rule, WHY, now)
            Rule.objects.filter(pk=rule.pk).update(view=None, enabled=False, changed_at=now, changed_by=DESK.name)
            for source in audited([rule.source]):
                audit.record(
                    DESK, "rule.change", f"alert-rule:{rule.pk}", source=source, reason=WHY,
                    before={"name": rule.name, "view": view.pk, "enabled": rule.enabled},
                    after={"name": rule.name, "view": None, "enabled": False},
                )  # fmt: skip
