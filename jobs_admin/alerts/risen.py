"""What broke: the groups behind an alert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Q, QuerySet, Sum

from jobs_admin.alerts.links import group_page
from jobs_admin.models import Alert, FailureCount, Group, GroupCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import FailureState

_BEFORE, _AFTER = timedelta(minutes=10), timedelta(minutes=10)
_MOST_IN_QUEUE = 1_000  # groups of a queue, those with most failures, that are looked at
_MOST_COUNTERS = 200  # a group has one for each task and state
_OPEN = (FailureState.DEAD, FailureState.REPLAYING)


@dataclass(frozen=True, slots=True)
class RisenGroup:
    title: str
    fingerprint: str
    count: int
    url: str
    runbook_url: str = ""


def risen_groups(viewer: Viewer, alert: Alert, limit: int = 5) -> list[RisenGroup]:
    """Groups with failures in the alert's queue, by their failed attempts from ten minutes before it was true until ten
    minutes after: of all queues that they fail in, where the viewer sees every source; else by what they count here.
    """
    mine = _in_place(alert, Q())
    if viewer.sources() is not None:
        return _shown(mine[:limit])
    since, until = alert.opened_at - _BEFORE, alert.opened_at + _AFTER
    rose = GroupCounter.objects.filter(group__in=[pk for pk, _ in mine], step=MINUTE, at__gte=since, at__lte=until)
    counted = rose.values_list("group_id").annotate(n=Sum("failed") + Sum("retried")).order_by("-n", "group_id")
    return _shown([(pk, n) for pk, n in counted[:limit] if n] or mine[:limit])


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


def _in_place(alert: Alert, more: Q) -> list[tuple[int, int]]:
    """(group, failures), the most first."""
    counted = _held(alert, more).values_list("group_id").annotate(n=Sum("count"))
    return list(counted.order_by("-n", "group_id")[:_MOST_IN_QUEUE])


def _held(alert: Alert, more: Q, queues: Sequence[str] = ()) -> QuerySet[FailureCount]:
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
