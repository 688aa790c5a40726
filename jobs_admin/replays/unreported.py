"""Sent jobs without a reported outcome: waiting without a worker, taken by an unguarded one, or sent while the guard
was off.

A job may go to a queue of which some workers are unguarded (an accepted obstacle), or be sent before the guard was
switched on again. If the queue has been seen empty since, with nothing fetched from it and nothing reported, the
outcome is unknown. A late report still settles such a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, Q, QuerySet

from jobs_admin import config
from jobs_admin.core.time_text import clock
from jobs_admin.fleet import heartbeats
from jobs_admin.models import DepthSample, Replay, ReplayItem
from jobs_admin.models.replay import ItemState, ReplayState
from jobs_admin.queues import liveness
from jobs_admin.queues.liveness import GuardOff
from jobs_admin.replays import outcomes

UNATTENDED_AFTER = timedelta(minutes=1)
_MOST_UNATTENDED = 1_000  # jobs whose queues are read, those that were sent first


@dataclass(frozen=True, slots=True)
class Unattended:
    since: datetime  # no report of the replay after that
    queues: list[tuple[str, str]]  # source and queue where its jobs wait


def find_unattended(replay: Replay, now: datetime) -> Unattended | None:
    """Return the queues where sent jobs wait without a worker.

    None if a job was reported within UNATTENDED_AFTER, is retried, or does not plainly wait for want of a worker.
    """
    # One that is done ended with jobs of which nobody tells.
    if not replay.sent or replay.running or replay.state == ReplayState.DONE:
        return None
    items = ReplayItem.objects.filter(replay=replay).order_by()
    waiting = items.filter(state=ItemState.SENT, first_at__isnull=True, sent_at__lt=now - UNATTENDED_AFTER).order_by(
        "n"
    )
    sent = list(waiting.values_list("failure__source", "failure__queue", "sent_at")[:_MOST_UNATTENDED])
    idle = _find_deserted_queues({(source, replay.to_queue or queue) for source, queue, _ in sent}, now)
    if not idle:
        return None
    heard = [at for at in items.aggregate(Max("settled_at"), Max("first_at")).values() if at is not None]
    since = max([min(at for *_, at in sent), *heard])
    return Unattended(since, idle) if since < now - UNATTENDED_AFTER else None


def _find_deserted_queues(places: set[tuple[str, str]], now: datetime) -> list[tuple[str, str]]:
    """Return the queues whose latest sample has waiting jobs, no active job and no known worker.

    A job that was acknowledged early is on no queue while it runs, however long that takes.
    """
    samples = DepthSample.objects.filter(
        source__in={source for source, _ in places}, step=10, at__gt=now - UNATTENDED_AFTER
    )
    last = {(sample.source, sample.queue): sample for sample in samples.order_by("at")}
    return sorted(
        place
        for place in places & last.keys()
        if (sample := last[place]).waiting and not (sample.active or sample.workers or sample.guarded_workers)
    )


TAKEN_AFTER = timedelta(minutes=2)  # a guarded worker reports long before
EMPTY_SAMPLES = 3  # of the queue, consecutive, each of them empty
TAKEN_OUTCOME = "The queue is empty and no outcome was reported: most likely a worker without the guard took the job."


def find_taken_unguarded(replay: Replay, now: datetime, most: int) -> list[int]:
    """Return items of the replay that an unguarded worker took, at most `most`."""
    if "unguarded" not in replay.accepted:
        return []
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT, sent_at__lt=now - TAKEN_AFTER).order_by()
    found: list[int] = []
    for source in sent.values_list("failure__source", flat=True).distinct():
        for queue in _find_empty_queues(source, now):
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


def find_sent_while_off(replay: Replay) -> SentWhileOff | None:
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


def find_taken_while_off(replay: Replay, now: datetime, most: int) -> tuple[list[int], str]:
    """Return at most `most` items whose queue is empty and that the guard did not report because it was off, and the
    reason.
    """
    found = find_sent_while_off(replay)
    if found is None or now - (found.off.until or found.off.since) < TAKEN_AFTER:
        return [], ""
    sent = found.items.filter(state=ItemState.SENT, sent_at__lt=now - TAKEN_AFTER)
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
    return taken, f"The guard {until} UTC; the queue is empty and no outcome was reported."


def _find_empty_queues(source: str, now: datetime) -> Iterator[str]:
    """Return partly guarded queues of the source that were empty in each of the last samples."""
    return (queue for queue, _, _ in heartbeats.partly_guarded_queues(source, now) if _is_empty(source, queue, now))


def _is_empty(source: str, queue: str, now: datetime) -> bool:
    """Return whether the queue was empty in each of the last samples, all of them younger than `TAKEN_AFTER`."""
    samples = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - TAKEN_AFTER).order_by("-at")
    seen = list(samples.values_list("is_reachable", "waiting", "active")[:EMPTY_SAMPLES])
    return len(seen) == EMPTY_SAMPLES and all(sample == (True, 0, 0) for sample in seen)
