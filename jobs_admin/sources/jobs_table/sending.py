"""Changes of rows in a jobs table: conditional updates in small batches, each in one transaction with its record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from jobs_admin.sources.base import OutgoingMessage, Ref, Rescheduled, SourceRefused
from jobs_admin.sources.jobs_table import rows as jobs_table_rows
from jobs_admin.sources.jobs_table import times
from jobs_admin.sources.jobs_table.ledger import Ledger
from jobs_admin.sources.jobs_table.names import Names
from jobs_admin.sources.jobs_table.reading import whole_number
from jobs_admin.sources.jobs_table.shape import Shape
from jobs_admin.sources.jobs_table.sql import Database, Run

T = TypeVar("T")

_WRITE_S = 0.02  # approximate duration of a transaction: on SQLite, workers wait meanwhile …
_REST, _SHORTEST_REST_S = 0.5, 0.003  # … and then have the lock to themselves for this share of it
_SAME_S = 0.002  # tolerance for a time converted through a float, and for tables with whole microseconds
_FIRST_PART, _SMALLEST_PART, _LARGEST_PART = 50, 5, 500


class Sender:
    def __init__(self, db: Database, names: Names, ledger: Ledger) -> None:
        self._db = db
        self._names = names
        self._ledger = ledger
        self._part = _FIRST_PART

    def send(self, shape: Shape, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        payloads = {outgoing.token: self._payload(shape, outgoing) for outgoing in messages}
        answers: dict[int, str] = {}

        def some(part: Sequence[OutgoingMessage]) -> None:
            answers.update(self._send(shape, replay, part, payloads))

        self._in_parts(messages, some)
        return answers

    def reschedule(self, shape: Shape, changes: Sequence[Rescheduled]) -> set[Ref]:
        done: set[Ref] = set()

        def some(part: Sequence[Rescheduled]) -> None:
            with self._db.changing() as run:
                moved = {change.job for change in part if self._move(run, shape, change)}
            done.update(moved)

        self._in_parts([change for change in changes if shape.is_id(change.job.job_id)], some)
        return done

    def remove(self, shape: Shape, jobs: Sequence[Ref]) -> set[Ref]:
        """Delete exactly the discarded rows: not one that failed later, nor another with the same id.

        Each is stored completely in the ledger, in the transaction that deletes it: `send` restores it.
        """
        done: set[Ref] = set()
        where = f"{shape.columns['id']} = {shape.p} AND {shape.status} = {shape.p} AND {shape.read_order} = {shape.p}"

        def some(part: Sequence[Ref]) -> None:
            # Checked first: no one waits for a transaction without effect.
            failed = self._failed(shape, part)
            known = [
                (ref, failed[ref.job_id]) for ref in part if _is_same(shape.seconds(failed.get(ref.job_id)), ref.at)
            ]
            if known:
                gone = set()
                with self._db.changing() as run:
                    for ref, at in known:
                        it = [ref.job_id, self._names.failed, at]
                        if (row := self._db.row_text(self._names.table, where, it)) is not None:
                            self._ledger.keep_row(run, ref.job_id, row, time.time())
                            run(f"DELETE FROM {shape.table} WHERE {where}", it)
                            gone.add(ref)
                done.update(gone)

        self._in_parts([job for job in jobs if shape.is_id(job.job_id)], some)
        return done

    def _failed(self, shape: Shape, jobs: Sequence[Ref]) -> dict[str, object]:
        """Return the dead rows, with `updated_at` in the compared form."""
        among = ", ".join([shape.p] * len(jobs))
        rows = self._db.read(
            f"SELECT {shape.identity}, {shape.read_order} FROM {shape.table} "
            f"WHERE {shape.columns['id']} IN ({among}) AND {shape.status} = {shape.p}",
            [*(job.job_id for job in jobs), self._names.failed],
        )
        return {str(job_id): at for job_id, at in rows}

    def _in_parts(self, them: Sequence[T], act: Callable[[Sequence[T]], None]) -> None:
        """Process in batches that are written within the time others may wait."""
        start = 0
        while start < len(them):
            part = them[start : start + self._part]
            began = time.monotonic()
            act(part)
            took_s = time.monotonic() - began
            start += len(part)
            if start < len(them) and self._db.has_one_writer:
                # Waiting writers poll for the lock: without a rest they would always find it taken.
                time.sleep(max(_SHORTEST_REST_S, min(took_s, 0.1) * _REST))
            fitting = int(len(part) * _WRITE_S / max(took_s, 1e-6))
            self._part = max(_SMALLEST_PART, min(_LARGEST_PART, fitting, self._part * 2))

    def _send(
        self, shape: Shape, replay: str, messages: Sequence[OutgoingMessage], payloads: Mapping[int, str | None]
    ) -> dict[int, str]:
        """Send in one transaction with the ledger: all or nothing."""
        now = time.time()
        answers = dict.fromkeys(self._ledger.withheld(replay, [outgoing.token for outgoing in messages]), "recalled")
        messages = [outgoing for outgoing in messages if outgoing.token not in answers]
        refused: dict[int, OutgoingMessage] = {}
        repeated: list[int] = []  # already in the ledger
        before = self._now(shape, messages)
        try:
            with self._db.changing() as run:
                before |= self._put_back(
                    run, shape, replay, [one for one in messages if one.was_removed and one.job_id not in before]
                )
                for outgoing in messages:
                    _, attempts, made_at = before.get(outgoing.job_id, ("", 0, None))
                    attempts = attempts if outgoing.retries is None else outgoing.retries
                    if not self._ledger.add(run, replay, outgoing, attempts, made_at, now):
                        repeated.append(outgoing.token)
                    elif self._bring_back(run, shape, outgoing, payloads[outgoing.token], now):
                        answers[outgoing.token] = "sent"
                    else:
                        refused[outgoing.token] = outgoing
                if refused:
                    raise _NotDead
        except _NotDead:
            raise SourceRefused(self._why_not(shape, list(refused.values())), tokens=refused.keys()) from None
        known = self._ledger.tokens(replay, repeated)
        return {token: "already" if token in known else "recalled" for token in repeated} | answers

    def _put_back(
        self, run: Run, shape: Shape, replay: str, messages: Sequence[OutgoingMessage]
    ) -> dict[str, tuple[str, int, float | None]]:
        """Restore rows deleted after a discard. Return them like `_now`."""
        sent = self._ledger.tokens(replay, [outgoing.token for outgoing in messages])
        back = [outgoing for outgoing in messages if outgoing.token not in sent]
        for outgoing in back:
            if (row := self._ledger.removed_row(outgoing.job_id)) is not None:
                try:
                    self._db.put_row(run, self._names.table, row)
                except SourceRefused as error:
                    raise SourceRefused(
                        f"Its row cannot be restored: {error} Nothing was sent.", outgoing.token
                    ) from error
        return self._now(shape, back)

    def _bring_back(self, run: Run, shape: Shape, outgoing: OutgoingMessage, payload: str | None, now: float) -> bool:
        p, columns = shape.p, shape.columns
        values = {"status": self._names.pending, **self._sent_values(shape, outgoing, now)}
        if payload is not None:
            values["payload"] = payload
        if outgoing.priority is not None and shape.has("priority"):
            values["priority"] = outgoing.priority
        sets = ", ".join(f"{shape.targets[one]} = {p}" for one in values)
        changed = run(
            f"UPDATE {shape.table} SET {sets} WHERE {columns['id']} = {p} AND {shape.status} = {p}",
            [*values.values(), outgoing.job_id, self._names.failed],
        )
        return changed == 1

    def _sent_values(self, shape: Shape, outgoing: OutgoingMessage, now: float) -> dict[str, object]:
        preset = self._names.preset
        if preset.sent is not None:
            return {**preset.sent, **(preset.fresh_start if outgoing.retries == 0 else {})}
        values: dict[str, object] = {} if outgoing.retries is None else {"attempts": outgoing.retries}
        values |= {one: shape.moment(math.floor(now), one) for one in ("scheduled_at", "updated_at") if shape.has(one)}
        return values | {one: None for one in ("locked_by", "locked_at") if shape.has(one)}

    def _payload(self, shape: Shape, outgoing: OutgoingMessage) -> str | None:
        """Return the new payload; None keeps the old bytes. Raises SourceRefused."""
        try:
            jobs_table_rows.unpack(outgoing.raw)
            if not shape.is_id(outgoing.job_id):
                raise SourceRefused(f"{outgoing.job_id!r} is no id of {self._names.table}.")
            if outgoing.args is None and outgoing.kwargs is None:
                return None
            return jobs_table_rows.edit_payload(outgoing.raw, outgoing.args, outgoing.kwargs)
        except SourceRefused as error:
            raise SourceRefused(f"{error} Nothing was sent.", outgoing.token) from error

    def _why_not(self, shape: Shape, messages: Sequence[OutgoingMessage]) -> str:
        there = self._now(shape, messages)
        states = [
            f"row {one.job_id} is {there[one.job_id][0]}"
            if one.job_id in there
            else f"row {one.job_id} does not exist any more"
            for one in messages[:3]
        ]
        more = f" (and {len(messages) - 3} more)" if len(messages) > 3 else ""
        return f"{self._names.table}: {', '.join(states)}{more}, so not {self._names.failed}: another process changed it. Nothing was sent."

    def _now(self, shape: Shape, jobs: Sequence[OutgoingMessage | Ref]) -> dict[str, tuple[str, int, float | None]]:
        """Return status, attempts and creation time of the existing rows."""
        ids = [job.job_id for job in jobs if shape.is_id(job.job_id)]
        if not ids:
            return {}
        among = ", ".join([shape.p] * len(ids))
        rows = self._db.read(
            f"SELECT {shape.identity}, CAST({shape.status} AS TEXT), {shape.columns['attempts']}, "
            f"{shape.selected('created_at')} FROM {shape.table} WHERE {shape.columns['id']} IN ({among})",
            ids,
        )
        return {
            str(job_id): (str(status), whole_number(attempts) or 0, times.read(times.number(made)))
            for job_id, status, attempts, made in rows
        }

    def _move(self, run: Run, shape: Shape, change: Rescheduled) -> bool:
        p, columns = shape.p, shape.columns
        values: dict[str, object] = {"updated_at": shape.moment(math.floor(time.time()), "updated_at")}
        if change.due_at is not None and shape.has("scheduled_at"):
            values["scheduled_at"] = shape.moment(change.due_at, "scheduled_at")
        if change.max_attempts is not None and shape.has("max_attempts"):
            values["max_attempts"] = change.max_attempts
        sets = ", ".join(f"{columns[one]} = {p}" for one in values)
        where = f"{columns['id']} = {p} AND {shape.status} = {p} AND {columns['attempts']} > 0"
        changed = run(
            f"UPDATE {shape.table} SET {sets} WHERE {where}", [*values.values(), change.job.job_id, self._names.pending]
        )
        return changed == 1


def _is_same(seconds: float | None, known: float | None) -> bool:
    """Return whether a row last changed at `seconds` is the one that failed at `known`."""
    return seconds is not None and known is not None and abs(seconds - known) < _SAME_S


class _NotDead(Exception):
    """A row of the batch cannot be sent: the transaction is rolled back."""
