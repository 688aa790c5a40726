"""Retention: stored rows and their ages. Expired ones are deleted, in transactions too short to block others.

Failures go by age, counted from their last event: a failed attempt, a report of a run, an act of a person. Beyond a
size of the database the oldest closed ones go early; dead ones never do. Retrying and replaying ones, and those in a
replay that has not ended, stay. Numbers outlive the jobs that they counted: replays, groups and counters for a while
longer, the audit permanently.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, Model, OuterRef, Q, QuerySet, Sum

from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit, statements, step_progress
from jobs_admin.db.turns import lock_writers, turn
from jobs_admin.models import (
    Alert,
    AlertEvent,
    Attempt,
    AuditEvent,
    Comeback,
    Delivery,
    DepthSample,
    Failure,
    FailureCount,
    Group,
    GroupCounter,
    GroupRule,
    Notice,
    Pause,
    Payload,
    QueueCounter,
    RefusedReports,
    Replay,
    ReplayItem,
    Rule,
    Silence,
    Traceback,
    Unfiled,
    Worker,
)
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_RETENTION, QUARTER, QUARTERS_RETENTION
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM, ReplayState
from jobs_admin.queues.depths import steps
from jobs_admin.queues.depths.rolling import rolled_until

# The first to go stands first.
CLOSED = (FailureState.RECOVERED, FailureState.GONE, FailureState.DISCARDED)
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)

# Numbers over time: minutes are for rates, longer steps for pictures; hours and the rest stay as long as `history`.
_SILENT_WORKERS, _DRAFTS = timedelta(days=7), timedelta(days=7)

# What a report that is being written may refer to though no committed row does: removed only between two writers.
_OF_REPORTS = (Group, Traceback)

_TRANSACTION_S = 0.06  # of a transaction, about; on SQLite nobody else writes meanwhile, and a busy machine doubles it
_FEWEST, _MOST = 20, 1_000  # failures of one transaction
_READ_AT_ONCE = 2_000  # failures looked at in one statement, outside of any transaction
_AGAIN_S = 300.0  # between two rounds of `watch` that found nothing more to do
_ROUND_S = 10.0  # of `watch`, so that it shows a sign of life


@dataclass(slots=True)
class Pruned:
    """Rows that were deleted, or with `dry_run` would be: by kind, failures also by state."""

    failures: Counter[str] = field(default_factory=Counter)  # by state
    rows: Counter[str] = field(default_factory=Counter)  # of everything else
    bytes: int = 0  # of failures and what belongs to them, about
    bytes_before: int = 0  # of the database that are in use
    too_large_by: int = 0  # what is left above the limit when nothing more may go
    is_done: bool = True  # False: the time was up, the next round goes on
    longest_s: float = 0.0  # of the transactions

    @property
    def count(self) -> int:
        return self.failures.total()


def step(now: datetime) -> bool:
    """A round of `watch`: some seconds of it. True if there is more to do."""
    if config.is_read_only() or time.monotonic() < _Rounds.next_at:
        return False
    pruned = prune(now, within_s=_ROUND_S)
    if pruned.is_done:
        _Rounds.next_at = time.monotonic() + _AGAIN_S
    return not pruned.is_done


class _Rounds:
    next_at = float("-inf")


def prune(
    now: datetime,
    *,
    viewer: Viewer = ENGINE,
    older_than: timedelta | None = None,
    larger_than: int | None = None,
    within_s: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Take away what is over. `older_than` and `larger_than` (bytes) stand for the settings REDRIVE_KEEP and REDRIVE_KEEP_BYTES.

    May be broken off and begun again at any point, and several may run: each failure goes once, by whoever holds it.
    Raises Refused on a read-only desk.
    """
    if config.is_read_only() and not dry_run:
        raise Refused("read_only", config.READ_ONLY)
    ages = config.keep() if older_than is None else config.keep() | dict.fromkeys((*CLOSED, *_DEAD), older_than)
    limit = config.keep_bytes() if larger_than is None else larger_than
    run = _Run(now, ages, limit, dry_run, None if within_s is None else time.monotonic() + within_s)
    run.all()
    if not dry_run and (run.pruned.count or run.pruned.rows):
        # A word for each round, not for each transaction: the settings act here, nobody's wish.
        with transaction.atomic():
            after = {"failures": dict(run.pruned.failures), **run.pruned.rows}
            audit.record(viewer, "retention.prune", after=after)
    return run.pruned


_DEAD = (FailureState.DEAD, FailureState.QUARANTINED)


class _TimeIsUp(Exception):
    pass


@dataclass(slots=True)
class _Run:
    now: datetime
    ages: dict[str, timedelta | None]
    limit: int | None
    dry_run: bool
    ends: float | None
    pruned: Pruned = field(default_factory=Pruned)
    at_once: int = 100
    weight: float = 0.0  # bytes a failure
    touched: tuple[datetime, array] | None = None  # since when, and what

    def all(self) -> None:
        self.weight, self.pruned.bytes_before = weigh()
        try:
            for state in (*CLOSED, *_DEAD):
                if (age := self.ages.get(state)) is not None:
                    self._failures(state, self.now - age)
            if self.limit is not None:
                self._excess()
            self._history()
        except _TimeIsUp:
            self.pruned.is_done = False
        self.pruned.bytes = round(self.pruned.count * self.weight)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _failures(self, state: str, before: datetime, most: int | None = None) -> int:
        """Delete those of a state without an event since `before`; at most `most`, oldest first."""
        went = 0
        for ids in self._over(state, before):
            while ids:
                now = self.at_once if most is None else min(self.at_once, most - went)
                if now <= 0:
                    return went
                went += self._take(state, before, ids[:now])
                ids = ids[now:]
        return went

    def _over(self, state: str, before: datetime) -> Iterator[list[int]]:
        """Ids, oldest first, each looked at once: what stays is not looked at again in this run."""
        after = 0
        while True:
            # Ids rise with the time of arrival: what came in later than `before` ends the search.
            batch = list(
                Failure.objects.filter(state=state, pk__gt=after)
                .order_by("pk")
                .values_list("pk", "received_at", "failed_at")[:_READ_AT_ONCE]
            )
            old = [pk for pk, received, failed in batch if received < before and failed < before]
            if old := self._untouched(old, state, before):
                yield _may_go(state, before, old)
            self._check_time()
            if len(batch) < _READ_AT_ONCE or batch[-1][1] >= before:
                return
            after = batch[-1][0]

    def _untouched(self, ids: list[int], state: str, before: datetime) -> list[int]:
        """Return those that no person discarded or restored since: only the audit has that time."""
        if not ids or state not in {FailureState.DISCARDED, FailureState.DEAD}:
            return ids
        if self.touched is None or self.touched[0] > before:
            self.touched = before, _touched(before)
        touched_ids = self.touched[1]
        return [pk for pk in ids if (at := bisect_left(touched_ids, pk)) == len(touched_ids) or touched_ids[at] != pk]

    def _take(self, state: str, before: datetime, ids: list[int]) -> int:
        if self.dry_run:
            self.pruned.failures[state] += len(ids)
            return len(ids)
        with turn(), transaction.atomic():
            began = time.monotonic()  # not before: waiting for others holds nobody up
            # Asked again inside: another prune, a replay or a retry may have been first.
            mine = _may_go(state, before, ids, lock=True)
            if mine:
                self.pruned.rows.update(forget(mine))
        took = time.monotonic() - began
        self.pruned.failures[state] += len(mine)
        if len(ids) == self.at_once or took > _TRANSACTION_S:
            self.at_once = _next_size(self.at_once, took, _FEWEST, _MOST)
        self._note(took)
        return len(mine)

    def _note(self, took: float) -> None:
        self.pruned.longest_s = max(self.pruned.longest_s, took)
        time.sleep(took / 2)  # for people's writes, which know no turns
        self._check_time()

    def _check_time(self) -> None:
        step_progress.report()
        if self.ends is not None and time.monotonic() > self.ends:
            raise _TimeIsUp

    def _excess(self) -> None:
        """The oldest closed ones, whatever their age, until the database is small enough."""
        weight, in_use = weigh()
        if self.dry_run:
            in_use -= round(self.pruned.count * weight)
        excess = in_use - (self.limit or 0)
        for state in CLOSED:
            if excess <= 0 or not weight:
                break
            wanted = -(-excess // max(1, round(weight)))
            if self.dry_run:
                closed = _count_may_go(state, self.now) - self.pruned.failures[state]
                went = min(wanted, max(0, closed))
                self.pruned.failures[state] += went
            else:
                went = self._failures(state, self.now, most=wanted)
            excess -= round(went * weight)
        self.pruned.too_large_by = max(0, excess)

    # -- what is not about one job ------------------------------------------------------------------------------------

    def _history(self) -> None:
        history = self.ages.get("history")
        self._rows("group counters", GroupCounter.objects.filter(step=MINUTE, at__lt=self.now - MINUTES_RETENTION))
        self._rows("queue counters", QueueCounter.objects.filter(step=MINUTE, at__lt=self.now - MINUTES_RETENTION))
        self._rows("queue counters", QueueCounter.objects.filter(step=QUARTER, at__lt=self.now - QUARTERS_RETENTION))
        self._rows("workers", Worker.objects.filter(seen_at__lt=self.now - _SILENT_WORKERS))
        self._depths()
        drafts = Replay.objects.filter(state=ReplayState.DRAFT, created_at__lt=self.now - _DRAFTS)
        self._rows("drafts of replays", drafts.filter(~Exists(ReplayItem.objects.filter(replay=OuterRef("pk")))))
        self._rows("tracebacks", _orphans())
        if history is None:
            return
        before = self.now - history
        self._rows("group counters", GroupCounter.objects.filter(step=HOUR, at__lt=before))
        self._rows("queue counters", QueueCounter.objects.filter(step=HOUR, at__lt=before))
        self._rows("unfiled reports", Unfiled.objects.filter(received_at__lt=before))
        self._rows("counts of refused reports", RefusedReports.objects.filter(last_at__lt=before))
        self._rows("notices", _over_notices(before), _forget_notices)
        self._rows("alerts", _over_alerts(before), _forget_alerts)
        unused = ~Exists(Alert.objects.filter(rule=OuterRef("pk")))
        self._rows("deleted rules", Rule.objects.filter(unused, deleted_at__lt=before), _forget_rules)
        self._rows("silences", Silence.objects.filter(ends_at__lt=before))
        self._rows("pauses", Pause.objects.filter(resumed_at__lt=before))
        self._rows("groups", _empty_groups(before), _forget_groups)

    def _depths(self) -> None:
        for step, age in steps.retention_by_step().items():
            rolled = rolled_until(step, self.now)
            # What is not in a longer step yet stays, however old it is.
            if age is not None and rolled is not None:
                self._depth_samples(
                    DepthSample.objects.filter(step=step, at__lt=min(self.now - age, rolled)).order_by("at")
                )

    def _depth_samples(self, rows: QuerySet[DepthSample]) -> None:
        """The oldest first, by their times: there are millions of them, and to sort those by id for each part takes long."""
        if self.dry_run:
            self.pruned.rows["depth samples"] += rows.count()
            return
        at_once = 500
        while last := rows.values_list("at", flat=True)[:at_once][::-1][:1]:
            with turn():
                began = time.monotonic()
                self.pruned.rows["depth samples"] += rows.order_by().filter(at__lte=last[0])._raw_delete("default")
                took = time.monotonic() - began
            at_once = _next_size(at_once, took, 50, 5_000)
            self._note(took)

    def _rows(self, name: str, rows: QuerySet[Any], forget_: Callable[[list[Any]], None] | None = None) -> None:
        if self.dry_run:
            self.pruned.rows[name] += rows.count()
            return
        at_once, ids = 500, []
        while ids := list(
            rows.filter(pk__gt=max(ids, default=0)).order_by("pk").values_list("pk", flat=True)[:at_once]
        ):
            with turn(), transaction.atomic():
                if rows.model in _OF_REPORTS:
                    lock_writers()
                began = time.monotonic()
                # Asked again, as above.
                mine = list(rows.filter(pk__in=ids).values_list("pk", flat=True))
                if forget_ is not None:
                    forget_(mine)
                else:
                    _delete(rows.model, pk__in=mine)
            self.pruned.rows[name] += len(mine)
            took = time.monotonic() - began
            at_once = _next_size(at_once, took, 50, 500)
            self._note(took)
        self.pruned.rows += Counter()  # without what came to nought


def _next_size(count: int, took_s: float, fewest: int, most: int) -> int:
    """As many rows as would have taken the time that a transaction may last, at most twice as many as before."""
    return int(min(most, count * 2, max(fewest, count * _TRANSACTION_S / max(took_s, 1e-6))))


def _may_go(state: str, before: datetime, ids: Sequence[int] | None = None, *, lock: bool = False) -> list[int]:
    """Return those of this state (and among `ids`) without an event since `before` and in no replay that has not ended, in
    order. Not those that another one has locked where `lock`: then these are locked.

    As text: a transaction asks for some hundred, and the ORM takes longer to write this than the database to answer.
    """
    one_of, given = ("", []) if ids is None else statements.one_of("failure.id", ids)
    at = connection.ops.adapt_datetimefield_value(before)
    is_lockable = lock and connection.features.has_select_for_update_skip_locked
    sql = _MAY_GO.format(one_of=one_of, lock="FOR UPDATE OF failure SKIP LOCKED" if is_lockable else "")
    return [pk for (pk,) in statements.fetch_rows(sql, [str(state), at, at, *given, at, at, at])]


def _count_may_go(state: str, before: datetime) -> int:
    at = connection.ops.adapt_datetimefield_value(before)
    sql = f"SELECT COUNT(*) FROM ({_MAY_GO.format(one_of='', lock='')}) AS closed"
    ((found,),) = statements.fetch_rows(sql, [str(state), at, at, at, at, at])
    return int(found)


_MAY_GO = f"""
    SELECT failure.id FROM jobs_admin_failure failure
    WHERE failure.state = %s AND failure.received_at < %s AND failure.failed_at < %s {{one_of}}
      AND NOT EXISTS (
        SELECT 1 FROM jobs_admin_replayitem item JOIN jobs_admin_replay replay ON replay.id = item.replay_id
        WHERE item.failure_id = failure.id AND (
          item.state IN ({", ".join(f"'{state}'" for state in OPEN_ITEM)})
          OR replay.state NOT IN ({", ".join(f"'{state}'" for state in _OVER)})
          OR item.sent_at >= %s OR item.settled_at >= %s))
      AND NOT EXISTS (
        SELECT 1 FROM jobs_admin_attempt attempt WHERE attempt.failure_id = failure.id AND attempt.received_at >= %s)
    ORDER BY failure.id {{lock}}
"""


def _touched(since: datetime) -> array:
    """The failures that a person set aside or brought back since, in order of their ids."""
    acts = AuditEvent.objects.filter(act__startswith="failure.", at__gte=since, allowed=True).order_by()
    found: set[int] = set()
    for after in acts.values_list("after", flat=True).iterator(chunk_size=500):
        ids = after.get("ids") if isinstance(after, dict) else None
        found.update(pk for pk in ids or () if isinstance(pk, int))
        step_progress.report()
    return array("q", sorted(found))


def forget(ids: list[int]) -> Counter[str]:
    """Delete these failures with all that belongs to them, in the caller's transaction. Answers how many rows went.

    The counters of states and the search index follow by triggers of the database. Replays keep their numbers.
    """
    went: Counter[str] = Counter()
    statements.clear(Group, "representative_id", ids)
    # Not by Django's cascade, which would read every row first; the ids as one parameter, read once by the server.
    went["attempts"] = statements.delete(Attempt, "failure_id", ids)
    statements.delete(Comeback, "failure_id", ids)
    went["messages"] = statements.delete(Payload, "failure_id", ids)
    went["items of replays"] = statements.delete(ReplayItem, "failure_id", ids)
    statements.delete(Failure, "id", ids)
    return +went


def _delete(model: type[Model], **which: Any) -> int:
    return model._base_manager.filter(**which)._raw_delete(using="default")


def _orphans() -> QuerySet[Traceback]:
    failed, tried = (Exists(model.objects.filter(traceback=OuterRef("pk"))) for model in (Failure, Attempt))
    return Traceback.objects.filter(~failed, ~tried)


def _empty_groups(before: datetime) -> QuerySet[Group]:
    """Return groups without a job, not seen for long, without a note."""
    jobs = FailureCount.objects.filter(group_id=OuterRef("pk"), count__gt=0)
    attempts = Attempt.objects.filter(group=OuterRef("pk"))
    rules = GroupRule.objects.filter(group=OuterRef("pk"))
    return Group.objects.filter(
        ~Exists(jobs), ~Exists(attempts), ~Exists(rules), last_seen__lt=before, note="", runbook_url="", assignee=None
    )


def _over_notices(before: datetime) -> QuerySet[Notice]:
    """Return old notices except the last one of each stored alert: the next is numbered after it, and it shows whether
    an end was reported.
    """
    newer = Notice.objects.filter(alert=OuterRef("alert"), pk__gt=OuterRef("pk"))
    return Notice.objects.filter(Q(alert=None) | Exists(newer), created_at__lt=before)


def _forget_notices(ids: list[int]) -> None:
    """Delete notices with their deliveries. An alert's events stay, without the notice."""
    AlertEvent.objects.filter(notice__in=ids).update(notice=None)
    _delete(Delivery, notice__in=ids)
    _delete(Notice.channels.through, notice__in=ids)
    _delete(Notice, pk__in=ids)


def _over_alerts(before: datetime) -> QuerySet[Alert]:
    """Return ended alerts except those whose bundle has one that has not ended so long ago."""
    open_members = Alert.objects.filter(told_with=OuterRef("pk")).exclude(
        state=AlertState.RESOLVED, resolved_at__lt=before
    )
    return Alert.objects.filter(~Exists(open_members), state=AlertState.RESOLVED, resolved_at__lt=before)


def _forget_alerts(ids: list[int]) -> None:
    _forget_notices(list(Notice.objects.filter(alert__in=ids).values_list("pk", flat=True)))
    _delete(AlertEvent, alert__in=ids)
    Alert.objects.filter(told_with__in=ids).update(told_with=None)
    _delete(Alert, pk__in=ids)


def _forget_rules(ids: list[int]) -> None:
    for links in (Rule.channels.through, Rule.escalate_to.through):
        _delete(links, rule__in=ids)
    _delete(Rule, pk__in=ids)


def _forget_groups(ids: list[int]) -> None:
    FailureCount.objects.filter(group_id__in=ids, count=0).delete()
    Group.objects.filter(pk__in=ids).delete()


# -- how large it is ----------------------------------------------------------------------------------------------


def weigh() -> tuple[float, int]:
    """Bytes of a failure with all that belongs to it, and bytes of the database that are in use; both about.

    PostgreSQL does not say how much of its files is in use: there it is the weight of a sample times the number.
    """
    count = FailureCount.objects.aggregate(n=Sum("count"))["n"] or 0
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            pages, free, size = (_pragma(cursor, name) for name in ("page_count", "freelist_count", "page_size"))
            in_use = (pages - free) * size
            return (in_use / count if count else 0.0), in_use
        cursor.execute(_WEIGHT)
        (found,) = cursor.fetchone()
        weight = float(found or 0)
        return weight, round(weight * count)


def _pragma(cursor: Any, name: str) -> int:
    cursor.execute(f"PRAGMA {name}")
    return int(cursor.fetchone()[0])


# What a byte of a row takes up on PostgreSQL 15 with its share of indexes and of room that pages leave. Measured against
# the sizes of the files: 200,000 failures with messages of 1.2 kB are 5,644 bytes each by these, and 5,659 there; 6,000
# with messages of 37 kB are 45,200 and 45,600; with messages of 4 kB 9,200 and 11,600, since pages of them stay half empty.
_INDEXED, _MESSAGE = 1.7, 1.1
_WEIGHT = f"""
    WITH newest AS (SELECT * FROM jobs_admin_failure ORDER BY id DESC LIMIT 500)
    SELECT avg({_INDEXED} * (pg_column_size(newest.*)
        + COALESCE((SELECT sum(pg_column_size(a.*)) FROM jobs_admin_attempt a WHERE a.failure_id = newest.id), 0)
        + COALESCE((SELECT sum(pg_column_size(t.*)) FROM jobs_admin_failureterms t WHERE t.id = newest.id), 0))
        + {_MESSAGE} *
        COALESCE((SELECT sum(pg_column_size(p.*)) FROM jobs_admin_payload p WHERE p.failure_id = newest.id), 0))
    FROM newest
"""


def in_words() -> str:
    """Return the retention in a sentence."""
    by_age: dict[timedelta | None, list[str]] = {}
    for state in (*CLOSED, *_DEAD):
        by_age.setdefault(config.keep().get(state), []).append(str(state.value))
    parts = [f"{' and '.join(states)} {duration(age) if age else 'for ever'}" for age, states in by_age.items()]
    limit = config.keep_bytes()
    size = f"; beyond {size_in_words(limit)} the oldest closed ones go sooner" if limit is not None else ""
    return f"Retention after the last change: {', '.join(parts)}{size}."


def duration(age: timedelta) -> str:
    return language.duration(round(age.total_seconds()))


def size_in_words(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
