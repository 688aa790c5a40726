"""Paged reading of the rows of a jobs table that may have a report: by time if indexes help, else all rows in
slices.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobs_admin.sources.jobs_table import ledger as jobs_table_ledger
from jobs_admin.sources.jobs_table import times
from jobs_admin.sources.jobs_table.ledger import Ledger
from jobs_admin.sources.jobs_table.names import Names
from jobs_admin.sources.jobs_table.rows import MOST_PAYLOAD, Job
from jobs_admin.sources.jobs_table.shape import Shape
from jobs_admin.sources.jobs_table.sql import Database, Row, TableIdentity

_ROWS_AT_ONCE = 500  # per statement
_SLICE = 5_000  # rows scanned per statement without an index
_BYTES_AT_ONCE = 32 * 2**20
_OVERLAP_S = 60.0  # a transaction may become visible this much later than the time it wrote …
_FIRST_OVERLAP_S = 3600.0  # … and its clock may differ from ours by this much
_TURN_S = 7200.0  # after clocks are turned back, a later write may have an earlier time
_AHEAD_S = 86_400.0  # later times are invalid: sorted after all others, they would hide them

_COLUMNS = (
    "id", "status", "attempts", "max_attempts", "updated_at", "scheduled_at", "locked_at", "locked_by", "created_at",
    "queue", "type", "tenant", "priority", "error_type",
)  # fmt: skip
_BULKY = ("last_error", "payload")

Where = tuple[str, list[object]]


@dataclass(frozen=True, slots=True)
class RowRef:
    """A row that may have a report."""

    id: str
    status: str
    attempts: int
    updated: str  # in the table's form
    size: int  # of its payload
    # the run sent by us last, 0 without one: a row that was sent and failed within a second may look unchanged
    run: int

    @property
    def weight(self) -> int:
        return min(self.size, MOST_PAYLOAD)


class Reader:
    def __init__(self, db: Database, names: Names, ledger: Ledger, queues: Sequence[str]) -> None:
        self._db = db
        self._names = names
        self._ledger = ledger
        self._queues = queues

    def page(self, shape: Shape, place: Place) -> tuple[list[RowRef], Place, bool]:
        """Return some rows, the next position, and whether these were the last."""
        place = replace(place, at=shape.sane(place.at), began=place.began or time.time())
        return self._by_time(shape, place) if shape.is_indexed else self._by_id(shape, place)

    def after(self, shape: Shape, place: Place) -> Place:
        """Return the start of the next reading. Rows changed during this one may be behind it."""
        following = place.next
        if following is None:
            following = shape.plain(shape.moment(math.floor(place.began - _FIRST_OVERLAP_S), "updated_at"))
        return replace(place, id=None, since=following, next=shape.plain(place.at), spent_s=0.0, began=0.0)

    def _by_time(self, shape: Shape, place: Place) -> tuple[list[RowRef], Place, bool]:
        p, identity, at = shape.p, shape.columns["id"], shape.order
        where, values = self._reportable(shape, place)
        where += f" AND {at} <= {p}"
        values.append(shape.plain(shape.moment(time.time() + _AHEAD_S, "updated_at")))
        if place.at is not None and place.id is not None:
            where += f" AND {at} >= {p} AND NOT ({at} = {p} AND {identity} <= {p})"
            values += [place.at, place.at, place.id]
        elif place.at is not None:
            where += f" AND {at} >= {p}"
            values.append(self._before(shape, place.at))
        rows = self._light(shape, place, f"WHERE {where} ORDER BY {at}, {identity} LIMIT {_ROWS_AT_ONCE}", values)
        if rows:
            place = replace(place, at=rows[-1][3], id=str(rows[-1][0]))
        is_over = len(rows) < _ROWS_AT_ONCE
        if is_over:
            # Stale rows do not change: one page of them per reading, in rotation.
            stale, values = self._stale(shape)
            order = f"{shape.columns['locked_at']}, {identity}" if shape.has("locked_at") else identity
            page = f"WHERE {stale} ORDER BY {order} LIMIT {_ROWS_AT_ONCE} OFFSET {place.stale}"
            stale_rows = self._light(shape, place, page, values)
            rows += stale_rows
            place = replace(place, stale=place.stale + len(stale_rows) if len(stale_rows) == _ROWS_AT_ONCE else 0)
        return _row_refs(rows), place, is_over

    def _by_id(self, shape: Shape, place: Place) -> tuple[list[RowRef], Place, bool]:
        p, identity, at = shape.p, shape.columns["id"], shape.order
        reportable, values = self._reportable(shape, place)
        if place.since is not None:
            reportable += f" AND {at} >= {p}"
            values.append(self._before(shape, place.since))
        stale, more = self._stale(shape)
        beyond: Where = (f"{identity} > {p}", [place.id]) if place.id is not None else ("1 = 1", [])
        ends = self._db.read(
            f"SELECT CAST({identity} AS TEXT) FROM {shape.table} WHERE {beyond[0]} "
            f"ORDER BY {identity} LIMIT 1 OFFSET {_SLICE - 1}",
            beyond[1],
        )
        until: Where = (f" AND {identity} <= {p}", [ends[0][0]]) if ends else ("", [])
        rows = self._light(
            shape,
            place,
            f"WHERE {beyond[0]}{until[0]} AND (({reportable}) OR ({stale})) ORDER BY {identity}",
            [*beyond[1], *until[1], *values, *more],
        )
        place = replace(
            place, id=ends[0][0] if ends else None, at=self._latest(shape, place.at, (row[3] for row in rows))
        )
        return _row_refs(rows), place, not ends

    def _reportable(self, shape: Shape, place: Place) -> Where:
        """Return the condition for rows that failed, wait for a retry, or ended after we sent them."""
        names, p, status = self._names, shape.p, shape.status
        where, values = f"{status} = {p}", [names.failed]
        if names.preset.has_retries:
            where += f" OR ({status} = {p} AND {shape.columns['attempts']} > 0)"
            values.append(names.pending)
        if _has_ledger(place.table_state):
            where += f" OR ({status} = {p} AND {self._ledger.was_sent(shape.identity)})"
            values += [names.completed, names.table]
        chosen, more = self._chosen(shape)
        return f"({where}){chosen}", [*values, *more]

    def _stale(self, shape: Shape) -> Where:
        """Return the condition for rows that their worker has held for too long."""
        if not shape.has("locked_at") or shape.forms["locked_at"] == times.MIXED:
            return "1 = 0", []
        chosen, more = self._chosen(shape)
        before = shape.moment(time.time() - self._names.stale_after_s, "locked_at")
        where = f"{shape.status} = {shape.p} AND {shape.columns['locked_at']} < {shape.p}{chosen}"
        return where, [self._names.running, before, *more]

    def _chosen(self, shape: Shape) -> Where:
        if not self._queues or not shape.has("queue"):
            return "", []
        return f" AND {shape.columns['queue']} IN ({', '.join([shape.p] * len(self._queues))})", [*self._queues]

    def _light(self, shape: Shape, place: Place, where: str, values: Sequence[object]) -> list[Row]:
        run, of = (
            (self._ledger.run(shape.identity), [self._names.table]) if _has_ledger(place.table_state) else ("0", [])
        )
        columns = (
            f"{shape.identity}, CAST({shape.status} AS TEXT), {shape.columns['attempts']}, {shape.read_order}, "
            f"{shape.size}, {run}"
        )
        return self._db.read(f"SELECT {columns} FROM {shape.table} {where}", [*of, *values])

    def _before(self, shape: Shape, at: object) -> object:
        """Return a time somewhat before this position: earlier transactions may become visible later."""
        seconds = shape.seconds(at)
        if seconds is None:
            return at
        if shape.turns_back(seconds):
            seconds -= _TURN_S
        return shape.plain(shape.moment(math.floor(seconds - _OVERLAP_S), "updated_at"))

    def _latest(self, shape: Shape, known: object, found: Iterable[object]) -> object:
        soon = time.time() + _AHEAD_S
        moments = [(shape.seconds(at), at) for at in (known, *found)]
        sane = [(seconds, at) for seconds, at in moments if seconds is not None and seconds <= soon]
        return max(sane, key=lambda one: one[0])[1] if sane else None

    # -- complete rows -------------------------------------------------------------------------------------------

    def complete_jobs(self, shape: Shape, found: Sequence[RowRef], table_state: TableState | None) -> list[Job]:
        """Read rows with error and payload in their current state, a few megabytes at a time; some may be gone."""
        jobs: list[Job] = []
        some: list[str] = []
        size = 0
        for one in found:
            some.append(one.id)
            size += one.weight
            if size > _BYTES_AT_ONCE or len(some) == _ROWS_AT_ONCE:
                jobs += self.jobs(shape, some, table_state, with_payload=True)
                some, size = [], 0
        return jobs + self.jobs(shape, some, table_state, with_payload=True)

    def jobs(
        self, shape: Shape, ids: Sequence[str], table_state: TableState | None, *, with_payload: bool = False
    ) -> list[Job]:
        """Read the existing rows; without `with_payload`, not their error and payload."""
        wanted = [one for one in ids if shape.is_id(one)]
        p = shape.p
        columns = [shape.selected(column) for column in _COLUMNS]
        columns += [shape.selected(column) if with_payload else "NULL" for column in _BULKY]
        columns += [shape.size, self._ledger.latest(shape.identity) if _has_ledger(table_state) else "NULL"]
        found: list[Job] = []
        for start in range(0, len(wanted), _ROWS_AT_ONCE):
            some = wanted[start : start + _ROWS_AT_ONCE]
            rows = self._db.read(
                f"SELECT {', '.join(columns)} FROM {shape.table} WHERE {shape.columns['id']} IN ({', '.join([p] * len(some))})",
                [*([self._names.table] if _has_ledger(table_state) else []), *some],
            )
            by_id = {str(row[0]): row for row in rows}
            found += [self._job(by_id[one]) for one in some if one in by_id]
        return found

    def sample_retried(self, shape: Shape) -> list[Job]:
        """Return some rows waiting for a retry, and some dead ones: a sample of retry options. Raises TookTooLong."""
        p, attempts = shape.p, shape.columns["attempts"]
        found = []
        for status, beyond in ((self._names.pending, f" AND {attempts} > 0"), (self._names.failed, "")):
            where = f"{shape.status} = {p}{beyond}"
            within_s = self._db.counts_within_s
            rows = self._db.read(
                f"SELECT {shape.identity} FROM {shape.table} WHERE {where} LIMIT {_ROWS_AT_ONCE}",
                [status],
                within_s=within_s,
            )
            found += self.jobs(shape, [str(row[0]) for row in rows], None)
        return found

    def _job(self, row: Row) -> Job:
        it = dict(zip((*_COLUMNS, *_BULKY, "size", "sent"), row, strict=True))
        moment = {
            name: times.read(times.number(it[name]))
            for name in ("updated_at", "created_at", "scheduled_at", "locked_at")
        }
        payload, sent = it["payload"], jobs_table_ledger.parse_sent(it["sent"])
        made_at = moment["created_at"]
        # The table's own value, compared with itself.
        is_another = sent is not None and made_at is not None and sent.made_at not in (None, made_at)
        return Job(
            id=str(it["id"]),
            status=str(it["status"]),
            attempts=whole_number(it["attempts"]) or 0,
            max_attempts=whole_number(it["max_attempts"]),
            updated_at=moment["updated_at"] or moment["created_at"] or time.time(),
            due_at=moment["scheduled_at"],
            locked_at=moment["locked_at"],
            locked_by=_text(it["locked_by"]),
            created_at=moment["created_at"],
            queue=_text(it["queue"]) or self._names.table,
            type=_text(it["type"]),
            error=_text(it["last_error"]),
            error_type=_text(it["error_type"]),
            tenant=_text(it["tenant"]),
            priority=whole_number(it["priority"]),
            payload=payload if payload is None or isinstance(payload, str | bytes) else str(payload),
            payload_size=whole_number(it["size"]) or 0,
            sent=None if is_another else sent,
            is_another=is_another,
        )


def _has_ledger(table_state: TableState | None) -> bool:
    return table_state is not None and table_state.ledger is not None and table_state.reads_ledger


def _row_refs(rows: Iterable[Row]) -> list[RowRef]:
    return [
        RowRef(
            str(identity), str(status), whole_number(n) or 0, str(at), whole_number(size) or 0, whole_number(run) or 0
        )
        for identity, status, n, at, size, run in rows
    ]


def _text(value: object) -> str:
    return "" if value is None else str(value)


def whole_number(value: object) -> int | None:
    """Return the number in an untrusted column, within 32 bits; None if it is not one."""
    try:
        number = int(str(value)) if isinstance(value, str | bytes) else int(value)  # type: ignore[call-overload]
    except (ValueError, OverflowError, TypeError):
        return None
    return number if abs(number) < 2**31 else None


# Reading position in a jobs table, and the check that it is still the same table: the content of `Pulled.after`.


@dataclass(frozen=True, slots=True)
class TableState:
    """State of the complete table. A table that was lost, or restored from a copy, proves nothing about a row."""

    place: str
    tides: tuple[int, ...]
    ledger: str | None  # epoch of our ledger beside it
    witnesses: tuple[str, ...]  # ids of existing rows
    since: float = 0.0  # when another table was first seen in its place, Unix seconds; 0 for the first
    is_proof: bool = False  # a missing row was removed from this same table
    reads_ledger: bool = True  # if not, the ledger may not be read: its content is unknown

    @classmethod
    def now(
        cls,
        found: TableIdentity,
        ledger: str | None,
        known: Sequence[str],
        seen: Sequence[str],
        before: TableState | None,
        now: float,
        *,
        was_away: bool = False,
    ) -> TableState:
        """Return the table's state after a comparison with the one before.

        `known`: earlier witnesses that still exist. `seen`: rows that exist now. `was_away`: the table was missing
        meanwhile.
        """
        if before is None:
            return cls(found.place, found.tides, ledger, tuple(seen))
        is_other = (
            was_away
            or found.place != before.place
            or any(one < other for one, other in zip(found.tides, before.tides, strict=False))
            or (before.ledger is not None and ledger != before.ledger)
            # Even if it is empty: later failures in it are its own.
            or bool(not found.is_sure and before.ledger is None and before.witnesses and not known)
        )
        if is_other:
            return cls(found.place, found.tides, ledger, tuple(seen), since=now)
        is_proof = found.is_sure or before.ledger is not None or bool(known)
        # Some seen long ago, and some of today: short-lived rows are no witnesses.
        witnesses = tuple(dict.fromkeys([*known[:3], *seen]))[:6]
        return cls(found.place, found.tides, ledger, witnesses or before.witnesses, before.since, is_proof)

    def proves(self, at: float | None) -> bool:
        """Return whether a missing row that failed at `at` was removed by another's action."""
        return self.is_proof and not self.is_from_another_table(at)

    def is_from_another_table(self, at: float | None) -> bool:
        """Return whether the known facts of a row that failed at `at` belong to another table than this one."""
        return self.since > 0 and (at is None or at < self.since)


@dataclass(frozen=True, slots=True)
class Place:
    table_state: TableState | None = None
    at: Any = None  # latest `updated_at` read, in the table's form
    id: str | None = None  # last row read, within a reading
    since: Any = None  # by id: earlier changes are not read …
    next: Any = None  # … and the value for the next reading
    spent_s: float = 0.0  # on this reading …
    began: float = 0.0  # … which started then, Unix seconds
    stale: int = 0  # number of stale rows already read in their rotation

    @classmethod
    def read(cls, text: str) -> Place:
        """Parse a position; the start for an empty or unknown text."""
        try:
            position = json.loads(text)
            stand = position["stand"]
            return cls(
                TableState(
                    str(stand[0]),
                    tuple(int(n) for n in stand[1]),
                    stand[2],
                    tuple(str(one) for one in stand[3]),
                    float(stand[4]),
                ),
                position["at"],
                position["id"],
                position["since"],
                position["next"],
                float(position["spent_s"]),
                float(position["began"]),
                int(position.get("stale", 0)),
            )
        except (ValueError, KeyError, TypeError, IndexError):
            return cls()

    def text(self) -> str:
        stand = self.table_state
        state = (
            None
            if stand is None
            else [stand.place, stand.tides, stand.ledger, [w[:300] for w in stand.witnesses], stand.since]
        )
        return json.dumps(
            {
                "stand": state,
                "at": self.at,
                "id": self.id,
                "since": self.since,
                "next": self.next,
                "spent_s": self.spent_s,
                "began": self.began,
                "stale": self.stale,
            }
        )
