"""Up to where a jobs table was read, and whether it is still the table that was read: what `Pulled.after` says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.jobs_table.sql import Standing


@dataclass(frozen=True, slots=True)
class Stand:
    """What is known of the table as a whole. A table that was lost, or put back from a copy, proves nothing about a row."""

    place: str
    tides: tuple[int, ...]
    ledger: str | None  # the epoch of our ledger beside it
    witnesses: tuple[str, ...]  # ids of rows that are there
    since: float = (
        0.0  # when it was first seen to be another table than before, seconds since 1970; 0 while it is the first
    )
    is_proof: bool = False  # a row that is not there was taken out of this very table
    reads_ledger: bool = True  # else it may not be read: what it says of rows is not known

    @classmethod
    def now(
        cls,
        found: Standing,
        ledger: str | None,
        known: Sequence[str],
        seen: Sequence[str],
        before: Stand | None,
        now: float,
        *,
        was_away: bool = False,
    ) -> Stand:
        """`known`: those of the witnesses before that still stand; `seen`: rows that stand now; `was_away`: there was no table
        meanwhile.
        """
        if before is None:
            return cls(found.place, found.tides, ledger, tuple(seen))
        is_other = (
            was_away
            or found.place != before.place
            or any(one < other for one, other in zip(found.tides, before.tides, strict=False))
            or (before.ledger is not None and ledger != before.ledger)
            # Also where it is empty: what fails in it from now on is its own.
            or bool(not found.is_sure and before.ledger is None and before.witnesses and not known)
        )
        if is_other:
            return cls(found.place, found.tides, ledger, tuple(seen), since=now)
        is_proof = found.is_sure or before.ledger is not None or bool(known)
        # Some that were seen long ago, and some of today: who comes and goes is no witness.
        witnesses = tuple(dict.fromkeys([*known[:3], *seen]))[:6]
        return cls(found.place, found.tides, ledger, witnesses or before.witnesses, before.since, is_proof)

    def proves(self, at: float | None) -> bool:
        """Whether a row that failed at `at`, and is not there, was taken out by somebody."""
        return self.is_proof and not self.is_read_anew(at)

    def is_read_anew(self, at: float | None) -> bool:
        """Whether what is known of a row that failed at `at` is from another table than this one."""
        return self.since > 0 and (at is None or at < self.since)


@dataclass(frozen=True, slots=True)
class Place:
    stand: Stand | None = None
    at: Any = None  # the latest `updated_at` that was read, as the table writes it
    id: str | None = None  # the last row that was read, within a look
    since: Any = None  # by id: what changed before needs no look …
    next: Any = None  # … and of the next look
    spent_s: float = 0.0  # on this look …
    began: float = 0.0  # … which began then, seconds since 1970
    stale: int = 0  # how many rows were passed whose worker holds them for too long, in their rotation

    @classmethod
    def read(cls, text: str) -> Place:
        """From the beginning, where the text says nothing, or nothing that is understood."""
        try:
            said = json.loads(text)
            stand = said["stand"]
            return cls(
                Stand(
                    str(stand[0]),
                    tuple(int(n) for n in stand[1]),
                    stand[2],
                    tuple(str(one) for one in stand[3]),
                    float(stand[4]),
                ),
                said["at"],
                said["id"],
                said["since"],
                said["next"],
                float(said["spent_s"]),
                float(said["began"]),
                int(said.get("stale", 0)),
            )
        except (ValueError, KeyError, TypeError, IndexError):
            return cls()

    def text(self) -> str:
        stand = self.stand
        said = (
            None
            if stand is None
            else [stand.place, stand.tides, stand.ledger, [w[:300] for w in stand.witnesses], stand.since]
        )
        return json.dumps(
            {
                "stand": said,
                "at": self.at,
                "id": self.id,
                "since": self.since,
                "next": self.next,
                "spent_s": self.spent_s,
                "began": self.began,
                "stale": self.stale,
            }
        )
