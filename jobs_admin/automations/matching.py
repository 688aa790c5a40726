"""Jobs that an automation could act on now."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q, QuerySet

from jobs_admin.automations import documents
from jobs_admin.core import query as language
from jobs_admin.core.automation import MOST_PER_JOB, Episode
from jobs_admin.holds import in_force
from jobs_admin.holds.breakers import BreakerRow
from jobs_admin.models import Alert, Automation, AutomationDecision, Failure, ReplayItem
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.models.automation import DecisionState
from jobs_admin.models.failure import FailureState
from jobs_admin.replays.readiness import Readiness
from jobs_admin.replays.target import Target, highest_failure
from jobs_admin.search import scope

_EPISODES = 500  # latest alerts of a rule
_READS = 5  # reads, each excluding the places where an earlier one found a pause or an open breaker
_MOST_PLACES = 100  # excluded from a read

Place = tuple[str, str, str, str]  # source, queue, task and tenant


def find_ready(automation: Automation, viewer: Viewer, now: datetime) -> QuerySet[Failure]:
    """Return the dead jobs that match and that the act would change."""
    if automation.act == "replay":
        text = language.format(documents.read_query(automation))
        ready = Readiness(viewer, Target(query=text), max_id=highest_failure(), now=now).rows()
        return ready.exclude(pk__in=_often_replayed(automation).values("failure"))
    dead = of_automation(automation, viewer).filter(state=FailureState.DEAD)
    if automation.act == "assign":
        return dead.filter(group__assignee__isnull=True, group__isnull=False)
    if automation.act in ("pause", "notify") and (acted_at := _acted_at(automation)) is not None:
        dead = dead.filter(failed_at__gt=acted_at)  # the act leaves jobs dead, so each job triggers it once
    # A job restored by a person is not discarded again.
    return dead.exclude(reason__startswith="restored by") if automation.act == "discard" else dead


def select(automation: Automation, ready: QuerySet[Failure], most: int, now: datetime) -> tuple[list[int], str]:
    """Return the first jobs that nothing holds back, and why others are excluded; "" if none are."""
    excluded, why, ids = Q(pk__in=[]), "", list[int]()
    for _ in range(_READS):
        rows = ready.exclude(excluded).order_by("pk").values_list("pk", "source", "queue", "task", "tenant")[:most]
        places: dict[int, Place] = {pk: (source, queue, task, tenant) for pk, source, queue, task, tenant in rows}
        reasons = find_holds(automation, set(places.values()), now)
        ids = [pk for pk, place in places.items() if place not in reasons]
        if not reasons:
            break
        why = why or reasons[min(reasons)]
        for source, queue, task, tenant in sorted(reasons)[:_MOST_PLACES]:
            excluded |= Q(source=source, queue=queue, task=task, tenant=tenant)
    return ids, why


def find_holds(automation: Automation, places: Collection[Place], now: datetime) -> dict[Place, str]:
    """Return why acts on jobs of these places wait: the place is paused, or its breaker is open."""
    if automation.act not in ("replay", "discard"):
        return {}
    found = in_force.read({source for source, *_ in places}, now)
    reasons = {}
    for place in places:
        breaker = found.find_breaker(*place[:3], place[3] or None)
        if (pause := found.find_pause(*place)) is not None:
            reasons[place] = f"{pause} is paused."
        elif breaker is not None and (automation.act == "discard" or _can_close(breaker)):
            reasons[place] = f"Breaker {breaker.name} is open."
    return reasons


def _can_close(breaker: BreakerRow) -> bool:
    """Return whether the breaker can close without another job: it probes with a held job, or an operator decides."""
    return breaker.document is not None and bool(breaker.document.on_hold or breaker.document.forced)


def _acted_at(automation: Automation) -> datetime | None:
    states = (DecisionState.PLANNED, DecisionState.DONE)
    decisions = AutomationDecision.objects.filter(automation=automation.pk, state__in=states)
    return decisions.aggregate(at=Max("at"))["at"]


def of_automation(automation: Automation, viewer: Viewer) -> QuerySet[Failure]:
    """Return the jobs that match, in any state."""
    condition = scope.visible(viewer) & scope.build_condition(documents.read_query(automation), states=False)
    own = Q() if automation.source == EVERY_SOURCE else Q(source=automation.source)
    return Failure.objects.filter(condition, own)


def is_quiet(automation: Automation, viewer: Viewer, now: datetime) -> bool:
    """Return whether no matching job, in any state, has failed within `quiet_s`."""
    since = now - timedelta(seconds=automation.quiet_s)
    return not of_automation(automation, viewer).filter(failed_at__gt=since).exists()


def read_episodes(automation: Automation) -> list[Episode]:
    """Return the alerts of its rule, of its source."""
    if automation.rule_id is None:
        return []
    found = Alert.objects.filter(rule=automation.rule_id, fired_at__isnull=False)
    if automation.source != EVERY_SOURCE:
        found = found.filter(source=automation.source)
    latest = found.order_by("-fired_at").values_list("fired_at", "resolved_at")[:_EPISODES]
    return [Episode(fired.timestamp(), resolved.timestamp() if resolved else None) for fired, resolved in latest]


def _often_replayed(automation: Automation) -> QuerySet:
    replays = AutomationDecision.objects.filter(automation=automation.pk, replay__isnull=False).values("replay")
    sent = ReplayItem.objects.filter(replay__in=replays, sent_at__isnull=False).order_by()
    return sent.values("failure").annotate(times=Count("pk")).filter(times__gte=MOST_PER_JOB)
