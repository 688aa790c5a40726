"""Reporting of outcomes: where the outcome of sent jobs is not reported, and paces that need outcomes.

Outcomes are not reported by sources that cannot, from queues whose reports are refused, for jobs that wait without a
worker, for jobs that an unguarded worker took, and for jobs sent while the guard was off.

A job may be sent to a queue where some workers are unguarded (an accepted obstacle), or before the guard was switched
on again. If the queue has been seen empty since then, with nothing fetched from it and nothing reported, the outcome is
unknown. A late report still settles such a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, Q, QuerySet

from jobs_admin import config
from jobs_admin.core.figures import clock
from jobs_admin.core.pacing import CAREFUL, Pace
from jobs_admin.core.refused import Refused
from jobs_admin.db import abilities
from jobs_admin.fleet import heartbeats
from jobs_admin.models import DepthSample, Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.replay import OPEN_ITEM, ItemState, ReplayState
from jobs_admin.queues import liveness, refused_reports
from jobs_admin.queues.liveness import GuardOff
from jobs_admin.replays.rights import sources_of

_MOST_ITEMS = 500  # items of each state whose queues are read

UNATTENDED_AFTER = timedelta(minutes=1)
_MOST_UNATTENDED = 1_000  # jobs whose queues are read, the earliest sent
TAKEN_AFTER = timedelta(minutes=2)  # a guarded worker reports long before that
EMPTY_SAMPLES = 3  # consecutive samples in which the queue is empty
TAKEN_OUTCOME = "The queue is empty and no outcome was reported: most likely a worker without the guard took the job."


def refused_report_warnings(viewer: Viewer, replays: Sequence[Replay], now: datetime) -> dict[int, list[str]]:
    """Return replay id -> a sentence per visible source that refuses the reports that its jobs wait for.

    The warnings of a draft are in its preview.
    """
    waiting = [one for one in replays if one.planned or one.sent or one.running or one.uncertain]
    if not waiting:
        return {}
    refused = [one for one in refused_reports.find(now) if viewer.may(VIEWER, one.source)]
    if not refused:
        return {}
    found = {}
    for replay in waiting:
        places = _unsettled_queues(replay)
        hit = [one for one in refused if any(one.source == source and one.concerns(queue) for source, queue in places)]
        found[replay.pk] = [one.sentence for one in hit]
    return found


def _unsettled_queues(replay: Replay) -> set[tuple[str, str | None]]:
    """Return source and queue of the replay's jobs that are not settled. None: the queue is unknown."""
    found: set[tuple[str, str]] = set()
    for state in OPEN_ITEM:
        items = ReplayItem.objects.filter(replay=replay, state=state).order_by("n")
        found |= set(items.values_list("failure__source", "failure__queue")[:_MOST_ITEMS])
    if not found:  # jobs are frozen, their items not created yet
        return {(source, replay.to_queue or None) for source in sources_of(replay)}
    return {(source, replay.to_queue or queue) for source, queue in found}


def are_reported(source: str) -> bool:
    can = abilities.capabilities(source)
    return can is None or can.outcomes  # outcomes were required when the job was sent


def unreported_sources(sources: Iterable[str]) -> list[str]:
    """Return those of the sources that do not report how a job ends: its item stays `sent`."""
    return [name for name in sources if not are_reported(name)]


def gone_reason(replay: Replay) -> str:
    """Return the reason of a failure that is gone because its source does not report how the sent job ends."""
    return f"sent in replay #{replay.pk}: its source does not report how a job ends"


def refuse_blind_pace(pace: Pace, sources: Iterable[str]) -> None:
    """Raise Refused if the pace waits for outcomes that are never reported."""
    if not (names := unreported_sources(sources)):
        return
    waits = {
        "pace": pace.style == CAREFUL,
        "pace.canary": pace.canary,
        "pace.ramp": pace.ramp,
        "pace.in_flight": pace.in_flight,
        "pace.per_key.concurrency": pace.per_key and pace.per_key.concurrency,
    }
    for field, value in waits.items():
        if value:
            what = "careful pace" if field == "pace" else field.removeprefix("pace.")
            raise Refused(
                "bad_pace",
                f"{names[0]} does not report how its jobs end, so there is no {what} for them. Nothing was changed. "
                f"Choose steady with a rate, or leave them out: -source:{names[0]}.",
                field=field,
            )


@dataclass(frozen=True, slots=True)
class Unattended:
    since: datetime  # no report of the replay after that
    queues: list[tuple[str, str]]  # source and queue where its jobs wait


def find_unattended(replay: Replay, now: datetime) -> Unattended | None:
    """Return the queues where sent jobs wait without a worker.

    Return None if a job was reported within UNATTENDED_AFTER or is being retried, or if it is not evident that a worker
    is missing.
    """
    # A replay that is done ended with jobs whose outcome is not reported.
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
    """Return the queues whose latest sample shows waiting jobs, no active job and no worker.

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


def find_taken_unguarded(replay: Replay, now: datetime, most: int) -> list[int]:
    """Return at most `most` items of the replay that an unguarded worker took."""
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
    """Unreported jobs of a replay that were sent before or while the guard was off."""

    off: GuardOff  # the latest period that concerns any of them
    items: QuerySet[ReplayItem]


def find_sent_while_off(replay: Replay) -> SentWhileOff | None:
    """Return the items that are sent or uncertain and that the guard may not have reported; None if there are none."""
    if not (times := liveness.guard_off_times(replay.started_at or replay.created_at)):
        return None
    items = ReplayItem.objects.filter(replay=replay, state__in=(ItemState.SENT, ItemState.UNCERTAIN)).order_by()
    items = items.filter(first_at__isnull=True, sent_at__isnull=False)
    # Sources that store their dead jobs themselves report outcomes without a guard.
    named = items.values_list("failure__source", flat=True).distinct()
    guarded = [name for name in named if are_reported(name) and not config.keeps_dead(name)]
    if replay.seen_sources is not None:
        guarded = [name for name in guarded if name in replay.seen_sources]
    items = items.filter(failure__source__in=guarded)
    if times[-1].until is not None:
        items = items.filter(sent_at__lt=times[-1].until)
    return SentWhileOff(times[-1], items) if items.exists() else None


def find_taken_while_off(replay: Replay, now: datetime, most: int) -> tuple[list[int], str]:
    """Return at most `most` items on empty queues that the guard did not report because it was off, and the reason."""
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
    found = heartbeats.partly_guarded_queues(source, heartbeats.latest_samples(source, now))
    return (queue for queue, _, _ in found if _is_empty(source, queue, now))


def _is_empty(source: str, queue: str, now: datetime) -> bool:
    """Return whether the queue was empty in each of the last samples, all of them younger than `TAKEN_AFTER`."""
    samples = DepthSample.objects.filter(source=source, queue=queue, step=10, at__gt=now - TAKEN_AFTER).order_by("-at")
    seen = list(samples.values_list("is_reachable", "waiting", "active")[:EMPTY_SAMPLES])
    return len(seen) == EMPTY_SAMPLES and all(sample == (True, 0, 0) for sample in seen)
