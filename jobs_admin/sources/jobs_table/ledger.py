"""What we sent, in a table beside the jobs: written in the transaction that sends, so that neither is there without the other."""

from __future__ import annotations

import contextlib
import json
import secrets
import uuid
from collections.abc import Sequence

from jobs_admin.core.envelope import Lineage
from jobs_admin.sources.base import OutgoingMessage, SourceRefused
from jobs_admin.sources.jobs_table.rows import Sent
from jobs_admin.sources.jobs_table.sql import Database, Run, name

_KEPT_S = 90 * 86400  # what was sent longer ago has ended, and been told
_MADE_AT = "row_made_at"  # kept beside the lineage
_EPOCH = ""  # the replay under whose name the ledger says what it is
_WITHHELD = "-"  # no table's name: the place of a token that never goes
_REMOVED = "removed"  # the replay under whose name rows are kept that were deleted after a discard


class Ledger:
    def __init__(self, db: Database, table: str, of: str) -> None:
        """`of` is the jobs table: several may share a ledger."""
        self._db = db
        self._table = table
        self._of = of
        self._it = name(table, percent=db.p == "%s")

    def statement(self) -> str:
        """What makes it, for somebody who may.

        Its index is a part of the table: two that make it at once and each add one would hold the table against each other's row.
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
        """Whether it is there and may not be read."""
        return self.exists() and not self._db.may_read(self._table)

    def epoch(self) -> str | None:
        """What names it; None where there is none."""
        if not self.exists():
            return None
        rows = self._db.read(f"SELECT job_id FROM {self._it} WHERE replay = {self._db.p} AND token = 0", [_EPOCH])
        return str(rows[0][0]) if rows else None

    def made(self, now: float) -> str:
        """What names it; it is made where it is not there."""
        for tries_left in (2, 1, 0):
            if (found := self.epoch()) is not None:
                return found
            try:
                self._make(now)
            except SourceRefused:  # two that make it at once on PostgreSQL: one of them is told that its name is taken
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
        # Who may not make tables may not say "if it is not there" either, though somebody else made it for them.
        is_there = self.exists()
        with self._db.changing() as run:
            if not is_there:
                run(self.statement())
            run(
                f"INSERT INTO {self._it} VALUES ({p}, 0, '', {p}, 0, 0, '', {p}) ON CONFLICT DO NOTHING",
                [_EPOCH, uuid.uuid4().hex, int(now)],
            )

    def forget(self, now: float) -> None:
        """Take out some of what is long over; without the right to, it stays."""
        p = self._db.p
        old = f"SELECT replay, token FROM {self._it} WHERE sent_at < {p} AND replay <> {p} LIMIT 200"
        with contextlib.suppress(SourceRefused), self._db.changing() as run:
            run(f"DELETE FROM {self._it} WHERE (replay, token) IN ({old})", [int(now - _KEPT_S), _EPOCH])

    def add(
        self, run: Run, replay: str, letter: OutgoingMessage, attempts: int, made_at: float | None, now: float
    ) -> bool:
        """Whether it was not there before. Inside the transaction that sends.

        `made_at`: when the row says that it was made; another job that is given its id later says otherwise.
        """
        p = ", ".join([self._db.p] * 8)
        lineage = Lineage.from_header(letter.lineage)
        run_of = lineage.run if lineage else 0
        said = json.dumps({**letter.lineage, _MADE_AT: made_at})
        values = [replay, letter.token, self._of, letter.job_id, run_of, attempts, said, int(now)]
        return run(f"INSERT INTO {self._it} VALUES ({p}) ON CONFLICT DO NOTHING", values) > 0

    def keep_row(self, run: Run, job_id: str, row: str, now: float) -> None:
        """Keep a row that is deleted in the same transaction, as `Database.row_text` has it."""
        p = ", ".join([self._db.p] * 8)
        values = [_REMOVED, secrets.randbits(62), self._kept_of, job_id, 0, 0, row, int(now)]
        run(f"INSERT INTO {self._it} VALUES ({p})", values)

    def kept_row(self, job_id: str) -> str | None:
        """The row of this id that was deleted last; None where none is kept."""
        p = self._db.p
        rows = self._db.read(
            f"SELECT lineage FROM {self._it} WHERE job_table = {p} AND job_id = {p} AND replay = {p} "
            "ORDER BY sent_at DESC LIMIT 1",
            [self._kept_of, job_id, _REMOVED],
        )
        return str(rows[0][0]) if rows else None

    @property
    def _kept_of(self) -> str:
        return f"-{self._of}"  # no table's name: none of these rows is one that was sent

    def withhold(self, replay: str, tokens: Sequence[int], now: float) -> set[int]:
        """Put a row in the place of each, so that none can be added: who is adding one ends first. Return those that were sent."""
        self.made(now)
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
        """Those that were sent."""
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
        """An expression, with the jobs table's name as its parameter: how a job was sent last, for `sent`.

        Part of the statement that reads the row: asked for afterwards it could tell of a send that the row knows nothing of.
        """
        return (
            f"(SELECT CAST(sent.attempts AS TEXT) || ' ' || sent.lineage FROM {self._it} sent WHERE sent.job_table = {self._db.p} "
            f"AND sent.job_id = {job_id} ORDER BY sent.run DESC, sent.sent_at DESC LIMIT 1)"
        )

    def run(self, job_id: str) -> str:
        """An expression, with the same parameter: the run that we sent last."""
        return f"(SELECT max(sent.run) FROM {self._it} sent WHERE sent.job_table = {self._db.p} AND sent.job_id = {job_id})"

    def was_sent(self, job_id: str) -> str:
        """An expression: whether we sent the job whose id this expression is."""
        return f"EXISTS (SELECT 1 FROM {self._it} sent WHERE sent.job_table = {self._db.p} AND sent.job_id = {job_id})"


def sent(text: object) -> Sent | None:
    """What `Ledger.latest` found; None for a job that we never sent."""
    if text is None:
        return None
    attempts, _, lineage = str(text).partition(" ")
    try:
        said = json.loads(lineage)
        made_at = said.get(_MADE_AT)
        return Sent(Lineage.from_header(said), int(attempts), None if made_at is None else float(made_at))
    except (ValueError, TypeError, AttributeError):
        return None
