"""The step of `watch` that tells how sent jobs ended, from the attempts that came home."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import Attempt, Replay, ReplayItem
from jobs_admin.models.replay import SENDING, ItemState, ReplayState
from jobs_admin.replays import stopping
from jobs_admin.sources.base import SourceRefused

_READ = 2_000  # items whose news is read at once
_BATCH = 300  # items of one write transaction: on SQLite nobody else writes meanwhile
_WITHIN_S = 3600.0  # where the source cannot be asked

# Of two attempts with the same number, the later stage decides.
_STAGE = {"retry": 0, "success": 2}


def settle(now: datetime | None = None) -> bool:
    """Settle what has news, and finish what a canceller left. True when there was something."""
    now = now or timezone.now()
    busy = False
    for replay in Replay.objects.filter(Q(sent__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0)).order_by("pk"):
        busy |= _settle_news(replay, now)
        if replay.sent or replay.running:
            busy |= _doubt_silent(replay, now)
    for replay in Replay.objects.filter(state__in=(ReplayState.CANCELLED, ReplayState.STOPPED), planned__gt=0):
        busy |= bool(stopping.drop_planned(replay, now))
    return _close_ended(now) or busy


def _settle_news(replay: Replay, now: datetime) -> bool:
    # By failure and run, not by the item: an attempt that was found lost names no item.
    attempts = Attempt.objects.filter(failure=OuterRef("failure"), run=OuterRef("run"))
    news = ReplayItem.objects.filter(
        Q(Exists(attempts), state__in=(ItemState.SENT, ItemState.UNCERTAIN))
        | Q(Exists(attempts.exclude(kind="retry")), state=ItemState.RUNNING),
        replay=replay,
    )
    ids = list(news.order_by().values_list("pk", flat=True)[:_READ])
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
    ends = [_end(item, attempt) for _, item, attempt in latest.values()]
    moving = [end for end in ends if end.state != end.item.state]
    for start in range(0, len(moving), _BATCH):
        _write_ends(replay, moving[start : start + _BATCH], now)
    return True


@dataclass(frozen=True, slots=True)
class _End:
    """What an item comes to by its latest attempt."""

    item: ReplayItem
    state: str
    outcome: str = ""
    group: int | None = None


def _end(item: ReplayItem, attempt: Attempt) -> _End:
    if attempt.kind == "success":
        return _End(item, ItemState.SUCCEEDED)
    if attempt.kind == "retry":
        return _End(item, ItemState.RUNNING)
    outcome = f"{attempt.error_type}: {attempt.message}" if attempt.message else attempt.error_type or attempt.kind
    return _End(item, ItemState.FAILED_AGAIN, outcome[:255], attempt.group_id)


def _write_ends(replay: Replay, ends: list[_End], now: datetime) -> None:
    """Items in one statement, the replay's counts in another. An item that has left its state meanwhile stays."""
    parameters: list[object] = [ItemState.RUNNING, connection.ops.adapt_datetimefield_value(now)]
    for end in ends:
        parameters += [end.item.pk, end.item.state, end.state, end.outcome, end.group]
    before = {end.item.pk: end for end in ends}
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {ReplayItem._meta.db_table} SET state = v.column3, outcome = v.column4, "
                "settled_at = CASE WHEN v.column3 = %s THEN NULL ELSE %s END, "
                "failed_group_id = CAST(v.column5 AS BIGINT) "
                f"FROM (VALUES {', '.join(['(%s, %s, %s, %s, %s)'] * len(ends))}) AS v "
                f"WHERE id = v.column1 AND state = v.column2 RETURNING id",
                parameters,
            )
            moved = [before[pk] for (pk,) in cursor.fetchall()]
        changes: Counter[str] = Counter()
        for end in moved:
            changes[str(end.item.state)] -= 1
            changes[str(end.state)] += 1
        if moved:
            Replay.objects.filter(pk=replay.pk).update(**{name: F(name) + n for name, n in changes.items() if n})


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
        ids = list(silent.values_list("pk", flat=True)[:_BATCH])
        with transaction.atomic():
            count = ReplayItem.objects.filter(pk__in=ids, state=ItemState.SENT).update(
                state=ItemState.UNCERTAIN, outcome=f"No news within {within / 60:.0f} min of sending."
            )
            if count:
                Replay.objects.filter(pk=replay.pk).update(sent=F("sent") - count, uncertain=F("uncertain") + count)
        doubted += count
    return bool(doubted)


def _outcome_within(source: str) -> float:
    try:
        return config.adapter(source).outcome_within_s
    except (KeyError, SourceRefused):
        return _WITHIN_S


def _close_ended(now: datetime) -> bool:
    ended = Replay.objects.filter(state__in=SENDING, planned=0, sent=0, running=0, total__gt=0)
    return bool(ended.update(state=ReplayState.DONE, ended_at=now, held_because=""))
