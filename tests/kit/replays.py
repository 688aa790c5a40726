"""Replays, started and moved on."""

from __future__ import annotations

from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from tests.kit.failures import dead
from tests.kit.groups import group

BOB = Viewer("bob", {"*": OPERATOR})


def running(n: int = 3, **changes) -> Replay:
    ids = dead(n, **changes)
    return replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))


def moved(replay: Replay, n: int, state: str, **changes) -> None:
    """Item `n` is in `state`, as the sender and settle would have written it."""
    now = timezone.now()
    values = {"state": state, "sent_at": now, "settled_at": now} | changes
    ReplayItem.objects.filter(replay=replay, n=n).update(**values)
    Replay.objects.filter(pk=replay.pk).update(
        **{s: ReplayItem.objects.filter(replay=replay, state=s).count() for s in ("planned", "sent", "uncertain")},
        succeeded=ReplayItem.objects.filter(replay=replay, state="succeeded").count(),
        failed_again=ReplayItem.objects.filter(replay=replay, state="failed_again").count(),
    )


def held(others: int = 0, **evidence) -> Replay:
    ids = [*dead(3, group=group()), *dead(others)]
    replay = replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))
    broken = group("shop.PartnerDown", "still down")
    moved(replay, 1, "failed_again", first_at=timezone.now(), first_ok=False, first_group=broken)
    moved(replay, 2, "sent", first_at=timezone.now(), first_ok=False, first_group=Failure.objects.first().group)
    Replay.objects.filter(pk=replay.pk).update(
        state="held", state_since=timezone.now(), held_because="2 of 5 canary jobs failed again.", evidence=evidence
    )
    replay.refresh_from_db()
    return replay
