"""Groups affected by an alert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from django.db.models import Q, QuerySet

from jobs_admin.alerts.links import group_page, links, place_terms, state_term
from jobs_admin.core import query as language
from jobs_admin.core.alert_metrics import Link, Subject
from jobs_admin.core.query import Query
from jobs_admin.models import Alert, Failure, FailureCount, Group, Notice, Rule
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import FailureState
from jobs_admin.models.notice import ALERT_FIRING
from jobs_admin.rights import group_sight
from jobs_admin.search import scope

MOST_ONE_BY_ONE = 20_000  # jobs that are counted one by one, where no counter knows
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
    """Return the groups of the alert's own jobs, counted within its search; not those of queues that share its notice.

    For a resolved alert, the numbers of its last notice; if that covered other queues too, those of its link's search.
    """
    if alert.is_open:
        return top_groups([alert], limit)
    shares = alert.told_with_id is not None or Alert.objects.filter(told_with=alert.pk).exists()
    if shares and alert.source and alert.rule.measure.subject is not Subject.VIEW:
        found = language.parse(links(alert, alert.resolved_at or alert.judged_at).failures_query)
        return _build_groups(
            _count_by_group(Failure.objects.filter(scope.build_condition(found))).most_common(limit), alert
        )
    firing = Notice.objects.filter(alert=alert, type=ALERT_FIRING).order_by("-pk")
    listed = firing.values_list("body__top_groups", flat=True).first() or []
    # A notice names a group by its page.
    counts = {unquote(one["url"].rstrip("/").rpartition("/")[2]): int(one["count"]) for one in listed[:limit]}
    groups = dict(Group.objects.filter(fingerprint__in=counts).values_list("fingerprint", "pk"))
    return _build_groups([(groups[name], n) for name, n in counts.items() if name in groups], alert)


def top_groups(alerts: Sequence[Alert], limit: int = 5) -> list[RisenGroup]:
    """Return the groups of the dead jobs in the queues of these alerts, of one rule and source: by their largest
    counters.
    """
    if not alerts:
        return []
    is_of_quarantine = alerts[0].rule.measure.link is Link.QUARANTINE
    counted = (FailureState.QUARANTINED,) if is_of_quarantine else _OPEN
    counts = Q(state__in=counted)
    queues = sorted({one.subject for one in alerts if one.subject})[:200]
    if _is_narrowed(alerts[0].rule):
        terms = [*place_terms(alerts[0], queues), state_term(*map(str, counted))]
        return _build_groups(
            _count_by_group(Failure.objects.filter(scope.build_condition(Query(tuple(terms))))).most_common(limit),
            alerts[0],
        )
    # A notice is written in a transaction: to find the large ones takes less than half of adding up a hundred thousand.
    largest = _find_counters(alerts[0], counts, queues).order_by("-count", "group_id")[:_MOST_COUNTERS]
    found: Counter[int] = Counter()
    for group, n in largest.values_list("group_id", "count"):
        found[group] += n
    return _build_groups(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit], alerts[0])


def _find_counters(alert: Alert, more: Q, queues: Sequence[str]) -> QuerySet[FailureCount]:
    if alert.rule.measure.subject is Subject.VIEW or not alert.source:
        return FailureCount.objects.none()
    counters = FailureCount.objects.filter(more, source=alert.source, group_id__gt=0, count__gt=0)
    if queues or alert.subject:
        counters = counters.filter(queue__in=queues or [alert.subject])
    return counters


def _is_narrowed(rule: Rule) -> bool:
    """Return whether the rule looks at some jobs of a queue only, which the counters by queue do not know."""
    return rule.measure.subject is not Subject.VIEW and rule.is_narrowed


def _count_by_group(failures: QuerySet[Failure]) -> Counter[int]:
    """Group id -> jobs, of the latest MOST_ONE_BY_ONE of them."""
    latest = failures.filter(group__isnull=False).order_by("-pk").values_list("group_id", flat=True)
    return Counter(pk for pk in latest[:MOST_ONE_BY_ONE] if pk is not None)


def _build_groups(counted: Sequence[tuple[int, int]], alert: Alert) -> list[RisenGroup]:
    """Return the groups visible to everyone who sees the alert's source: a notice goes to all of them."""
    seen = group_sight.viewer_of_sources([alert.source]) if alert.source else ENGINE
    groups = group_sight.read(seen, [pk for pk, _ in counted])
    return [
        RisenGroup(groups[pk].title, groups[pk].name, int(n), group_page(groups[pk].name), groups[pk].runbook_url)
        for pk, n in counted
        if pk in groups
    ]
