"""Reading of alerts: the list, one alert, its events, the history for charts, and response times."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q, QuerySet

from jobs_admin.core.refused import NotFound
from jobs_admin.core.text import whole_number
from jobs_admin.models import Alert, AlertEvent, AuditEvent, Replay
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import GRAVITY, IS_FIRING, AlertState, find_firing
from jobs_admin.rights import alert_sight
from jobs_admin.search import scope as scopes

COUNT_CAP = 10_000
MOST_TOGETHER = 200  # alerts of the same notification whose events are shown
MOST_EVENTS = 500
_MOST_TIMED = 1_000  # latest alerts included in medians
_MOST_REPLAYS = 20
OPEN = "open"  # filter for all states but resolved


@dataclass(frozen=True, slots=True)
class AlertPage:
    rows: list[Alert]  # latest first, with rule and told_with
    next: str | None  # `after` of the next page; None on the last
    count: int  # of all matches, at most COUNT_CAP
    count_is_capped: bool


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of the alerts that fired, in seconds; None if no alert reached that state."""

    acknowledge_s_median: float | None  # since firing
    resolve_s_median: float | None  # since the condition became true, like an alert's duration
    count: int  # number that fired


def listing(
    viewer: Viewer,
    *,
    state: str = "",
    source: str = "",
    queue: str = "",
    rule: str = "",
    after: str | None = None,
    limit: int = 50,
) -> AlertPage:
    """Return a page, latest first.

    `state` is one of AlertState or `open`; `rule` is a rule's number or name. Unknown values match nothing.
    """
    found = _visible(viewer).order_by("-pk")
    if state:
        found = found.exclude(state=AlertState.RESOLVED) if state == OPEN else found.filter(state=state)
    found = filter_place(found, source, queue, rule)
    total = found[: COUNT_CAP + 1].count()
    if (below := whole_number(after)) is not None:
        found = found.filter(pk__lt=below)
    rows = list(found[: limit + 1])
    next_after = str(rows[limit - 1].pk) if len(rows) > limit else None
    return AlertPage(rows[:limit], next_after, min(total, COUNT_CAP), total > COUNT_CAP)


def filter_place(found: QuerySet[Alert], source: str, queue: str, rule: str) -> QuerySet[Alert]:
    """Filter by source, queue and rule (its number or name), each if given."""
    if source:
        found = found.filter(source=source)
    if queue:
        found = found.filter(subject=queue)
    if rule:
        number = whole_number(rule)
        found = found.filter(Q(rule__name=rule) | Q(rule_id=number) if number is not None else Q(rule__name=rule))
    return found


def get(viewer: Viewer, pk: int) -> Alert:
    """Return one alert with its rule and the leader of its bundle. Raises NotFound."""
    found = _visible(viewer).filter(pk=pk).first() if 0 < pk < 2**63 else None
    if found is None:
        raise NotFound("No such alert, or you have no role on its source.")
    return found


def bundle(alert: Alert) -> QuerySet[Alert]:
    """Return all alerts of its bundle, including itself. They have the same rule and source."""
    leader = alert.told_with_id or alert.pk
    return Alert.objects.filter(Q(pk=leader) | Q(told_with_id=leader)).order_by("pk")


def events(viewer: Viewer, alert: Alert) -> list[AlertEvent]:
    """Return the transitions of its bundle, oldest first: the latest MOST_EVENTS, each with its alert."""
    whose = list(bundle(alert).values_list("pk", flat=True)[:MOST_TOGETHER])
    found = AlertEvent.objects.filter(alert__in=[*whose, alert.pk]).select_related("alert", "notice")
    return sorted(found.order_by("-at", "-pk")[:MOST_EVENTS], key=lambda event: (event.at, event.pk))


def firing(viewer: Viewer, limit: int = 20) -> list[Alert]:
    """Return firing alerts, acknowledged or not, worst first, in the order of `find_firing`."""
    found = _visible(viewer)
    if not found.filter(IS_FIRING).exists():  # usually none: this check takes a fifth of the time
        return []
    found = find_firing(found)
    return list(found[:limit])


@dataclass(frozen=True, slots=True)
class Fold:
    """Alerts on one line of a list: those of one notification, and those of narrower rules on the same queues."""

    lead: Alert  # the worst
    others: list[Alert]  # of the same notification, worst first
    parts: list[Alert]  # alerts on a subset of the same jobs, such as one tenant's
    severity: str  # the highest of all


def fold(alerts: Iterable[Alert]) -> list[Fold]:
    """Fold alerts of a list, worst first as in `firing`.

    Those in different states stay separate: they need different acts.

    The jobs of a narrower rule are among those of the queue's own alert, so the fold has the highest severity of its
    parts.
    """
    ranked = sorted(alerts, key=_rank)
    of_queue = {_place(one): one for one in reversed(ranked) if not one.rule.is_narrowed}
    bundles: dict[tuple[int, str], Fold] = {}
    for narrow in (False, True):
        for one in ranked:
            if one.rule.is_narrowed is narrow:
                wide = of_queue.get(_place(one)) if narrow else None
                _add_to_fold(bundles, one, wide)
    # `sorted` is stable: equal alerts keep the order of the list.
    return sorted(bundles.values(), key=lambda one: (GRAVITY.get(one.severity, 2), _rank(one.lead)[1:]))


def _add_to_fold(folds: dict[tuple[int, str], Fold], one: Alert, wide: Alert | None) -> None:
    home = wide or one
    key = (home.told_with_id or home.pk, home.state)
    if (known := folds.get(key)) is None:
        folds[key] = Fold(one, [], [], one.severity)
        return
    (known.parts if wide is not None else known.others).append(one)
    severity = min(known.severity, one.severity, key=lambda each: GRAVITY.get(each, 2))
    folds[key] = replace(known, severity=severity)


def _place(alert: Alert) -> tuple[str, ...]:
    return alert.source, alert.subject, alert.rule.metric, alert.state


def _rank(alert: Alert) -> tuple[int, bool, float]:
    excess = alert.value - alert.threshold if alert.rule.measure.counts_jobs else 0.0
    return GRAVITY.get(alert.severity, 2), alert.state != AlertState.FIRING, -excess


def earlier(viewer: Viewer, alert: Alert, limit: int = 10) -> list[Alert]:
    """Return earlier episodes of the same rule, source and subject, latest first.

    `replays` of each: those started for its source while it was open, if the viewer may see them.
    """
    same = _visible(viewer).filter(rule=alert.rule_id, source=alert.source, subject=alert.subject, pk__lt=alert.pk)
    rows = list(same.exclude(fired_at=None).order_by("-pk")[:limit])
    started = _replays(viewer, rows)
    for row in rows:
        row.replays = started[row.pk]
    return rows


def _replays(viewer: Viewer, rows: list[Alert]) -> dict[int, list[Replay]]:
    """Return the replays started during each alert; the audit has the sources of each start."""
    found: dict[int, list[Replay]] = defaultdict(list)
    ended = [(row, row.resolved_at) for row in rows if row.resolved_at is not None and row.source]
    if not ended:
        return found
    begun = AuditEvent.objects.filter(
        scopes.visible(viewer),
        act="replay.start",
        allowed=True,
        source=ended[0][0].source,
        at__gte=min(row.opened_at for row, _ in ended),
        at__lte=max(end for _, end in ended),
    )
    times = [(event.at, whole_number(event.object.rpartition(":")[2])) for event in begun.order_by("-pk")[:200]]
    replays = Replay.objects.in_bulk([number for _, number in times if number is not None])
    for row, end in ended:
        during = [replays[n] for at, n in times if n in replays and row.opened_at <= at <= end]
        found[row.pk] = during[:_MOST_REPLAYS]
    return found


def episodes(
    viewer: Viewer, since: datetime, *, source: str = "", queue: str = "", rule: str = "", limit: int = 2_000
) -> list[Alert]:
    """Return the alerts that fired and were not resolved before `since`, latest first, with their rules.

    `rule`: its number or name.
    """
    fired = Alert.objects.filter(alert_sight.visible(viewer), fired_at__isnull=False)
    found = fired.filter(Q(resolved_at=None) | Q(resolved_at__gte=since))
    found = filter_place(found, source, queue, rule)
    return list(found.select_related("rule").order_by("-pk")[:limit])


def times(viewer: Viewer, since: datetime) -> Times:
    """Return the response times of the latest thousand alerts that fired since then."""
    fired = Alert.objects.filter(alert_sight.visible(viewer), fired_at__gte=since)
    rows = list(
        fired.order_by("-pk").values_list("opened_at", "fired_at", "acknowledged_at", "resolved_at")[:_MOST_TIMED]
    )
    acknowledged = [(known - fired_at).total_seconds() for _, fired_at, known, _ in rows if known is not None]
    resolved = [(over - opened_at).total_seconds() for opened_at, _, _, over in rows if over is not None]
    return Times(
        statistics.median(acknowledged) if acknowledged else None,
        statistics.median(resolved) if resolved else None,
        len(rows),
    )


def _visible(viewer: Viewer) -> QuerySet[Alert]:
    return Alert.objects.filter(alert_sight.visible(viewer)).select_related("rule", "told_with")
