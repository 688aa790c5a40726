"""A replay that has nothing left to send, and nothing left to hear, is done."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q

from jobs_admin import config
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.replay import SENDING, ItemState, ReplayState
from jobs_admin.replays import outcomes, rights, telling

# Also one that stands: there is nothing to go on with.
_OPEN = (*SENDING, ReplayState.WAITING, ReplayState.HELD, ReplayState.PAUSED)


def end(now: datetime) -> bool:
    """Close what has ended; True where something had."""
    # Nothing of it is left either where others had taken all of it before it was laid out.
    begun = Q(total__gt=0) | Q(taken__gt=0)
    through = Replay.objects.filter(begun, state__in=_OPEN, planned=0, running=0).order_by("pk")
    # What a source cannot report the end of stays `sent`, for good.
    silent = outcomes.untold(config.sources())
    ended = through if silent else through.filter(sent=0)
    closed = [_close(replay, now) for replay in ended if not replay.sent or _hears_of_none(replay, silent)]
    return any(closed)


def _hears_of_none(replay: Replay, silent: list[str]) -> bool:
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT)
    return not sent.exclude(failure__source__in=silent).exists()


def _close(replay: Replay, now: datetime) -> bool:
    sources = rights.sources_of(replay)
    counts = ("total", "sent", "succeeded", "failed_again", "uncertain", "cancelled")
    told = {"state": ReplayState.DONE, **{name: getattr(replay, name) for name in counts}}
    with transaction.atomic():
        still = Replay.objects.filter(Q(sent=replay.sent), pk=replay.pk, state__in=_OPEN, planned=0, running=0)
        closed = still.update(state=ReplayState.DONE, state_since=now, ended_at=now, held_because="")
        if closed:
            before = {"state": replay.state}
            rights.record(CONTROLLER, "replay.done", replay, sources, before=before, after=told)
            telling.done(replay, sources)
    return bool(closed)
