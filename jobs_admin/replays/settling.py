"""The step of `watch` that tells how sent jobs ended, from the attempts that came home."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, F, Max, OuterRef, Q
from django.db.models.functions import Left
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import Attempt, Replay, ReplayItem
from jobs_admin.models.replay import ItemState, ReplayState
from jobs_admin.replays import controlling, ending, forgotten, outcomes, stopping, taken_silently
from jobs_admin.sources.base import SourceRefused

_READ = 2_000  # items whose news is read at once
_BATCH = 300  # items of one write transaction: on SQLite nobody else writes meanwhile
_MANY = 20_000  # jobs that are out: to look at all of them takes 30 ms
_WHOLE_EVERY_S = 10.0
_OUTCOME = 255  # characters of what it says
_WITHIN_S = 3600.0  # where the source cannot be asked

# Of two attempts with the same number, the later stage decides.
_STAGE = {"retry": 0, "success": 2}


def settle(now: datetime | None = None) -> bool:
    """Settle what has news, steer by it, end what is through or forgotten, and let go what a canceller left.

    True when there was something.
    """
    now = now or timezone.now()
    out = Replay.objects.filter(_IS_OUT).defer("selection", "blocked", "query").order_by("pk")
    busy = _settle_all(list(out), now) | forgotten.stop(now)
    stopped = Replay.objects.filter(state__in=(ReplayState.CANCELLED, ReplayState.STOPPED))
    for replay in stopped.filter(Q(planned__gt=0) | Q(sent__gt=0)):
        busy |= bool(stopping.drop_planned(replay, now)) if replay.planned else False
        busy |= stopping.take_back(replay, now)
    try:
        busy |= controlling.control(now)
    finally:  # also where one of them cannot be judged
        busy |= ending.end(now)
    return busy


_IS_OUT = Q(sent__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0)


@dataclass(slots=True)
class _Filed:
    """What of the attempts this process has looked at. With very many jobs out it looks only at what was filed since."""

    until: int | None = None  # the attempt up to which everything is settled; None: all are looked at
    whole_at: float = 0.0  # when all were looked at, by the monotonic clock


_filed = _Filed()


def _settle_all(out: Sequence[Replay], now: datetime) -> bool:
    is_many = sum(replay.sent + replay.running + replay.uncertain for replay in out) > _MANY
    # What another process files is seen in another order than it is numbered: now and then all are looked at.
    is_whole = not is_many or _filed.until is None or time.monotonic() - _filed.whole_at > _WHOLE_EVERY_S
    newest = Attempt.objects.aggregate(pk=Max("pk"))["pk"] or 0
    lately = None
    if not is_whole:
        filed = Attempt.objects.filter(pk__gt=_filed.until, run__gt=1).order_by("pk").values_list("pk", "failure")
        rows = list(filed[:_READ])
        newest = rows[-1][0] if len(rows) == _READ else newest
        lately = {failure for _, failure in rows}
    counts = [_settle_news(replay, lately, now) for replay in out]
    if not is_whole:
        _filed.until = newest
        return any(counts)
    has_all = all(count < _READ for count in counts)
    _filed.until, _filed.whole_at = (newest if has_all else None), time.monotonic()
    doubted = [_doubt_silent(replay, now) for replay in out if replay.sent]
    return any(counts) or any(doubted)


def _settle_news(replay: Replay, of: Collection[int] | None, now: datetime) -> int:
    """Settle what has news, of these failures or of all; how many items had. At most _READ of them at once."""
    if of is not None and not of:
        return 0
    # By failure and run, not by the item: an attempt that was found lost names no item.
    attempts = Attempt.objects.filter(failure=OuterRef("failure"), run=OuterRef("run"))
    news = ReplayItem.objects.filter(
        Q(Exists(attempts), state__in=(ItemState.SENT, ItemState.UNCERTAIN))
        | Q(Exists(attempts.exclude(kind="retry")), state=ItemState.RUNNING),
        replay=replay,
    )
    if of is not None:
        news = news.filter(failure__in=of)
    rows = news.order_by().values_list("pk", "failure", "run", "state", named=True)
    items = {row.failure: row for row in rows[:_READ]}
    if not items:
        return 0
    ends = [_end(replay, items[failure], heard) for failure, heard in _heard(items).items()]
    moving = [end for end in ends if end.state != end.before]
    for start in range(0, len(moving), _BATCH):
        _write_ends(replay, moving[start : start + _BATCH], now)
    return len(items)


def _heard(items: Mapping[int, Any]) -> dict[int, list[Any]]:
    """failure -> the attempts that came home of the run that its item started."""
    of_these = Attempt.objects.filter(failure__in=items, run__in={item.run for item in items.values()})
    rows = of_these.annotate(said=Left("message", _OUTCOME)).values_list(
        "failure", "run", "attempt", "kind", "error_type", "said", "group", named=True
    )
    heard: dict[int, list[Any]] = defaultdict(list)
    for attempt in rows.order_by("pk"):
        if attempt.run == items[attempt.failure].run:
            heard[attempt.failure].append(attempt)
    return heard


@dataclass(frozen=True, slots=True)
class _End:
    """What an item comes to by its latest attempt, and what its first one was."""

    item: int
    before: str
    state: str
    outcome: str
    group: int | None
    first_ok: bool
    first_group: int | None


def _end(replay: Replay, item: Any, heard: Sequence[Any]) -> _End:
    first = min(heard, key=lambda it: (it.attempt, -_STAGE.get(it.kind, 1)))
    last = max(reversed(heard), key=lambda it: (it.attempt, _STAGE.get(it.kind, 1)))
    # Of a run that counts from 1, a later attempt that came home before the first says that the first did not go well.
    first_ok = first.kind == "success" and (first.attempt == 1 or replay.attempts != "reset")
    firsts = (first_ok, None if first_ok else first.group)
    if last.kind == "success":
        return _End(item.pk, item.state, ItemState.SUCCEEDED, "", None, *firsts)
    if last.kind == "retry":
        return _End(item.pk, item.state, ItemState.RUNNING, "", None, *firsts)
    outcome = f"{last.error_type}: {last.said}" if last.said else last.error_type or last.kind
    return _End(item.pk, item.state, ItemState.FAILED_AGAIN, outcome[:_OUTCOME], last.group, *firsts)


def _write_ends(replay: Replay, ends: list[_End], now: datetime) -> None:
    """Items in one statement, the replay's counts in another. An item that has left its state meanwhile stays."""
    parameters: list[object] = [ItemState.RUNNING, connection.ops.adapt_datetimefield_value(now)]
    for end in ends:
        parameters += [end.item, end.before, end.state, end.outcome, end.group, end.first_ok, end.first_group]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {ReplayItem._meta.db_table} SET state = v.column3, outcome = v.column4, "
                "settled_at = CASE WHEN v.column3 = %s THEN NULL ELSE %s END, "
                "failed_group_id = CAST(v.column5 AS BIGINT), "
                "first_ok = CASE WHEN first_at IS NULL THEN v.column6 ELSE first_ok END, "
                "first_group_id = CASE WHEN first_at IS NULL THEN CAST(v.column7 AS BIGINT) ELSE first_group_id END "
                f"FROM (VALUES {', '.join(['(%s, %s, %s, %s, %s, %s, %s)'] * len(ends))}) AS v "
                "WHERE id = v.column1 AND state = v.column2 RETURNING id",
                parameters,
            )
            moved = {pk for (pk,) in cursor.fetchall()}
        if not moved:
            return
        changes: Counter[str] = Counter()
        for end in ends:
            if end.item in moved:
                changes[str(end.before)] -= 1
                changes[str(end.state)] += 1
        # Also where no count changes: the row is held from here on, so that first news are written one after the other.
        Replay.objects.filter(pk=replay.pk).update(**{name: F(name) + n for name, n in changes.items()})
        _date_first_news(replay, moved, now)


def _date_first_news(replay: Replay, items: Collection[int], now: datetime) -> None:
    """Later than all that came home before, whatever the clocks say: who reads on from a moment misses none."""
    latest = ReplayItem.objects.filter(replay=replay, first_at__isnull=False).aggregate(at=Max("first_at"))["at"]
    at = now if latest is None else max(now, latest + timedelta(microseconds=1))
    ReplayItem.objects.filter(pk__in=items, first_at=None).update(first_at=at)


def _doubt_silent(replay: Replay, now: datetime) -> bool:
    """Sent long ago and no news: nobody knows. It stays open, and late news still settles it."""
    doubted = _doubt(replay, taken_silently.taken(replay, now, _BATCH), taken_silently.SAYS)
    doubted += _doubt(replay, *taken_silently.taken_while_off(replay, now, _BATCH))
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT).order_by()
    oldest = sent.order_by("sent_at").values_list("sent_at", flat=True).first()
    soonest_s = min([_outcome_within(source) for source in config.sources()], default=_WITHIN_S)
    if oldest is None or oldest >= now - timedelta(seconds=min(soonest_s, _WITHIN_S)):
        return bool(doubted)
    for source in sent.values_list("failure__source", flat=True).distinct():
        if not outcomes.are_reported(source):
            continue
        within = _outcome_within(source)
        silent = sent.filter(failure__source=source, sent_at__lt=now - timedelta(seconds=within))
        says = f"No news within {within / 60:.0f} min of sending."
        doubted += _doubt(replay, list(silent.values_list("pk", flat=True)[:_BATCH]), says)
    return bool(doubted)


def _doubt(replay: Replay, items: Collection[int], says: str) -> int:
    if not items:
        return 0
    with transaction.atomic():
        still = ReplayItem.objects.filter(pk__in=items, state=ItemState.SENT)
        count = still.update(state=ItemState.UNCERTAIN, outcome=says)
        if count:
            Replay.objects.filter(pk=replay.pk).update(sent=F("sent") - count, uncertain=F("uncertain") + count)
    return count


def _outcome_within(source: str) -> float:
    try:
        return config.adapter(source).outcome_within_s
    except (KeyError, SourceRefused):
        return _WITHIN_S
