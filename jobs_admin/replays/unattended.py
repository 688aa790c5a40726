"""Jobs of a replay that were sent and that nobody takes: told while somebody may still start a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max

from jobs_admin.models import DepthSample, Replay, ReplayItem
from jobs_admin.models.replay import ItemState, ReplayState

AFTER = timedelta(minutes=1)
_MOST = 1_000  # jobs whose queues are looked at, those that were sent first


@dataclass(frozen=True, slots=True)
class Unattended:
    since: datetime  # nothing of the replay was heard from then on
    queues: list[tuple[str, str]]  # source and queue where its jobs wait


def unattended(replay: Replay, now: datetime) -> Unattended | None:
    """None where a job of it was heard of within AFTER, is tried again, or does not plainly wait for want of a worker."""
    # One that is done ended with jobs of which nobody tells.
    if not replay.sent or replay.running or replay.state == ReplayState.DONE:
        return None
    items = ReplayItem.objects.filter(replay=replay).order_by()
    waiting = items.filter(state=ItemState.SENT, first_at__isnull=True, sent_at__lt=now - AFTER).order_by("n")
    sent = list(waiting.values_list("failure__source", "failure__queue", "sent_at")[:_MOST])
    idle = _deserted({(source, replay.to_queue or queue) for source, queue, _ in sent}, now)
    if not idle:
        return None
    heard = [at for at in items.aggregate(Max("settled_at"), Max("first_at")).values() if at is not None]
    since = max([min(at for *_, at in sent), *heard])
    return Unattended(since, idle) if since < now - AFTER else None


def _deserted(places: set[tuple[str, str]], now: datetime) -> list[tuple[str, str]]:
    """Those where the last look saw jobs that wait, nobody at work, and no worker that it knows of.

    A job that was acknowledged early is on no queue while it runs, however long that takes.
    """
    looks = DepthSample.objects.filter(source__in={source for source, _ in places}, step=10, at__gt=now - AFTER)
    last = {(look.source, look.queue): look for look in looks.order_by("at")}
    return sorted(
        place
        for place in places & last.keys()
        if (look := last[place]).waiting and not (look.active or look.workers or look.guarded_workers)
    )
