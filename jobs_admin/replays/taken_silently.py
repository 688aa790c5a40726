"""Jobs whose outcome is not reported, which is said as soon as it is plain: a worker without our guard took them, or the
guard was off.

Sent onto a queue of which some workers are not guarded, which somebody has accepted, or sent before the guard was switched
on again. The queue has been seen empty since, with nothing fetched from it, and nothing came home. Late news still settles
such a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from jobs_admin import config
from jobs_admin.core.clock import clock
from jobs_admin.fleet import heartbeats
from jobs_admin.models import DepthSample, Replay, ReplayItem
from jobs_admin.models.replay import ItemState
from jobs_admin.queues import liveness
from jobs_admin.queues.liveness import GuardOff
from jobs_admin.replays import outcomes

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


@dataclass(frozen=True, slots=True)
class SentWhileOff:
    """Jobs of a replay without news that were sent before or while the guard was off."""

    off: GuardOff  # the latest time that concerns any of them
    items: QuerySet[ReplayItem]


def sent_while_off(replay: Replay) -> SentWhileOff | None:
    """Return the items that are sent or uncertain and that the guard may not have reported; None where there are none."""
    if not (times := liveness.guard_off_times(replay.started_at or replay.created_at)):
        return None
    items = ReplayItem.objects.filter(replay=replay, state__in=(ItemState.SENT, ItemState.UNCERTAIN)).order_by()
    items = items.filter(first_at__isnull=True, sent_at__isnull=False)
    # Sources that keep their dead jobs themselves report outcomes without a guard.
    named = items.values_list("failure__source", flat=True).distinct()
    guarded = [name for name in named if outcomes.are_reported(name) and not config.keeps_dead(name)]
    if replay.seen_sources is not None:
        guarded = [name for name in guarded if name in replay.seen_sources]
    items = items.filter(failure__source__in=guarded)
    if times[-1].until is not None:
        items = items.filter(sent_at__lt=times[-1].until)
    return SentWhileOff(times[-1], items) if items.exists() else None


def taken_while_off(replay: Replay, now: datetime, most: int) -> tuple[list[int], str]:
    """Return at most `most` items whose queue is empty and that the guard did not report because it was off, and the reason."""
    found = sent_while_off(replay)
    if found is None or now - (found.off.until or found.off.since) < AFTER:
        return [], ""
    sent = found.items.filter(state=ItemState.SENT, sent_at__lt=now - AFTER)
    until = (
        f"was off from {clock(found.off.since, now)} to {clock(found.off.until, now)}"
        if found.off.until
        else (f"has been off since {clock(found.off.since, now)}")
    )
    taken: list[int] = []
    for source, queue in sent.values_list("failure__source", "failure__queue").distinct():
        if len(taken) < most and _is_empty(source, replay.to_queue or queue, now):
            mine = sent.filter(failure__source=source, failure__queue=queue)
            taken += mine.values_list("pk", flat=True)[: most - len(taken)]
    return taken, f"The guard {until} UTC, the queue is empty and no outcome was reported."


def _empty(source: str, now: datetime) -> Iterator[str]:
    """Partly guarded queues of the source that were empty at each of the last looks."""
    return (queue for queue, _, _ in heartbeats.partly_guarded_queues(source, now) if _is_empty(source, queue, now))


def _is_empty(source: str, queue: str, now: datetime) -> bool:
    """Return whether it was empty at each of the last looks, all of them younger than `AFTER`."""
    looks = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - AFTER).order_by("-at")
    seen = list(looks.values_list("is_reachable", "waiting", "active")[:LOOKS])
    return len(seen) == LOOKS and all(look == (True, 0, 0) for look in seen)
