"""Jobs that a worker without our guard took: nobody will tell how they end, and that is said as soon as it is plain.

Sent onto a queue of which some workers are not guarded, which somebody has accepted; the queue has been seen empty since, with
nothing fetched from it, and nothing came home. Late news still settles such a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Q

from jobs_admin import heartbeats
from jobs_admin.models import DepthSample, Replay, ReplayItem
from jobs_admin.models.replay import ItemState

AFTER = timedelta(minutes=2)  # the report of a guarded worker is home long before
LOOKS = 3  # at the queue, one after the other: each saw it empty
SAYS = "Its queue is empty and nothing came home: most likely a worker without our guard took it."


def taken(replay: Replay, now: datetime, most: int) -> list[int]:
    """Items of the replay, at most so many."""
    if "unguarded" not in replay.accepted:
        return []
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT, sent_at__lt=now - AFTER).order_by()
    found: list[int] = []
    for source in sent.values_list("failure__source", flat=True).distinct():
        for queue in _empty(source, now):
            if replay.to_queue not in ("", queue):
                continue
            there = Q() if replay.to_queue else Q(failure__queue=queue)
            found += sent.filter(there, failure__source=source).values_list("pk", flat=True)[: most - len(found)]
    return found


def _empty(source: str, now: datetime) -> Iterator[str]:
    """Partly guarded queues of the source that were empty at each of the last looks, all of them younger than `AFTER`."""
    for queue, _, _ in heartbeats.partly_guarded(source, now):
        looks = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - AFTER).order_by("-at")
        seen = list(looks.values_list("is_reachable", "waiting", "active")[:LOOKS])
        if len(seen) == LOOKS and all(look == (True, 0, 0) for look in seen):
            yield queue
