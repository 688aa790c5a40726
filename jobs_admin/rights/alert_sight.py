"""Visibility of alerts, shared by pages, charts, figures and notices."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from jobs_admin.core.alert_metrics import METRICS, Subject
from jobs_admin.models import Alert, Rule
from jobs_admin.models.access import Viewer
from jobs_admin.rights import view_sight

_DESK = [one.name for one in METRICS.values() if one.no_source]
_VIEWS = [one.name for one in METRICS.values() if one.subject is Subject.VIEW]


def visible(viewer: Viewer) -> Q:
    """Return the alerts of the viewer's sources; alerts on the desk's own lag and steps are visible to all.

    Alerts of a view belong to its owner.

    An alert of a view that the viewer may not read, of a view over several sources, or of a deleted rule is visible to
    its owner and to viewers of every source.
    """
    sources = viewer.sources()
    if viewer.focus:
        return visible(viewer.unfocused) & Q(source__in=sources)
    if sources is None:
        return Q()
    if not sources:
        return Q(pk__in=[])
    desks = Q(source="", rule__metric__in=_DESK)
    found = (
        Q(source__in=sources) & (~Q(rule__metric__in=_VIEWS) | Q(rule__view__in=view_sight.readable(viewer)))
    ) | desks
    if viewer.user_id is not None:
        found |= Q(source__in=[*sources, ""], rule__view__owner_id=viewer.user_id)
    return found


def own_acknowledgement(viewer: Viewer, alert: Alert) -> QuerySet[Alert]:
    """Return the alerts that the viewer acknowledged in the same act, including those resolved since.

    Empty if another operator acknowledged it, or no one did.
    """
    if alert.acknowledged_at is None or alert.acknowledged_by != viewer.name[:150]:
        return Alert.objects.none()
    same = {"rule": alert.rule_id, "source": alert.source, "acknowledged_at": alert.acknowledged_at}
    return Alert.objects.filter(**same, acknowledged_by=alert.acknowledged_by).order_by("pk")


def sees_rule(viewer: Viewer, rule: Rule) -> bool:
    """Return whether the viewer sees the rule. A rule on a view is visible to those who may see the view."""
    if rule.deleted_at is not None or not viewer.sees_any_of(rule.source):
        return False
    return rule.view is None or view_sight.sees(viewer.unfocused, rule.view)
