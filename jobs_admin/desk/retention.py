"""Retention: ages of stored rows, and deletion of expired ones in transactions too short to block others.

The age of a failure counts from its last event: a failed attempt, a report of a run, an operator's act. Above a size
limit of the database, the oldest closed ones are deleted early; dead ones never are. Retrying and replaying failures,
and those in an open replay, stay. Numbers outlive the jobs they counted: replays, groups and counters for some time,
the audit permanently.
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
from jobs_admin.core.figures import duration
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit, statements, step_progress
from jobs_admin.db.turns import lock_writers, turn
from jobs_admin.models import (
    Alert,
    AlertEvent,
    Attempt,
    AuditEvent,
    BreakerEvent,
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

# In the order of early deletion.
CLOSED = (FailureState.RECOVERED, FailureState.GONE, FailureState.DISCARDED)
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)

# Numbers over time: minutes are for rates, longer steps for charts; hours and the rest stay as long as `history`.
_SILENT_WORKERS, _DRAFTS = timedelta(days=7), timedelta(days=7)

# Rows that a report being written may refer to although no committed row does: deleted only between two writers.
_OF_REPORTS = (Group, Traceback)

_TRANSACTION_S = 0.06  # target per transaction; SQLite allows no other writer meanwhile, and a busy machine doubles it
_FEWEST, _MOST = 20, 1_000  # failures per transaction
_READ_AT_ONCE = 2_000  # failures read per statement, outside of any transaction
_AGAIN_S = 300.0  # between two rounds of `watch` that found nothing more to do
_ROUND_S = 10.0  # per round of `watch`, so that it reports progress


@dataclass(slots=True)
class Pruned:
    """Deleted rows, or those that `dry_run` would delete: by kind, failures also by state."""

    failures: Counter[str] = field(default_factory=Counter)  # by state
    rows: Counter[str] = field(default_factory=Counter)  # of all other kinds
    bytes: int = 0  # of failures and their related rows, approximately
    bytes_before: int = 0  # of the database, in use
    too_large_by: int = 0  # excess over the limit when nothing more may be deleted
    is_done: bool = True  # False: the time ran out, the next round continues
    longest_s: float = 0.0  # longest transaction

    @property
    def count(self) -> int:
        return self.failures.total()


def step(now: datetime) -> bool:
    """Run a round of `watch` for some seconds. Return True if there is more to do."""
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
    """Delete expired rows.

    `older_than` and `larger_than` (bytes) override the settings REDRIVE_KEEP and REDRIVE_KEEP_BYTES.

    May be interrupted and restarted at any point, and several may run: each failure is deleted once, by the process
    that locks it. Raises Refused on a read-only desk.
    """
    if config.is_read_only() and not dry_run:
        raise Refused("read_only", config.READ_ONLY)
    ages = config.keep() if older_than is None else config.keep() | dict.fromkeys((*CLOSED, *_DEAD), older_than)
    limit = config.keep_bytes() if larger_than is None else larger_than
    run = _Run(now, ages, limit, dry_run, None if within_s is None else time.monotonic() + within_s)
    run.all()
    if not dry_run and (run.pruned.count or run.pruned.rows):
        # One audit entry per round, not per transaction: the settings cause this, not a person.
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
    weight: float = 0.0  # bytes per failure
    touched: tuple[datetime, array] | None = None  # since when, and the ids

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
        """Delete failures in a state without an event since `before`; at most `most`, oldest first."""
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
        """Yield ids, oldest first, each read once: failures that stay are not read again in this run."""
        after, at = 0, connection.ops.adapt_datetimefield_value(before)
        # Compared by the database: parsing the times of a million rows takes longer than reading them.
        sql = (
            f"SELECT id, received_at < %s, failed_at < %s FROM {Failure._meta.db_table} WHERE state = %s AND id > %s "
            f"ORDER BY id LIMIT {_READ_AT_ONCE}"
        )
        while True:
            batch = statements.fetch_rows(sql, [at, at, str(state), after])
            old = [pk for pk, *are_before in batch if all(are_before)]
            if old := self._untouched(old, state, before):
                yield _may_go(state, before, old)
            self._check_time()
            # Ids increase with the time of arrival: a failure that arrived after `before` ends the search.
            if len(batch) < _READ_AT_ONCE or not batch[-1][1]:
                return
            after = batch[-1][0]

    def _untouched(self, ids: list[int], state: str, before: datetime) -> list[int]:
        """Return those that no person has discarded or restored since: only the audit has that time."""
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
            lock_writers()
            began = time.monotonic()  # not earlier: waiting for locks blocks no one
            # Checked again inside the transaction: another prune, a replay or a retry may have been first.
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
        time.sleep(took / 2)  # for people's writes, which do not take turns
        self._check_time()

    def _check_time(self) -> None:
        step_progress.report()
        if self.ends is not None and time.monotonic() > self.ends:
            raise _TimeIsUp

    def _excess(self) -> None:
        """Delete the oldest closed failures of any age until the database is small enough."""
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
        self._rows("transitions of breakers", BreakerEvent.objects.filter(at__lt=before))
        self._rows("groups", _empty_groups(before), _forget_groups)

    def _depths(self) -> None:
        for step, age in steps.retention_by_step().items():
            rolled = rolled_until(step, self.now)
            # Samples not yet folded into a longer step stay, whatever their age.
            if age is not None and rolled is not None:
                self._depth_samples(
                    DepthSample.objects.filter(step=step, at__lt=min(self.now - age, rolled)).order_by("at")
                )

    def _depth_samples(self, rows: QuerySet[DepthSample]) -> None:
        """Delete the oldest first, by their times: sorting millions of samples by id for each batch takes too long."""
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
                # Checked again, as above.
                mine = list(rows.filter(pk__in=ids).values_list("pk", flat=True))
                if forget_ is not None:
                    forget_(mine)
                else:
                    _delete(rows.model, pk__in=mine)
            self.pruned.rows[name] += len(mine)
            took = time.monotonic() - began
            at_once = _next_size(at_once, took, 50, 500)
            self._note(took)
        self.pruned.rows += Counter()  # removes zero counts


def _next_size(count: int, took_s: float, fewest: int, most: int) -> int:
    """Return the number of rows that fits the target duration of a transaction, at most twice the last number."""
    return int(min(most, count * 2, max(fewest, count * _TRANSACTION_S / max(took_s, 1e-6))))


def _may_go(state: str, before: datetime, ids: Sequence[int] | None = None, *, lock: bool = False) -> list[int]:
    """Return failures of this state (among `ids`) without an event since `before` and in no open replay, in order.

    With `lock`, lock them and skip those that others have locked. Raw SQL: a transaction checks some hundred, and the
    ORM takes longer to build this query than the database to answer it.
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
    """Return the failures that a person discarded or restored since, ordered by id."""
    acts = AuditEvent.objects.filter(act__startswith="failure.", at__gte=since, allowed=True).order_by()
    found: set[int] = set()
    for after in acts.values_list("after", flat=True).iterator(chunk_size=500):
        ids = after.get("ids") if isinstance(after, dict) else None
        found.update(pk for pk in ids or () if isinstance(pk, int))
        step_progress.report()
    return array("q", sorted(found))


def forget(ids: list[int]) -> Counter[str]:
    """Delete these failures and all rows that belong to them, in the caller's transaction. Return the number of rows.

    Database triggers update the counters of states and the search index. Replays keep their numbers.
    """
    went: Counter[str] = Counter()
    statements.clear(Group, "representative_id", ids)
    # Not Django's cascade, which would read every row first; the ids are one parameter, parsed once by the server.
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
    """Return groups that have no jobs, no note, and no recent sighting."""
    jobs = FailureCount.objects.filter(group_id=OuterRef("pk"), count__gt=0)
    attempts = Attempt.objects.filter(group=OuterRef("pk"))
    rules = GroupRule.objects.filter(group=OuterRef("pk"))
    return Group.objects.filter(
        ~Exists(jobs),
        ~Exists(attempts),
        ~Exists(rules),
        last_seen__lt=before,
        note="",
        runbook_url="",
        issue_url="",
        assignee=None,
    )


def _over_notices(before: datetime) -> QuerySet[Notice]:
    """Return old notices except the last one of each stored alert.

    The next notice is numbered after it, and it shows whether an end was reported.
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
    """Return ended alerts except those whose bundle has a recently ended or open one."""
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


# -- size of the database ------------------------------------------------------------------------------------------


def weigh() -> tuple[float, int]:
    """Return the approximate bytes of a failure with its related rows, and of the part of the database in use."""
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


# Space of a byte of a row on PostgreSQL 15, with its share of indexes and unused space in pages. Measured against file
# sizes: 200,000 failures with messages of 1.2 kB are 5,644 bytes each by this formula, and 5,659 measured; 6,000 with
# messages of 37 kB are 45,200 and 45,600; with messages of 4 kB 9,200 and 11,600, because their pages stay half empty.
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
    """Return the retention as a sentence."""
    by_age: dict[timedelta | None, list[str]] = {}
    for state in (*CLOSED, *_DEAD):
        by_age.setdefault(config.keep().get(state), []).append(str(state.value))
    parts = [
        f"{' and '.join(states)} {duration(age.total_seconds()) if age else 'for ever'}"
        for age, states in by_age.items()
    ]
    limit = config.keep_bytes()
    size = f"; above {size_in_words(limit)} the oldest closed failures are deleted earlier" if limit is not None else ""
    return f"Retention after the last change: {', '.join(parts)}{size}."


def size_in_words(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
