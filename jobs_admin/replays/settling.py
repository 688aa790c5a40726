"""The step of `watch` that settles sent jobs from reported attempts, and ends replays that are finished or abandoned."""

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
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.replay import SENDING, ItemState, ReplayState
from jobs_admin.replays import controlling, notices, outcomes, rights, stopping
from jobs_admin.sources.base import SourceRefused

ABANDONED_AFTER = timedelta(days=30)
# States that only an operator ends. A replay that waits for its time window continues automatically.
_AWAITS_PERSON = {
    ReplayState.HELD: "was held",
    ReplayState.PAUSED: "was paused",
    ReplayState.AWAITING_APPROVAL: "waited for another operator's approval",
}


def stop_abandoned(now: datetime) -> bool:
    """Stop replays that no one has resumed.

    Return True if there was one. `stopping` then releases unsent jobs as for a cancel.
    """
    left = Replay.objects.filter(state__in=_AWAITS_PERSON, state_since__lt=now - ABANDONED_AFTER).order_by("pk")
    stopped = [_stop_replay(replay, now) for replay in left]
    return any(stopped)


def _stop_replay(replay: Replay, now: datetime) -> bool:
    why = f"It {_AWAITS_PERSON[ReplayState(replay.state)]} for {ABANDONED_AFTER.days} days without a decision."
    sources = rights.sources_of(replay)
    with transaction.atomic():
        still = Replay.objects.filter(pk=replay.pk, state=replay.state, state_since=replay.state_since)
        stopped = still.update(state=ReplayState.STOPPED, state_since=now, ended_at=now, held_because=why)
        if stopped:
            result = {
                "before": {"state": replay.state, "planned": replay.planned},
                "after": {"state": ReplayState.STOPPED},
            }
            rights.record(CONTROLLER, "replay.stop", replay, sources, reason=why, **result)
    return bool(stopped)


# Includes stopped replays: one without remaining jobs has nothing to continue.
_NOT_ENDED = (*SENDING, ReplayState.WAITING, ReplayState.HELD, ReplayState.PAUSED)


def end_finished(now: datetime) -> bool:
    """Close finished replays. Return True if there was one."""
    # Nothing remains either if other replays had taken all its jobs before items were created.
    begun = Q(total__gt=0) | Q(taken__gt=0)
    through = Replay.objects.filter(begun, state__in=_NOT_ENDED, planned=0, running=0).order_by("pk")
    # If the source cannot report how jobs end, they stay `sent` permanently.
    silent = outcomes.unreported_sources(config.sources())
    ended = through if silent else through.filter(sent=0)
    closed = [_end_replay(replay, now) for replay in ended if not replay.sent or _awaits_no_report(replay, silent)]
    return any(closed)


def _awaits_no_report(replay: Replay, silent: list[str]) -> bool:
    sent = ReplayItem.objects.filter(replay=replay, state=ItemState.SENT)
    return not sent.exclude(failure__source__in=silent).exists()


def _end_replay(replay: Replay, now: datetime) -> bool:
    sources = rights.sources_of(replay)
    counts = ("total", "sent", "succeeded", "failed_again", "uncertain", "cancelled")
    result = {"state": ReplayState.DONE, **{name: getattr(replay, name) for name in counts}}
    with transaction.atomic():
        still = Replay.objects.filter(Q(sent=replay.sent), pk=replay.pk, state__in=_NOT_ENDED, planned=0, running=0)
        closed = still.update(state=ReplayState.DONE, state_since=now, ended_at=now, held_because="")
        if closed:
            before = {"state": replay.state}
            rights.record(CONTROLLER, "replay.done", replay, sources, before=before, after=result)
            notices.notify_done(replay, sources)
    return bool(closed)


_READ = 2_000  # items whose attempts are read at once
_BATCH = 300  # items per write transaction: SQLite allows no other writer meanwhile
_MANY = 20_000  # unsettled jobs: reading all of them takes 30 ms
_COMPLETE_EVERY_S = 10.0
_OUTCOME = 255  # characters of the error message
_WITHIN_S = 3600.0  # if the source cannot be queried

# Of two attempts with the same number, the later stage wins.
_STAGE = {"retry": 0, "success": 2}


def is_due(now: datetime) -> bool:
    """Return whether a replay is active, has unsettled jobs, or has waited for an operator too long."""
    is_left = Q(state__in=(ReplayState.CANCELLED, ReplayState.STOPPED), planned__gt=0)
    is_abandoned = Q(state__in=_AWAITS_PERSON, state_since__lt=now - ABANDONED_AFTER)
    return Replay.objects.filter(Q(state__in=_NOT_ENDED) | _IS_UNSETTLED | is_left | is_abandoned).exists()


def settle(now: datetime | None = None) -> bool:
    """Settle items with new attempts, control replays, end finished and abandoned ones, release jobs of cancelled ones.

    Return True if there was something to do.
    """
    now = now or timezone.now()
    out = Replay.objects.filter(_IS_UNSETTLED).defer("selection", "blocked", "query").order_by("pk")
    busy = _settle_all(list(out), now) | stop_abandoned(now)
    stopped = Replay.objects.filter(state__in=(ReplayState.CANCELLED, ReplayState.STOPPED))
    for replay in stopped.filter(Q(planned__gt=0) | Q(sent__gt=0)):
        busy |= bool(stopping.drop_planned(replay, now)) if replay.planned else False
        busy |= stopping.recall_sent(replay, now)
    try:
        busy |= controlling.control(now)
    finally:  # also if one of them cannot be judged
        busy |= end_finished(now)
    return busy


_IS_UNSETTLED = Q(sent__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0)


@dataclass(slots=True)
class _SettledUntil:
    """Progress of this process in reading attempts.

    With very many unsettled jobs it reads only attempts filed since then.
    """

    until: int | None = None  # the last attempt of the settled range; None: all are read
    complete_at: float = 0.0  # time of the last complete read, by the monotonic clock


_settled_until = _SettledUntil()


def _settle_all(out: Sequence[Replay], now: datetime) -> bool:
    is_many = sum(replay.sent + replay.running + replay.uncertain for replay in out) > _MANY
    # Other processes may commit attempts out of the order of their ids: all are read from time to time.
    is_complete = (
        not is_many or _settled_until.until is None or time.monotonic() - _settled_until.complete_at > _COMPLETE_EVERY_S
    )
    latest = Attempt.objects.aggregate(pk=Max("pk"))["pk"] or 0
    lately = None
    if not is_complete:
        filed = (
            Attempt.objects.filter(pk__gt=_settled_until.until, run__gt=1).order_by("pk").values_list("pk", "failure")
        )
        rows = list(filed[:_READ])
        latest = rows[-1][0] if len(rows) == _READ else latest
        lately = {failure for _, failure in rows}
    counts = [_settle_news(replay, lately, now) for replay in out]
    if not is_complete:
        _settled_until.until = latest
        return any(counts)
    has_all = all(count < _READ for count in counts)
    _settled_until.until, _settled_until.complete_at = (latest if has_all else None), time.monotonic()
    doubted = [_mark_silent_uncertain(replay, now) for replay in out if replay.sent]
    return any(counts) or any(doubted)


def _settle_news(replay: Replay, of: Collection[int] | None, now: datetime) -> int:
    """Settle items with new attempts, of these failures or of all; return their number.

    At most _READ of them at once.
    """
    if of is not None and not of:
        return 0
    # By failure and run rather than by item: the attempt of a lost job names no item.
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
    ends = [_build_end(replay, items[failure], attempts) for failure, attempts in _read_attempts(items).items()]
    moving = [end for end in ends if end.state != end.before]
    for start in range(0, len(moving), _BATCH):
        _write_ends(replay, moving[start : start + _BATCH], now)
    return len(items)


def _read_attempts(items: Mapping[int, Any]) -> dict[int, list[Any]]:
    """Return failure -> the reported attempts of the run that its item started."""
    of_these = Attempt.objects.filter(failure__in=items, run__in={item.run for item in items.values()})
    rows = of_these.annotate(excerpt=Left("message", _OUTCOME)).values_list(
        "failure", "run", "attempt", "kind", "error_type", "excerpt", "group", named=True
    )
    attempts: dict[int, list[Any]] = defaultdict(list)
    for attempt in rows.order_by("pk"):
        if attempt.run == items[attempt.failure].run:
            attempts[attempt.failure].append(attempt)
    return attempts


@dataclass(frozen=True, slots=True)
class _ItemEnd:
    """Result of an item according to its latest attempt, and result of its first attempt."""

    item: int
    before: str
    state: str
    outcome: str
    group: int | None
    first_ok: bool
    first_group: int | None


def _build_end(replay: Replay, item: Any, attempts: Sequence[Any]) -> _ItemEnd:
    first = min(attempts, key=lambda it: (it.attempt, -_STAGE.get(it.kind, 1)))
    last = max(reversed(attempts), key=lambda it: (it.attempt, _STAGE.get(it.kind, 1)))
    # In a run that counts from 1, a later attempt reported before the first implies that the first failed.
    first_ok = first.kind == "success" and (first.attempt == 1 or replay.attempts != "reset")
    firsts = (first_ok, None if first_ok else first.group)
    if last.kind == "success":
        return _ItemEnd(item.pk, item.state, ItemState.SUCCEEDED, "", None, *firsts)
    if last.kind == "retry":
        return _ItemEnd(item.pk, item.state, ItemState.RUNNING, "", None, *firsts)
    outcome = f"{last.error_type}: {last.excerpt}" if last.excerpt else last.error_type or last.kind
    return _ItemEnd(item.pk, item.state, ItemState.FAILED_AGAIN, outcome[:_OUTCOME], last.group, *firsts)


def _write_ends(replay: Replay, ends: list[_ItemEnd], now: datetime) -> None:
    """Write items in one statement, the replay's counts in another.

    An item that has left its state meanwhile is unchanged.
    """
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
        # Also if no count changes: this locks the row, so that first attempts are dated by one process at a time.
        Replay.objects.filter(pk=replay.pk).update(**{name: F(name) + n for name, n in changes.items()})
        _date_first_news(replay, moved, now)


def _date_first_news(replay: Replay, items: Collection[int], now: datetime) -> None:
    """Date first attempts later than all earlier ones, whatever the clocks show.

    A reader that continues from a time then misses none.
    """
    latest = ReplayItem.objects.filter(replay=replay, first_at__isnull=False).aggregate(at=Max("first_at"))["at"]
    at = now if latest is None else max(now, latest + timedelta(microseconds=1))
    ReplayItem.objects.filter(pk__in=items, first_at=None).update(first_at=at)


def _mark_silent_uncertain(replay: Replay, now: datetime) -> bool:
    """Mark items that were sent long ago and have no report as uncertain. A late report still settles them."""
    doubted = _mark_uncertain(replay, outcomes.find_taken_unguarded(replay, now, _BATCH), outcomes.TAKEN_OUTCOME)
    doubted += _mark_uncertain(replay, *outcomes.find_taken_while_off(replay, now, _BATCH))
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
        reason = f"No outcome within {within / 60:.0f} min of sending."
        doubted += _mark_uncertain(replay, list(silent.values_list("pk", flat=True)[:_BATCH]), reason)
    return bool(doubted)


def _mark_uncertain(replay: Replay, items: Collection[int], reason: str) -> int:
    if not items:
        return 0
    with transaction.atomic():
        still = ReplayItem.objects.filter(pk__in=items, state=ItemState.SENT)
        count = still.update(state=ItemState.UNCERTAIN, outcome=reason)
        if count:
            Replay.objects.filter(pk=replay.pk).update(sent=F("sent") - count, uncertain=F("uncertain") + count)
    return count


def _outcome_within(source: str) -> float:
    try:
        return config.adapter(source).outcome_within_s
    except (KeyError, SourceRefused):
        return _WITHIN_S
