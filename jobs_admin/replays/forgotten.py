"""A replay that stands, and that nobody comes for, is stopped: its jobs are another's to replay, and are pruned in time."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs_admin.models import Replay
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays import rights

AFTER = timedelta(days=30)
# What only a person goes on from. One that waits for its hours goes on by itself.
_STANDS = {
    ReplayState.HELD: "was held",
    ReplayState.PAUSED: "was paused",
    ReplayState.AWAITING_APPROVAL: "waited for another operator's approval",
}


def stop(now: datetime) -> bool:
    """True where there was one. What it has not sent is let go as a cancel does, see `stopping`."""
    left = Replay.objects.filter(state__in=_STANDS, state_since__lt=now - AFTER).order_by("pk")
    stopped = [_stop(replay, now) for replay in left]
    return any(stopped)


def _stop(replay: Replay, now: datetime) -> bool:
    why = f"It {_STANDS[ReplayState(replay.state)]} for {AFTER.days} days, and nobody came."
    sources = rights.sources_of(replay)
    with transaction.atomic():
        still = Replay.objects.filter(pk=replay.pk, state=replay.state, state_since=replay.state_since)
        stopped = still.update(state=ReplayState.STOPPED, state_since=now, ended_at=now, held_because=why)
        if stopped:
            told = {
                "before": {"state": replay.state, "planned": replay.planned},
                "after": {"state": ReplayState.STOPPED},
            }
            rights.record(CONTROLLER, "replay.stop", replay, sources, reason=why, **told)
    return bool(stopped)
