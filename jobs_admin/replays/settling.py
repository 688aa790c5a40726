"""The step of `watch` that tells how sent jobs ended, from the attempts that came home."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import Attempt, Replay, ReplayItem
from jobs_admin.models.replay import SENDING, ItemState, ReplayState
from jobs_admin.sources.base import Refused

_BATCH = 2_000
_WITHIN_S = 3600.0  # where the source cannot be asked

# Of two attempts with the same number, the later stage decides.
_STAGE = {"retry": 0, "success": 2}


def settle(now: datetime | None = None) -> bool:
    """Settle what has news. True when there was something."""
    now = now or timezone.now()
    busy = False
    for replay in Replay.objects.filter(Q(sent__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0)).order_by("pk"):
        busy |= _settle_news(replay, now)
        if replay.sent or replay.running:
            busy |= _doubt_silent(replay, now)
    return _close_ended(now) or busy


def _settle_news(replay: Replay, now: datetime) -> bool:
    # By failure and run, not by the item: an attempt that was found lost names no item.
    attempts = Attempt.objects.filter(failure=OuterRef("failure"), run=OuterRef("run"))
    news = ReplayItem.objects.filter(
        Q(Exists(attempts), state__in=(ItemState.SENT, ItemState.UNCERTAIN))
        | Q(Exists(attempts.exclude(kind="retry")), state=ItemState.RUNNING),
        replay=replay,
    )
    ids = list(news.order_by().values_list("pk", flat=True)[:_BATCH])
    if not ids:
        return False
    latest: dict[int, tuple[tuple[int, int], ReplayItem, Attempt]] = {}
    items = {item.failure_id: item for item in ReplayItem.objects.filter(pk__in=ids)}
    for attempt in Attempt.objects.filter(failure__in=items).defer("reason").order_by("pk"):
        item = items[attempt.failure_id]
        if attempt.run != item.run:
            continue
        rank = (attempt.attempt, _STAGE.get(attempt.kind, 1))
        if item.pk not in latest or rank >= latest[item.pk][0]:
            latest[item.pk] = (rank, item, attempt)
    with transaction.atomic():
        for _, item, attempt in latest.values():
            _settle_item(replay, item, attempt, now)
    return True


def _settle_item(replay: Replay, item: ReplayItem, attempt: Attempt, now: datetime) -> None:
    outcome, group = "", None
    if attempt.kind == "success":
        state = ItemState.SUCCEEDED
    elif attempt.kind == "retry":
        state = ItemState.RUNNING
    else:
        state, group = ItemState.FAILED_AGAIN, attempt.group_id
        outcome = f"{attempt.error_type}: {attempt.message}" if attempt.message else attempt.error_type or attempt.kind
    if state == item.state:
        return
    moved = ReplayItem.objects.filter(pk=item.pk, state=item.state).update(
        state=state,
        settled_at=None if state == ItemState.RUNNING else now,
        outcome=outcome[:255],
        failed_group_id=group,
    )
    if moved:
        Replay.objects.filter(pk=replay.pk).update(**{item.state: F(item.state) - 1, state: F(state) + 1})


def _doubt_silent(replay: Replay, now: datetime) -> bool:
    """Sent long ago and no news: nobody knows. It stays open, and late news still settles it."""
    doubted = 0
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT).order_by()
    oldest = sent.order_by("sent_at").values_list("sent_at", flat=True).first() if replay.sent else None
    if oldest is None:
        return False
    for source in sent.values_list("failure__source", flat=True).distinct():
        within = _outcome_within(source)
        silent = sent.filter(failure__source=source, sent_at__lt=now - timedelta(seconds=within))
        with transaction.atomic():
            count = ReplayItem.objects.filter(
                pk__in=list(silent.values_list("pk", flat=True)[:_BATCH]), state="sent"
            ).update(state=ItemState.UNCERTAIN, outcome=f"No news within {within / 60:.0f} min of sending.")
            if count:
                Replay.objects.filter(pk=replay.pk).update(sent=F("sent") - count, uncertain=F("uncertain") + count)
        doubted += count
    return bool(doubted)


def _outcome_within(source: str) -> float:
    try:
        return config.adapter(source).outcome_within_s
    except (KeyError, Refused):
        return _WITHIN_S


def _close_ended(now: datetime) -> bool:
    ended = Replay.objects.filter(state__in=SENDING, planned=0, sent=0, running=0, total__gt=0)
    return bool(ended.update(state=ReplayState.DONE, ended_at=now, held_because=""))
