"""State of the desk in numbers, for Prometheus: items of replays, alerts, deliveries, sources and workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, QuerySet, Sum

from jobs_admin.models import Alert, AuditEvent, Delivery, Replay, ReplayItem, Source, Unfiled, Worker
from jobs_admin.models.access import Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.models.notice import DeliveryState
from jobs_admin.models.replay import ItemState
from jobs_admin.models.source import ALIVE_S
from jobs_admin.rights import alert_sight

ENDED_WITHIN = timedelta(days=1)
MOST_REPLAYS = 200
MOST_SOURCES = 500


@dataclass(frozen=True, slots=True)
class SourceState:
    name: str
    is_reachable: bool | None  # None: never tried
    sampled_at: datetime | None
    pulled_at: datetime | None  # for a pulled system: when everything was last filed
    workers: int  # live guarded ones
    spooled: int  # reports on their disks
    dropped: int  # reports that they lost since they started


def replay_items(viewer: Viewer, now: datetime) -> dict[str, int]:
    """Return state -> items of the latest MOST_REPLAYS replays that are open, or ended within a day."""
    lately = Q(ended_at__isnull=True) | Q(ended_at__gt=now - ENDED_WITHIN)
    latest = list(Replay.objects.filter(lately, started_at__isnull=False).order_by("-pk")[:MOST_REPLAYS])
    complete, shared = _shared_out(viewer, [replay.pk for replay in latest])
    found = {state: sum(getattr(one, state) for one in latest if one.pk in complete) for state in ItemState.values}
    if shared:
        theirs = ReplayItem.objects.filter(replay__in=shared, failure__source__in=viewer.sources() or ())
        for state, n in theirs.order_by().values_list("state").annotate(n=Count("pk")):
            found[state] += n
    return found


def _shared_out(viewer: Viewer, replays: list[int]) -> tuple[set[int], set[int]]:
    """Return the replays of which the viewer sees all sources, and those with some hidden sources.

    The rows of the former have the numbers.
    """
    sources = viewer.sources()
    if sources is None:
        return {*replays}, set()
    named: dict[int, set[str]] = defaultdict(set)
    objects = {f"replay:{pk}": pk for pk in replays}
    begun = AuditEvent.objects.filter(object__in=objects, act="replay.start", allowed=True).exclude(source="")
    for name, source in begun.values_list("object", "source"):
        named[objects[name]].add(source)
    complete = {pk for pk, theirs in named.items() if theirs <= {*sources}}
    return complete, {pk for pk in replays if pk not in complete and not named[pk].isdisjoint(sources)}


def alerts(viewer: Viewer) -> dict[str, int]:
    """Return state -> open alerts."""
    open_ = Alert.objects.filter(alert_sight.visible(viewer)).exclude(state=AlertState.RESOLVED)
    return _by_state(open_, [state for state in AlertState.values if state != AlertState.RESOLVED])


def deliveries(viewer: Viewer) -> dict[str, int]:
    """Return state -> deliveries, except delivered ones."""
    left = Delivery.objects.exclude(state=DeliveryState.DELIVERED)
    sources = viewer.sources()
    if sources is not None:
        left = left.filter(notice__source__in=sources)
    return _by_state(left, [state for state in DeliveryState.values if state != DeliveryState.DELIVERED])


def sources(viewer: Viewer, now: datetime) -> list[SourceState]:
    """Return the first MOST_SOURCES sources by name."""
    theirs = viewer.sources()
    found = Source.objects.all() if theirs is None else Source.objects.filter(name__in=theirs)
    rows = list(found.order_by("name").values_list("name", "is_reachable", "sampled_at", "pulled_at")[:MOST_SOURCES])
    alive = Worker.objects.filter(seen_at__gte=now - timedelta(seconds=ALIVE_S), source__in=[row[0] for row in rows])
    workers = alive.order_by().values("source").annotate(n=Count("pk"), spool=Sum("spooled"), lost=Sum("dropped"))
    workers = {one["source"]: (one["n"], one["spool"], one["lost"]) for one in workers}
    return [SourceState(*row, *workers.get(row[0], (0, 0, 0))) for row in rows]


def unfiled(viewer: Viewer) -> int | None:
    """Return the number of unfiled reports; None unless every source is visible, because their sources are unknown."""
    return Unfiled.objects.filter(cause="").count() if viewer.sources() is None else None


def _by_state(rows: QuerySet, states: list[str]) -> dict[str, int]:
    counted = Counter(dict(rows.order_by().values_list("state").annotate(n=Count("pk"))))
    return {state: counted[state] for state in states}
