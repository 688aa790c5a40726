"""Groups affected by an alert: for its notice, and for its page with what an operator needs to act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from urllib.parse import unquote

from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum

from jobs_admin.alerts.links import group_page, links, place_terms, state_term
from jobs_admin.core import query as language
from jobs_admin.core.alert_metrics import Link, Subject
from jobs_admin.core.query import Query
from jobs_admin.groups import dependencies, group_finder, group_numbers
from jobs_admin.models import Alert, Failure, FailureCount, Group, Notice, Release, Rule
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.notice import ALERT_FIRING
from jobs_admin.queues import rates
from jobs_admin.rights import group_sight
from jobs_admin.search import scope

MOST_ONE_BY_ONE = 20_000  # jobs counted from rows, if there is no counter
_MOST_COUNTERS = 200  # a group has one counter per task and state
_OPEN = (FailureState.DEAD, FailureState.REPLAYING)
TENANTS_OVER = 500  # the latest jobs of a group, whose tenants are counted
_BEFORE = timedelta(minutes=30)  # a release within this time before the condition was met may be its cause


@dataclass(frozen=True, slots=True)
class RisenGroup:
    title: str
    fingerprint: str
    count: int
    url: str
    runbook_url: str = ""


def groups_behind(alert: Alert, limit: int = 5) -> list[RisenGroup]:
    """Return the groups of the alert's own jobs, counted within its search, without queues that share its notice.

    For a resolved alert, return the numbers of its last notice; if that covered other queues too, those of its link's
    search.
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
    # A notice identifies a group by the address of its page.
    counts = {unquote(one["url"].rstrip("/").rpartition("/")[2]): int(one["count"]) for one in listed[:limit]}
    groups = dict(Group.objects.filter(fingerprint__in=counts).values_list("fingerprint", "pk"))
    return _build_groups([(groups[name], n) for name, n in counts.items() if name in groups], alert)


def top_groups(alerts: Sequence[Alert], limit: int = 5) -> list[RisenGroup]:
    """Return the groups of the dead jobs in the queues of these alerts, largest counters first.

    The alerts have one rule and one source.
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
    # A notice is written in a transaction: finding the largest counters takes less than half as long as adding up a
    # hundred thousand.
    largest = _find_counters(alerts[0], counts, queues).order_by("-count", "group_id")[:_MOST_COUNTERS]
    found: Counter[int] = Counter()
    for group, n in largest.values_list("group_id", "count"):
        found[group] += n
    return _build_groups(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit], alerts[0])


class Prognosis(Protocol):
    """Protocol of `replays.prognosis.Prognosis`."""

    @property
    def code(self) -> str: ...
    @property
    def reason(self) -> str: ...


# Group id -> why it is likely to fail again.
Predict = Callable[[Viewer, list[Group], datetime], Mapping[int, Prognosis]]


@dataclass(frozen=True, slots=True)
class Cause:
    """A group that contributes to an alert."""

    group: Group  # with the fields that the viewer may read
    count: int  # unrecovered jobs that the alert counts
    tenants: int  # of the latest TENANTS_OVER of these
    has_all_tenants: bool
    per_minute: float | None  # current failed attempts, in all queues; None for a group with hidden sources
    is_elsewhere: bool  # it has unrecovered jobs in other queues, too
    prognosis: Prognosis | None  # why its jobs are likely to fail again in a replay
    place: str  # its tasks and its place in the code, as text
    dependencies: list[dependencies.Named]  # dependencies that its jobs failed on, at sources that the viewer sees


@dataclass(frozen=True, slots=True)
class Causes:
    """The current failures behind an alert."""

    leading: list[Cause]  # those that fail frequently now first, then by size
    others: int  # groups not listed
    dead: int  # dead jobs
    release: Release | None  # of the source, shortly before the condition was met


def has_failures_behind(alert: Alert) -> bool:
    """Return whether failing jobs make it fire, as opposed to a worker crash or an unreachable source."""
    return alert.rule.measure.link is not Link.QUARANTINE and not alert.rule.measure.meaning


def find_causes(viewer: Viewer, alert: Alert, now: datetime, predict: Predict, limit: int = 3) -> Causes:
    """Return the groups of an open alert's own jobs, with what an operator needs to act.

    The number of queries does not depend on the number of groups. `predict`: `replays.prognosis.predict`.
    """
    counts: Counter[int] = Counter()
    dead: Counter[int] = Counter()
    counted = _count_states(viewer, alert, now)
    for group, state, n in counted:
        counts[group] += n
        dead[group] += n if state == FailureState.DEAD else 0
    # Only the largest counters are read; jobs of further groups are added up.
    more_dead, more_groups = (
        _count_further(alert, dead.total(), len(counts)) if len(counted) >= _MOST_COUNTERS else (0, 0)
    )
    groups = Group.objects.in_bulk(counts.keys())
    partial = group_sight.restrict(viewer, groups.values())
    prognoses = predict(viewer, list(groups.values()), now) if groups else {}
    per_minute = group_numbers.per_minute(list(counts), now)
    # Groups that fail frequently now come before those with more jobs.
    order = sorted(groups, key=lambda pk: (per_minute[pk] < rates.LOUD_PER_MIN, -counts[pk], pk))
    pks = order[:limit]
    places = group_finder.read_places([groups[pk] for pk in pks], viewer)
    named = dependencies.of_groups(viewer, pks)
    tenants = _count_tenants(alert, pks)
    elsewhere = {
        one.group_id for one in group_numbers.counters(viewer, pks)
        if one.state in _OPEN and (one.source, one.queue) != (alert.source, alert.subject)
    }  # fmt: skip
    leading = [
        Cause(
            groups[pk],
            counts[pk],
            *tenants.get(pk, (0, True)),
            None if pk in partial else per_minute[pk],
            pk in elsewhere,
            prognoses.get(pk),
            places[pk].words,
            named.get(pk, []),
        )
        for pk in pks
    ]
    releases = Release.objects.filter(source=alert.source, at__gte=alert.opened_at - _BEFORE, at__lte=alert.opened_at)
    return Causes(
        leading,
        max(0, len(groups) - len(pks)) + more_groups,
        dead.total() + more_dead,
        releases.order_by("-at").first() if counts and alert.source else None,
    )


def count_outcomes(viewer: Viewer, alert: Alert, now: datetime) -> tuple[Counter[str], list[RisenGroup]]:
    """Return state -> jobs, and the largest groups, of the latest MOST_ONE_BY_ONE failures that an alert links to."""
    found = Failure.objects.filter(scope.visible(viewer), scope.build_condition(_search(alert, now)))
    rows = list(found.order_by("-pk").values_list("state", "group")[:MOST_ONE_BY_ONE])
    groups = Counter(group for _, group in rows if group is not None)
    return Counter(state for state, _ in rows), _build_groups(groups.most_common(5), alert)


def _search(alert: Alert, now: datetime) -> Query:
    return language.parse(links(alert, now).failures_query)


def _count_states(viewer: Viewer, alert: Alert, now: datetime) -> list[tuple[int, str, int]]:
    """Return (group, state, jobs) as the alert counts them: from counters, or from the latest rows."""
    states = (*_OPEN, FailureState.RETRYING) if alert.rule.measure.link is Link.FAILED else _OPEN
    if alert.rule.measure.subject is Subject.VIEW:
        mine = Q(scope.visible(viewer), scope.build_condition(_search(alert, now)), state__in=states)
    elif _is_narrowed(alert.rule):
        terms = [*place_terms(alert, [alert.subject]), state_term(*map(str, states))]
        mine = scope.build_condition(Query(tuple(terms)))
    else:
        counters = _find_counters(alert, Q(state__in=states), []).order_by("-count", "group_id")
        return list(counters.values_list("group_id", "state", "count")[:_MOST_COUNTERS])
    latest = Failure.objects.filter(mine, group__isnull=False).order_by("-pk").values_list("group_id", "state")
    return [(group, state, n) for (group, state), n in Counter(latest[:MOST_ONE_BY_ONE]).items()]


def _count_further(alert: Alert, dead: int, groups: int) -> tuple[int, int]:
    """Return the dead jobs that the alert counts, and the groups, beyond these counts."""
    if alert.rule.measure.subject is Subject.VIEW or _is_narrowed(alert.rule):
        return 0, 0
    found = _find_counters(alert, Q(state__in=_OPEN), []).aggregate(
        dead=Sum("count", filter=Q(state=FailureState.DEAD), default=0), groups=Count("group_id", distinct=True)
    )
    return max(0, found["dead"] - dead), max(0, found["groups"] - groups)


def _count_tenants(alert: Alert, pks: Sequence[int]) -> dict[int, tuple[int, bool]]:
    """Return group -> tenants of its latest open jobs in the alert's queue, and whether those were all its jobs."""
    if not pks:
        return {}
    table = Failure._meta.db_table
    # One slice per group and state, read from its index; source and queue are checked within the slice.
    one = f"SELECT group_id, source, queue, tenant FROM {table} WHERE group_id = %s AND state = %s ORDER BY id DESC LIMIT {TENANTS_OVER}"
    slices, values = [], list[object]()
    for pk in pks:
        for state in (FailureState.DEAD, FailureState.RETRYING):
            slices.append(f"SELECT * FROM ({one}) AS slice_{len(slices)}")
            values += [pk, str(state)]
    place, of_place = ("1 = 1", []) if not alert.subject or alert.rule.measure.subject is Subject.VIEW else (
        "source = %s AND queue = %s", [alert.source, alert.subject]
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT group_id, COUNT(DISTINCT CASE WHEN {place} AND tenant <> '' THEN tenant END), COUNT(*) "
            f"FROM ({' UNION ALL '.join(slices)}) AS latest GROUP BY group_id",
            [*of_place, *values],
        )
        return {pk: (tenants, jobs < TENANTS_OVER) for pk, tenants, jobs in cursor.fetchall()}


def _find_counters(alert: Alert, more: Q, queues: Sequence[str]) -> QuerySet[FailureCount]:
    if alert.rule.measure.subject is Subject.VIEW or not alert.source:
        return FailureCount.objects.none()
    counters = FailureCount.objects.filter(more, source=alert.source, group_id__gt=0, count__gt=0)
    if queues or alert.subject:
        counters = counters.filter(queue__in=queues or [alert.subject])
    return counters


def _is_narrowed(rule: Rule) -> bool:
    """Return whether the rule counts only some jobs of a queue, which counters by queue do not distinguish."""
    return rule.measure.subject is not Subject.VIEW and rule.is_narrowed


def _count_by_group(failures: QuerySet[Failure]) -> Counter[int]:
    """Return group id -> jobs, among the latest MOST_ONE_BY_ONE."""
    latest = failures.filter(group__isnull=False).order_by("-pk").values_list("group_id", flat=True)
    return Counter(pk for pk in latest[:MOST_ONE_BY_ONE] if pk is not None)


def _build_groups(counted: Sequence[tuple[int, int]], alert: Alert) -> list[RisenGroup]:
    """Return the groups visible to everyone who sees the alert's source, because a notice is sent to all of them."""
    seen = group_sight.viewer_of_sources([alert.source]) if alert.source else ENGINE
    groups = group_sight.read(seen, [pk for pk, _ in counted])
    return [
        RisenGroup(groups[pk].title, groups[pk].name, int(n), group_page(groups[pk].name), groups[pk].runbook_url)
        for pk, n in counted
        if pk in groups
    ]
