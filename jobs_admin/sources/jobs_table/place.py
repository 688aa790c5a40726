"""Reading position in a jobs table, and the check that it is still the table that was read: the content of
`Pulled.after`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.jobs_table.sql import TableIdentity


@dataclass(frozen=True, slots=True)
class TableState:
    """State of the table as a whole. A table that was lost, or put back from a copy, proves nothing about a row."""

    place: str
    tides: tuple[int, ...]
    ledger: str | None  # the epoch of our ledger beside it
    witnesses: tuple[str, ...]  # ids of rows that are there
    since: float = 0.0  # when another table was first seen in its place, seconds since 1970; 0 while it is the first
    is_proof: bool = False  # a row that is not there was taken out of this very table
    reads_ledger: bool = True  # else it may not be read: its content is unknown

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
        """Compare the table with its state before.

        `known`: the witnesses before that are still there; `seen`: rows that are there now; `was_away`: there was no
        table meanwhile.
        """
        if before is None:
            return cls(found.place, found.tides, ledger, tuple(seen))
        is_other = (
            was_away
            or found.place != before.place
            or any(one < other for one, other in zip(found.tides, before.tides, strict=False))
            or (before.ledger is not None and ledger != before.ledger)
            # Also where it is empty: later failures in it are its own.
            or bool(not found.is_sure and before.ledger is None and before.witnesses and not known)
        )
        if is_other:
            return cls(found.place, found.tides, ledger, tuple(seen), since=now)
        is_proof = found.is_sure or before.ledger is not None or bool(known)
        # Some that were seen long ago, and some of today: rows that come and go are no witnesses.
        witnesses = tuple(dict.fromkeys([*known[:3], *seen]))[:6]
        return cls(found.place, found.tides, ledger, witnesses or before.witnesses, before.since, is_proof)

    def proves(self, at: float | None) -> bool:
        """Return whether a row that failed at `at`, and is not there, was taken out by someone."""
        return self.is_proof and not self.is_from_another_table(at)

    def is_from_another_table(self, at: float | None) -> bool:
        """Return whether the known facts of a row that failed at `at` are from another table than this one."""
        return self.since > 0 and (at is None or at < self.since)


@dataclass(frozen=True, slots=True)
class Place:
    table_state: TableState | None = None
    at: Any = None  # the latest `updated_at` that was read, as the table writes it
    id: str | None = None  # the last row that was read, within a reading
    since: Any = None  # by id: what changed before is not read …
    next: Any = None  # … and of the next reading
    spent_s: float = 0.0  # on this reading …
    began: float = 0.0  # … which began then, seconds since 1970
    stale: int = 0  # how many rows were passed whose worker holds them for too long, in their rotation

    @classmethod
    def read(cls, text: str) -> Place:
        """Parse a position; the beginning for an empty text, or one that is not understood."""
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
