"""Recent events of the desk, limited in number: alerts, replays, new groups, policies and releases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, QuerySet, Subquery

from jobs_admin.models import Alert, FailureCount, Group, GroupSource
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.queues.depths import Mark, desk_marks
from jobs_admin.rights import alert_sight, group_sight, replay_sight
from jobs_admin.search import scope as scopes

MOST_OF_A_KIND = 20
CACHED_S = 15.0
_STATES = (
    ReplayState.AWAITING_APPROVAL, ReplayState.HELD, ReplayState.PAUSED,
    ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED,
)  # fmt: skip
_WAITING = (ReplayState.AWAITING_APPROVAL, ReplayState.HELD)
BACK = timedelta(days=7)
MOST_COUNTED = 99
_MARKED = {"alert": "firing", "replay": "running"}
_cached: dict[tuple[object, ...], tuple[float, list[datetime]]] = {}
_MOST_CACHED = 50


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    kind: str  # alert, replay, group, policy or release
    state: str  # of an alert, replay or group; "" for others
    words: str
    ref: str  # number of the alert or replay, fingerprint, `webhooks@7`


def forget() -> None:
    _cached.clear()


def recent(viewer: Viewer, now: datetime) -> list[Event]:
    """Return the latest MOST_OF_A_KIND events of each kind in the last BACK, latest first."""
    since = now - BACK
    found = [
        *map(_of_mark, desk_marks(viewer, since, now)),
        *_resolved(viewer, since),
        *_replays(viewer, since),
        *_new_groups(viewer, since),
    ]
    return sorted(found, key=lambda event: (event.at, event.kind, event.ref), reverse=True)


def count_since(viewer: Viewer, seen: datetime, now: datetime) -> int:
    """Return how many alerts fired, groups are new and replays wait for an operator after `seen`.

    At most MOST_COUNTED + 1, and at most CACHED_S old.
    """
    sources, clock = viewer.sources(), time.monotonic()
    key = (None if sources is None else tuple(sources), viewer.user_id)
    cached = _cached.get(key)
    if cached is None or clock - cached[0] > CACHED_S:
        if len(_cached) >= _MOST_CACHED:
            _cached.clear()
        cached = _cached[key] = clock, _attention_times(viewer, now - BACK)
    return sum(at > seen for at in cached[1])


def _attention_times(viewer: Viewer, since: datetime) -> list[datetime]:
    """Return the times of these events, in one statement, because every page needs them."""
    alerts = Alert.objects.filter(alert_sight.visible(viewer), fired_at__gte=since)
    waiting = replay_sight.visible(viewer).filter(state__in=_WAITING, state_since__gte=since)
    found = (
        alerts.order_by()
        .values_list("fired_at")
        .union(
            waiting.order_by().values_list("state_since"),
            _groups_since(viewer, since).order_by().values_list("seen"),
            all=True,
        )
    )
    return [at for (at,) in found.order_by("-fired_at")[: MOST_COUNTED + 1]]


def _of_mark(mark: Mark) -> Event:
    return Event(mark.at, mark.kind, _MARKED.get(mark.kind, ""), mark.words, mark.ref)


def _resolved(viewer: Viewer, since: datetime) -> Iterator[Event]:
    found = Alert.objects.filter(alert_sight.visible(viewer), resolved_at__gte=since, fired_at__isnull=False)
    rows = found.order_by("-resolved_at").values_list("pk", "resolved_at", "rule__name", "subject", "source")
    for pk, at, name, subject, source in rows[:MOST_OF_A_KIND]:
        yield Event(at, "alert", "resolved", f"{name}: {subject or source}", str(pk))


def _replays(viewer: Viewer, since: datetime) -> Iterator[Event]:
    """Yield replays that ended, or that need an operator."""
    found = replay_sight.visible(viewer).filter(state__in=_STATES, state_since__gte=since).order_by("-state_since")
    for pk, state, at in found.values_list("pk", "state", "state_since")[:MOST_OF_A_KIND]:
        yield Event(at, "replay", state, f"replay #{pk}", str(pk))


def _groups_since(viewer: Viewer, since: datetime) -> QuerySet[Group]:
    """Return the new groups in the sources that the viewer may see; `seen`: when a job of it first failed there."""
    here = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    found, sources = Group.objects.filter(Exists(here), last_seen__gte=since), viewer.sources()
    if sources is None:
        return found.annotate(seen=F("first_seen")).filter(seen__gte=since)
    parts = GroupSource.objects.filter(group=OuterRef("pk"), source__in=sources).order_by("first_seen")
    return found.annotate(seen=Subquery(parts.values("first_seen")[:1])).filter(seen__gte=since)


def _new_groups(viewer: Viewer, since: datetime) -> Iterator[Event]:
    found = list(_groups_since(viewer, since).order_by("-seen")[:MOST_OF_A_KIND])
    group_sight.restrict(viewer, found)
    for group in found:
        words = f"{group.error_type}: {group.message}".rstrip(": ")
        yield Event(group.first_seen, "group", "new", words, group.fingerprint)
