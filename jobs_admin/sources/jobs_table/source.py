"""Adapter of a jobs table in SQLite or PostgreSQL: a row is a job, and every change is a conditional UPDATE.

By default, the table of the tutorial on database-backed queues (its `failJob` defines what a failed attempt does to a
row); other names are configured. Workers use the same database, so every statement is short.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import Any

from jobs_admin.core.lint.options import EXPONENTIAL, FIXED, LINEAR, NONE, FoundOptions, Options
from jobs_admin.core.lint.options import SampledQueue as InQueue
from jobs_admin.core.text import representable
from jobs_admin.sources.base import (
    READ_ONLY,
    Capabilities,
    Depth,
    Finding,
    JobChanges,
    OutgoingMessage,
    Pulled,
    Ref,
    Rescheduled,
    SourceError,
    SourceRefused,
    Unread,
)
from jobs_admin.sources.jobs_table import names as jobs_table_names
from jobs_admin.sources.jobs_table import rows as jobs_table_rows
from jobs_admin.sources.jobs_table import shape as jobs_table_shape
from jobs_admin.sources.jobs_table import times
from jobs_admin.sources.jobs_table.ledger import Ledger
from jobs_admin.sources.jobs_table.names import PLAIN, Preset
from jobs_admin.sources.jobs_table.reading import Place, Reader, RowRef, TableState
from jobs_admin.sources.jobs_table.rows import Job
from jobs_admin.sources.jobs_table.sending import Sender
from jobs_admin.sources.jobs_table.shape import Shape
from jobs_admin.sources.jobs_table.sql import Row, TookTooLong, open_database

_REPORTS_AT_ONCE = 300
_BYTES_AT_ONCE = 32 * 2**20
_PULLED_WITHIN_S = 1.0
_REMEMBERED_S, _MOST_REMEMBERED = (
    240.0,
    200_000,
)  # rows read again in the overlap of two readings are not reported again
_SHAPE_S = 60.0
_EVERY_S, _LONGEST_EVERY_S = 2.0, 300.0
_SHARE = 20  # reading a complete table takes at most one part in this number of the time
_FORGET_EVERY_S = 3600.0
_SAME_S = 1.0  # times that differ by less may be the same in other units

_DEAD = ("dead", "quarantined")
_TO_DELETE = ("DELETE", "INSERT")  # rights for discarding by deletion, and for undoing it


class JobsTable:
    """A `sources.PulledSource`."""

    def __init__(
        self,
        name: str,
        url: str,
        queues: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        preset: Preset = PLAIN,
    ) -> None:
        """Opens no connection. Raises SourceRefused for unusable options."""
        self.name = name
        self._names = names = jobs_table_names.read(name, options or {}, preset)
        self._queues = tuple(queues)
        if self._queues and not names.has("queue"):
            raise SourceRefused(
                f"Source {name}: queues are chosen by a column: name it, [sources.{name}.columns] queue = …"
            )
        self._db = open_database(name, url)
        self._ledger = Ledger(self._db, names.ledger, names.table)
        self._reader = Reader(self._db, names, self._ledger, self._queues)
        self._sender = Sender(self._db, names, self._ledger)
        self.outcome_within_s = names.outcome_within_s
        self.every_s = _EVERY_S
        self.can = Capabilities(
            atomic_send=True,
            edit=names.has("payload"),
            outcomes=True,
            attempts=True,
            priority=names.has("priority"),
            remove=names.discard_deletes,
            holds_dead=True,
            in_place=True,
            reschedule=names.has("scheduled_at") and preset.has_retries,
            options=preset.has_retries,
        )
        self._shape: tuple[float, Shape] | None = None
        self._filed: dict[RowRef, float] = {}  # recently filed rows -> time
        self._table_state: TableState | None = None
        self._was_away = False  # the table was missing: the next one is another
        self._depths: tuple[float, list[Depth]] | None = None
        self._forgot_at = -math.inf

    # -- depths and health ---------------------------------------------------------------------------------------

    def depths(self) -> list[Depth]:
        if self._depths and time.monotonic() < self._depths[0]:
            return self._depths[1]
        shape, names, began = self._current_shape(), self._names, time.monotonic()
        groups: dict[str, Counter[str]] = {}
        try:
            for queue, status, is_later, count in self._count_rows(shape):
                word = "delayed" if status == names.pending and is_later else str(status)
                groups.setdefault(self._queue(queue), Counter())[word] += int(count)
        except TookTooLong:
            found = [Depth(queue) for queue in self._queues or (self._queue(None),)]
        else:
            found = [
                Depth(queue, n[names.pending], n[names.running], n["delayed"], n[names.failed])
                for queue, n in sorted(groups.items())
                if not self._queues or queue in self._queues
            ] or [Depth(queue, 0, 0, 0, 0) for queue in self._queues or (self._queue(None),)]
        took_s = time.monotonic() - began
        self._depths = (time.monotonic() + took_s * _SHARE, found) if took_s > 0.05 else None
        return found

    def _count_rows(self, shape: Shape, queues: Sequence[str] = ()) -> list[Row]:
        names, p = self._names, shape.p
        queue = shape.columns.get("queue", "NULL")
        later, values = "0", []
        if shape.has("scheduled_at") and shape.forms["scheduled_at"] != times.MIXED:
            later = f"CASE WHEN {shape.columns['scheduled_at']} > {p} THEN 1 ELSE 0 END"
            values.append(shape.moment(time.time(), "scheduled_at"))
        values += [names.pending, names.running, names.failed]
        where = f"{shape.status} IN ({p}, {p}, {p})"
        if queues and shape.has("queue"):
            where += f" AND {queue} IN ({', '.join([p] * len(queues))})"
            values += queues
        return self._db.read(
            f"SELECT {queue}, CAST({shape.status} AS TEXT), {later}, count(*) FROM {shape.table} WHERE {where} GROUP BY 1, 2, 3",
            values,
            within_s=self._db.counts_within_s,
        )

    def _queue(self, value: object) -> str:
        return str(value) if value not in (None, "") else self._names.table

    def workers(self) -> dict[str, set[str]] | None:
        return None  # a table does not know its workers

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        if not queues:
            return {}
        shape = self._current_shape()
        found: dict[str, int | None] = dict.fromkeys(queues, 0)
        try:
            for queue, status, is_later, count in self._count_rows(shape, queues):
                if status == self._names.pending and not is_later and (known := self._queue(queue)) in found:
                    found[known] = (found[known] or 0) + int(count)
        except TookTooLong:
            return dict.fromkeys(queues)
        return found

    def findings(self) -> list[Finding]:
        # In one function: a condition and its text, one after the other.
        try:
            shape = self._current_shape(refresh=True)
        except SourceRefused as error:
            return [
                Finding(
                    READ_ONLY,
                    "high",
                    str(error),
                    "Correct the names in sources.toml. Nothing is read or sent until then.",
                )
            ]
        found = []
        if shape.closed:
            lacking = self._lacking()
            found.append(
                Finding(
                    READ_ONLY,
                    "high",
                    f"Nothing is sent to {self._names.table}: {shape.closed}.",
                    "Fix the cause; the table is checked again every minute."
                    + (f" As the owner of the tables, run:\n{lacking}" if lacking else ""),
                )
            )
        if self._ledger.is_hidden():
            found.append(
                Finding(
                    "jobs-table-ledger-hidden",
                    "warning",
                    f"The ledger {self._names.ledger} exists but cannot be read: outcomes of replays of {self._names.table} are unknown.",
                    f"As the owner of the ledger, run:\n{self._lacking()}",
                )
            )
        if self.can.remove and not shape.closed and (grants := self._db.grants(self._names.table, _TO_DELETE)):
            fix = "".join(f"{one};\n" for one in grants)
            found.append(
                Finding(
                    "jobs-table-keeps-discarded",
                    "warning",
                    self._may_not_delete(),
                    f"As the owner of the table, run:\n{fix}",
                )
            )
        if not shape.is_indexed:
            table = self._names.table
            fix = " ".join(f"CREATE INDEX ON {table} ({column});" for column in shape.lacking)
            found.append(
                Finding(
                    "jobs-table-no-index",
                    "info",
                    f"{table} has no index that begins with {' and none with '.join(shape.lacking) or 'times of one form'}, so "
                    "failures are found by reading all its rows: the more rows, the less often.",
                    fix or "Write all times of a column in one form.",
                )
            )
        if self._has_retries_without_a_time(shape):
            scheduled, table = self._names.columns["scheduled_at"], self._names.table
            found.append(
                Finding(
                    "jobs-table-no-due-time",
                    "warning",
                    f"Retrying rows of {table} have no {scheduled}: workers that select due rows by {scheduled} never run "
                    "them.",
                    "Reschedule these retries, and check how the worker computes the time: in SQLite "
                    "'+' || (attempts + 1) * 30 || ' seconds' is not a number of seconds, because || binds tighter than *.",
                )
            )
        return found

    def _lacking(self) -> str:
        """Return the statements that grant the rights missing for sending; "" if none are missing."""
        names = self._names
        deletes = _TO_DELETE if names.discard_deletes else ()
        grants = [
            *self._db.grants(names.table, ("SELECT", "UPDATE", *deletes)),
            *self._db.grants(names.ledger, ("SELECT", "INSERT", "DELETE")),
        ]
        made = [self._ledger.statement().replace("%%", "%")] if grants and not self._ledger.exists() else []
        return "".join(f"{one};\n" for one in [*made, *grants])

    def _has_retries_without_a_time(self, shape: Shape) -> bool:
        if not self.can.reschedule or not shape.has("scheduled_at"):
            return False
        where = f"{shape.status} = {shape.p} AND {shape.columns['attempts']} > 0 AND {shape.columns['scheduled_at']} IS NULL"
        statement = f"SELECT 1 FROM {shape.table} WHERE {where} LIMIT 1"
        try:
            return bool(self._db.read(statement, [self._names.pending], within_s=self._db.counts_within_s))
        except TookTooLong:
            return False

    def found_options(self) -> FoundOptions:
        names = self._names
        try:
            jobs = self._reader.sample_retried(self._current_shape())
        except TookTooLong:
            jobs = []
        sampled = Counter(job.queue for job in jobs)
        dead = {depth.queue: depth.source_dead for depth in self.depths()} if jobs else {}
        rows = [
            (job.queue, job.type or names.table, job.id, job.attempts, job.max_attempts, job.updated_at, job.due_at,
             job.status == names.pending)
            for job in jobs
        ]  # fmt: skip
        samples = tuple(
            InQueue(queue, count, max(count, dead.get(queue) or 0), dead.get(queue)) for queue, count in sampled.items()
        )
        return FoundOptions(self.name, time.time(), tuple(find_options(rows, sampled)), samples)

    def _current_shape(self, *, refresh: bool = False) -> Shape:
        """Return the structure of the table, at most a minute old."""
        if refresh or self._shape is None or time.monotonic() - self._shape[0] > _SHAPE_S:
            self._shape = (time.monotonic(), jobs_table_shape.find(self._db, self._names))
        return self._shape[1]

    def _writable_shape(self) -> Shape:
        """Return the structure of a writable table. Raises SourceRefused if nothing may be changed."""
        shape = self._current_shape()
        if shape.closed:
            shape = self._current_shape(refresh=True)
        if shape.closed:
            raise SourceRefused(f"{self.name} is read-only here: {shape.closed}. Nothing was changed.")
        return shape

    # -- dead letters --------------------------------------------------------------------------------------------

    def dead_letters(self, after: str) -> Pulled:
        try:
            return self._dead_letters(after)
        except SourceError:
            with contextlib.suppress(SourceError):
                if not self._db.columns(self._names.table):
                    self._was_away, self._shape = True, None
            raise

    def _dead_letters(self, after: str) -> Pulled:
        shape, began = self._current_shape(), time.monotonic()
        place = self._start_place(Place.read(after), shape)
        found: dict[str, RowRef] = {}
        size, is_over, spent_s = 0, False, 0.0
        while not is_over and len(found) < _REPORTS_AT_ONCE and size < _BYTES_AT_ONCE:
            started = time.monotonic()
            rows, place, is_over = self._reader.page(shape, place)
            spent_s += time.monotonic() - started
            news = {row.id: row for row in rows if row not in self._filed}
            found |= news
            size += sum(row.weight for row in news.values())
            if time.monotonic() - began > _PULLED_WITHIN_S:
                break
        now, reports, unread = time.time(), [], []
        for job in self._reader.complete_jobs(shape, list(found.values()), self._table_state):
            try:
                if kind := jobs_table_rows.outcome(job, self._names, now):
                    reports.append(jobs_table_rows.build_report(self.name, job, kind, self._names))
            except Exception as error:  # one row of a page: the others are still read
                unread.append(Unread.from_error(job.queue, job.id, jobs_table_rows.pack(job, self._names)[0], error))
        place = replace(place, spent_s=round(place.spent_s + spent_s, 4))
        if is_over:
            rest_s = 0.0 if shape.is_indexed else place.spent_s * _SHARE
            self.every_s = min(_LONGEST_EVERY_S, max(_EVERY_S, rest_s))
            place = self._reader.after(shape, place)
        return Pulled(reports, place.text(), not is_over, receipt=list(found.values()), unread=unread)

    def confirm_filed(self, pulled: Pulled) -> None:
        now = time.monotonic()
        self._filed.update(dict.fromkeys(pulled.receipt or (), now))
        if not pulled.is_more:
            self._filed = {row: at for row, at in self._filed.items() if now - at < _REMEMBERED_S}
        while len(self._filed) > _MOST_REMEMBERED:
            del self._filed[next(iter(self._filed))]

    def _start_place(self, place: Place, shape: Shape) -> Place:
        """Return the position to continue from; the start if the table is not the one read before."""
        self._table_state = table_state = self._check_table(shape, place.table_state)
        self._was_away = False
        if place.table_state is not None and table_state.since > place.table_state.since:
            self._filed.clear()
            return Place(table_state=table_state)
        return replace(place, table_state=table_state)

    def _check_table(self, shape: Shape, before: TableState | None) -> TableState:
        found, is_hidden = self._db.table_identity(self._names.table), self._ledger.is_hidden()
        # An unreadable ledger is not another ledger: the table is the same, and only outcomes of replays are unknown.
        epoch = (before.ledger if before else None) if is_hidden else self._ledger.epoch()
        witnesses = list(before.witnesses) if before is not None else []
        known = [job.id for job in self._reader.jobs(shape, witnesses, None)]
        it, table = shape.columns["id"], shape.table
        ends = [
            self._db.read(f"SELECT {shape.identity} FROM {table} ORDER BY {it} {way} LIMIT 2")
            for way in ("ASC", "DESC")
        ]
        seen = dict.fromkeys(str(row[0]) for rows in ends for row in rows)
        table_state = TableState.now(found, epoch, known, list(seen), before, time.time(), was_away=self._was_away)
        return replace(table_state, reads_ledger=not is_hidden)

    # -- changes of jobs -----------------------------------------------------------------------------------------

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        shape, now = self._current_shape(), time.time()
        if self._table_state is not None:
            self._table_state = self._check_table(shape, self._table_state)
        there = {job.id: job for job in self._reader.jobs(shape, [ref.job_id for ref in jobs], self._table_state)}
        changes, ended, size = JobChanges(), dict[str, str](), 0
        for ref in jobs:
            job = there.get(ref.job_id)
            if job is None:
                if not ref.was_removed and self._table_state is not None and self._table_state.proves(ref.at):
                    changes.gone[ref] = f"Its row was removed from {self._names.table}, outside Redrive."
                continue
            if job.is_another and ref.state == "replaying":
                if self._table_state is not None and self._table_state.proves(ref.at):
                    changes.gone[ref] = (
                        f"Its row was removed from {self._names.table}, outside Redrive; another job has its id now."
                    )
                continue
            kind = self._kind(ref, job, now)
            if size < _BYTES_AT_ONCE and kind and self._is_news(ref, job, kind):
                ended[job.id] = kind
                size += min(job.payload_size, jobs_table_rows.MOST_PAYLOAD)
            if kind == "retry" and job.due_at is not None:
                changes.due[ref] = job.due_at
            if why := self._why_gone(ref, job, kind):
                changes.gone[ref] = why
        incomplete = [job_id for job_id, kind in ended.items() if kind != "success"]
        there |= {job.id: job for job in self._reader.jobs(shape, incomplete, self._table_state, with_payload=True)}
        for ref, job in ((ref, there[ref.job_id]) for ref in jobs if ref.job_id in ended):
            if kind := self._kind(ref, job, now):
                changes.reports.append(jobs_table_rows.build_report(self.name, job, kind, self._names))
        return changes

    def _kind(self, ref: Ref, job: Job, now: float) -> str:
        """Return the outcome of the latest attempt. For requested jobs, also the success of a retry not sent by us."""
        if job.status == self._names.completed and self._is_natural(ref, job):
            return "success"
        return jobs_table_rows.outcome(job, self._names, now)

    def _is_natural(self, ref: Ref, job: Job) -> bool:
        """Return whether a job may have completed without an action."""
        if not self._names.preset.has_retries:  # then only in the attempt given up as lost
            lost_at = job.locked_at and job.locked_at + self._names.stale_after_s
            return lost_at is not None and ref.at is not None and abs(lost_at - ref.at) < _SAME_S
        return job.max_attempts is None or job.attempts < job.max_attempts or self._names.attempts_at_start

    def _is_news(self, ref: Ref, job: Job, kind: str) -> bool:
        if kind == "success" or ref.state == "replaying" or ref.at is None:
            return True
        return abs(jobs_table_rows.ended_at(job, kind, self._names) - ref.at) > _SAME_S

    def _why_gone(self, ref: Ref, job: Job, kind: str) -> str:
        """Return evidence of another's action; "" without one, or if nothing is certain."""
        names, is_dead = self._names, ref.state in _DEAD
        if ref.state == "replaying" or kind in ("exception", "lost") or job.status not in names.statuses:
            return ""
        if not is_dead and (kind == "retry" or job.status == names.running):
            return ""  # unchanged, or the expected retry
        if self._table_state is None or self._table_state.is_from_another_table(ref.at):
            return ""  # an older copy of the table: no one changed its rows
        return f"Its row is {job.status} now: it was changed outside Redrive."

    # -- sending and other changes of rows -----------------------------------------------------------------------------

    def epoch(self, replay: str) -> str:
        self._writable_shape()
        now = time.time()
        found = self._ledger.ensure(now)
        if time.monotonic() - self._forgot_at > _FORGET_EVERY_S:
            self._forgot_at = time.monotonic()
            self._ledger.forget(now)
        return found

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        self.epoch(replay)
        return self._sender.send(self._writable_shape(), replay, messages)

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._ledger.tokens(replay, tokens) if tokens and self._ledger.exists() else set()

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return set()

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._ledger.withhold(replay, tokens, time.time()) if tokens else set()

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused("A jobs table cannot take back sent jobs: waiting rows stay. Nothing was changed.")

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        return self._sender.reschedule(self._writable_shape(), changes)

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        if not self.can.remove:
            raise SourceRefused(
                f"Rows of {self._names.table} are not deleted: discard_deletes is not set. Nothing was changed."
            )
        shape = self._writable_shape()
        if self._db.grants(self._names.table, _TO_DELETE):
            raise SourceRefused(f"{self._may_not_delete()} Nothing was changed.")
        self._ledger.ensure(time.time())
        return self._sender.remove(shape, jobs)

    def _may_not_delete(self) -> str:
        return (
            f"Discarded rows stay in {self._names.table}: the role needs both DELETE and INSERT there, so that a discard can "
            "be undone."
        )

    # -- content of a message ------------------------------------------------------------------------------------

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return jobs_table_rows.arguments(raw)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        jobs_table_rows.edit_payload(raw, args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        fields = jobs_table_rows.unpack(raw)
        return {name: fields[name] for name in ("table", "id", "type") if name in fields}

    def is_chord_member(self, raw: bytes) -> bool:
        return False

    def expires_at(self, raw: bytes) -> datetime | None:
        return None

    def close(self) -> None:
        self._db.close()


# Retry options of the rows of a jobs table: `max_attempts` from the rows, and delays as observed.
# A table does not state the backoff curve of its workers: only currently waiting rows show it, by the time from their
# failure (`updated_at`) to the retry (`scheduled_at`). Two different observed attempts are enough to recognise a curve.

_CLOSE = 0.05  # times are whole seconds, written a moment after the failure
_MOST_SHOWN = 6
UNKNOWN = "seen too little"

# Queue, type, id, attempts, max_attempts, updated_at, scheduled_at (seconds), whether it waits for a retry.
Seen = tuple[str, str, str, int, int | None, float | None, float | None, bool]


def find_options(rows: Iterable[Seen], sampled: Mapping[str, int]) -> list[Options]:
    """Return each distinct `max_attempts` per queue and type, with the delays of waiting rows.

    `sampled`: number of rows per queue.
    """
    alike: dict[tuple[str, str, int | None], list[Seen]] = defaultdict(list)
    for row in rows:
        alike[row[0], row[1], row[4]].append(row)
    return [_summarise(key, some, sampled.get(key[0], 0)) for key, some in alike.items()]


def _summarise(key: tuple[str, str, int | None], rows: list[Seen], sampled: int) -> Options:
    queue, task, most = key
    waits: dict[int, list[float]] = defaultdict(list)
    for _, _, _, attempts, _, failed_at, due_at, waiting in rows:
        if waiting and failed_at is not None and due_at is not None:
            waits[attempts].append(max(0.0, due_at - failed_at))
    seen = {attempt: median(some) for attempt, some in sorted(waits.items())}
    backoff, first_s = recognise_curve(seen)
    latest = max(rows, key=lambda row: row[5] or 0)
    return Options(
        queue=queue, task=representable(task), quoted=_quote(most, seen), attempts=min(most or 1, 2**31 - 1),
        backoff=backoff if (most or 1) > 1 else NONE, first_delay_s=first_s, jobs=len(rows), sample_size=sampled,
        example=latest[2], newest_at=latest[5],
    )  # fmt: skip


def recognise_curve(seen: Mapping[int, float]) -> tuple[str, float]:
    """Return (curve, first delay) of delays by attempt, from 1. An unknown curve is not a finding."""
    if len(seen) < 2 or min(seen) < 1:
        return UNKNOWN, 0.0
    grown: dict[str, Any] = {FIXED: lambda n: 1.0, LINEAR: float, EXPONENTIAL: lambda n: 2.0 ** min(n - 1, 1000)}
    for backoff, growth in grown.items():
        firsts = [wait / growth(attempt) for attempt, wait in seen.items()]
        first = median(firsts)
        # A tolerance of about a second for each: times are whole seconds.
        if all(abs(wait - first * growth(n)) <= max(1.5, _CLOSE * first * growth(n)) for n, wait in seen.items()):
            return backoff, first
    return UNKNOWN, 0.0


def _quote(most: int | None, seen: Mapping[int, float]) -> str:
    parts = [f"max_attempts = {most}" if most is not None else "no max_attempts"]
    shown = [f"{wait:.0f} s after attempt {attempt}" for attempt, wait in list(seen.items())[:_MOST_SHOWN]]
    return "; waits seen: ".join([*parts, ", ".join(shown)] if shown else parts)
