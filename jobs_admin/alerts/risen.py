"""What broke: the groups behind an alert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from django.db.models import Q, QuerySet

from jobs_admin.alerts.links import group_page
from jobs_admin.models import Alert, FailureCount, Group, Notice
from jobs_admin.models.alert import AlertState
from jobs_admin.models.failure import FailureState
from jobs_admin.models.notice import ALERT_FIRING

_MOST_COUNTERS = 200  # a group has one for each task and state
_OPEN = (FailureState.DEAD, FailureState.REPLAYING)


@dataclass(frozen=True, slots=True)
class RisenGroup:
    title: str
    fingerprint: str
    count: int
    url: str
    runbook_url: str = ""


def groups_behind(alert: Alert, limit: int = 5) -> list[RisenGroup]:
    """The groups of the jobs that an alert, and what was told with it, is about: counted as its notices count them.

    Of one that is resolved, the numbers of its last notice about all of it.
    """
    told = Alert.objects.filter(Q(pk=alert.told_with_id or alert.pk) | Q(told_with=alert.told_with_id or alert.pk))
    open_ = list(told.exclude(state=AlertState.RESOLVED).select_related("rule").order_by("pk"))
    if open_:
        return top_groups(open_, limit)
    firing = Notice.objects.filter(alert=alert.told_with_id or alert.pk, type=ALERT_FIRING).order_by("-pk")
    firing = firing.exclude(body__reason="joined")  # that one is about what joined alone
    said = firing.values_list("body__top_groups", flat=True).first() or []
    # A notice names a group by its page.
    counts = {unquote(one["url"].rstrip("/").rpartition("/")[2]): int(one["count"]) for one in said[:limit]}
    groups = dict(Group.objects.filter(fingerprint__in=counts).values_list("fingerprint", "pk"))
    return _shown([(groups[name], n) for name, n in counts.items() if name in groups])


def top_groups(alerts: Sequence[Alert], limit: int = 5) -> list[RisenGroup]:
    """Of what lies dead now in the queues of these alerts, which are of one rule and source: by their largest counters."""
    if not alerts:
        return []
    state = FailureState.QUARANTINED if alerts[0].rule.metric == "quarantined" else None
    counts = Q(state=state) if state else Q(state__in=_OPEN)
    queues = sorted({one.subject for one in alerts if one.subject})[:200]
    # A notice is written in a transaction: to find the large ones takes less than half of adding up a hundred thousand.
    largest = _held(alerts[0], counts, queues).order_by("-count", "group_id")[:_MOST_COUNTERS]
    found: Counter[int] = Counter()
    for group, n in largest.values_list("group_id", "count"):
        found[group] += n
    return _shown(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit])


def _held(alert: Alert, more: Q, queues: Sequence[str]) -> QuerySet[FailureCount]:
    if alert.rule.metric == "view" or not alert.source:
        return FailureCount.objects.none()
    held = FailureCount.objects.filter(more, source=alert.source, group_id__gt=0, count__gt=0)
    if queues or alert.subject:
        held = held.filter(queue__in=queues or [alert.subject])
    if alert.rule.task != "*" and "*" not in alert.rule.task:
        held = held.filter(task=alert.rule.task)
    return held


def _shown(counted: Sequence[tuple[int, int]]) -> list[RisenGroup]:
    groups = Group.objects.in_bulk([pk for pk, _ in counted])
    return [
        RisenGroup(groups[pk].title, groups[pk].name, int(n), group_page(groups[pk].name), groups[pk].runbook_url)
        for pk, n in counted
        if pk in groups
    ]
