"""Ledger of sent jobs, in a table beside the jobs: written in the transaction that sends, so neither exists without
the other.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import uuid
from collections.abc import Sequence

from jobs_admin.core.envelope import Lineage
from jobs_admin.sources.base import OutgoingMessage, SourceRefused
from jobs_admin.sources.jobs_table.rows import SentRecord
from jobs_admin.sources.jobs_table.sql import Database, Run, name

_STORED_S = 90 * 86400  # jobs sent longer ago have ended and been reported
_MADE_AT = "row_made_at"  # stored beside the lineage
_EPOCH = ""  # replay of the entry that names the ledger
_WITHHELD = "-"  # not a table's name: place of a token that is never sent
_REMOVED = "removed"  # replay of rows deleted after a discard


class Ledger:
    def __init__(self, db: Database, table: str, of: str) -> None:
        """`of`: the jobs table; several may share a ledger."""
        self._db = db
        self._table = table
        self._of = of
        self._it = name(table, percent=db.p == "%s")

    def statement(self) -> str:
        """Return the statement that creates the ledger, for a role that may run it.

        Its index is part of the table: two processes that create it at once and each add an index would block each
        other's row.
        """
        return (
            f"CREATE TABLE IF NOT EXISTS {self._it} (replay VARCHAR(64) NOT NULL, token BIGINT NOT NULL, "
            "job_table VARCHAR(130) NOT NULL, job_id VARCHAR(255) NOT NULL, run INTEGER NOT NULL, attempts INTEGER NOT NULL, "
            "lineage TEXT NOT NULL, sent_at BIGINT NOT NULL, PRIMARY KEY (replay, token), "
            "UNIQUE (job_table, job_id, replay, token))"
        )

    def exists(self) -> bool:
        return bool(self._db.columns(self._table))

    def is_hidden(self) -> bool:
        """Return whether the ledger exists and may not be read."""
        return self.exists() and not self._db.may_read(self._table)

    def epoch(self) -> str | None:
        """Return the name of the ledger; None if there is none."""
        if not self.exists():
            return None
        rows = self._db.read(f"SELECT job_id FROM {self._it} WHERE replay = {self._db.p} AND token = 0", [_EPOCH])
        return str(rows[0][0]) if rows else None

    def ensure(self, now: float) -> str:
        """Return the name of the ledger. Creates it if needed."""
        for tries_left in (2, 1, 0):
            if (found := self.epoch()) is not None:
                return found
            try:
                self._make(now)
            except SourceRefused:  # two processes create it at once on PostgreSQL: one fails because the name is taken
                if not tries_left:
                    raise
        found = self.epoch()
        if found is None:
            raise SourceRefused(
                f"The ledger {self._table} is there and cannot be used: it has no name. Nothing was sent."
            )
        return found

    def _make(self, now: float) -> None:
        p = self._db.p
        # A role without the right to create tables may not use IF NOT EXISTS, even if the table exists.
        is_there = self.exists()
        with self._db.changing() as run:
            if not is_there:
                run(self.statement())
            run(
                f"INSERT INTO {self._it} VALUES ({p}, 0, '', {p}, 0, 0, '', {p}) ON CONFLICT DO NOTHING",
                [_EPOCH, uuid.uuid4().hex, int(now)],
            )

    def forget(self, now: float) -> None:
        """Delete some old entries, if permitted."""
        p = self._db.p
        old = f"SELECT replay, token FROM {self._it} WHERE sent_at < {p} AND replay <> {p} LIMIT 200"
        with contextlib.suppress(SourceRefused), self._db.changing() as run:
            run(f"DELETE FROM {self._it} WHERE (replay, token) IN ({old})", [int(now - _STORED_S), _EPOCH])

    def add(
        self, run: Run, replay: str, outgoing: OutgoingMessage, attempts: int, made_at: float | None, now: float
    ) -> bool:
        """Add an entry inside the transaction that sends. Return whether it is new.

        `made_at`: creation time of the row, by its own column; a later job with the same id has another.
        """
        p = ", ".join([self._db.p] * 8)
        lineage = Lineage.from_header(outgoing.lineage)
        run_of = lineage.run if lineage else 0
        lineage_json = json.dumps({**outgoing.lineage, _MADE_AT: made_at})
        values = [replay, outgoing.token, self._of, outgoing.job_id, run_of, attempts, lineage_json, int(now)]
        return run(f"INSERT INTO {self._it} VALUES ({p}) ON CONFLICT DO NOTHING", values) > 0

    def keep_row(self, run: Run, job_id: str, row: str, now: float) -> None:
        """Store a row that is deleted in the same transaction, in the form of `Database.row_text`."""
        p = ", ".join([self._db.p] * 8)
        values = [_REMOVED, secrets.randbits(62), self._removed_of, job_id, 0, 0, row, int(now)]
        run(f"INSERT INTO {self._it} VALUES ({p})", values)

    def removed_row(self, job_id: str) -> str | None:
        """Return the latest deleted row with this id; None if none is stored."""
        p = self._db.p
        rows = self._db.read(
            f"SELECT lineage FROM {self._it} WHERE job_table = {p} AND job_id = {p} AND replay = {p} "
            "ORDER BY sent_at DESC LIMIT 1",
            [self._removed_of, job_id, _REMOVED],
        )
        return str(rows[0][0]) if rows else None

    @property
    def _removed_of(self) -> str:
        return f"-{self._of}"  # not a table's name: none of these rows was sent

    def withhold(self, replay: str, tokens: Sequence[int], now: float) -> set[int]:
        """Reserve each token with a row, so that it cannot be added: a concurrent add ends first.

        Return those that were sent.
        """
        self.ensure(now)
        p = ", ".join([self._db.p] * 8)
        for start in range(0, len(tokens), 500):
            with self._db.changing() as run:
                for token in sorted(tokens[start : start + 500]):
                    run(
                        f"INSERT INTO {self._it} VALUES ({p}) ON CONFLICT DO NOTHING",
                        [replay, token, _WITHHELD, "", 0, 0, "", int(now)],
                    )
        return self.tokens(replay, tokens)

    def withheld(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._among(replay, tokens, _WITHHELD)

    def tokens(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that were sent."""
        return self._among(replay, tokens, self._of)

    def _among(self, replay: str, tokens: Sequence[int], of: str) -> set[int]:
        found: set[int] = set()
        for start in range(0, len(tokens), 500):
            some = tokens[start : start + 500]
            among = ", ".join([self._db.p] * len(some))
            statement = f"SELECT token FROM {self._it} WHERE replay = {self._db.p} AND token IN ({among}) AND job_table = {self._db.p}"
            found |= {int(row[0]) for row in self._db.read(statement, [replay, *some, of])}
        return found

    def latest(self, job_id: str) -> str:
        """Return an expression for the latest sending of a job, for `parse_sent`.

        Its parameter is the jobs table's name.

        Part of the statement that reads the row: a later query could see a send that the row does not show.
        """
        return (
            f"(SELECT CAST(sent.attempts AS TEXT) || ' ' || sent.lineage FROM {self._it} sent WHERE sent.job_table = {self._db.p} "
            f"AND sent.job_id = {job_id} ORDER BY sent.run DESC, sent.sent_at DESC LIMIT 1)"
        )

    def run(self, job_id: str) -> str:
        """Return an expression, with the same parameter, for the run that we sent last."""
        return f"(SELECT max(sent.run) FROM {self._it} sent WHERE sent.job_table = {self._db.p} AND sent.job_id = {job_id})"

    def was_sent(self, job_id: str) -> str:
        """Return an expression for whether we sent the job with the id of this expression."""
        return f"EXISTS (SELECT 1 FROM {self._it} sent WHERE sent.job_table = {self._db.p} AND sent.job_id = {job_id})"


def parse_sent(text: object) -> SentRecord | None:
    """Parse the result of `Ledger.latest`; None for a job that we never sent."""
    if text is None:
        return None
    attempts, _, lineage = str(text).partition(" ")
    try:
        fields = json.loads(lineage)
        made_at = fields.get(_MADE_AT)
        return SentRecord(Lineage.from_header(fields), int(attempts), None if made_at is None else float(made_at))
    except (ValueError, TypeError, AttributeError):
        return None
