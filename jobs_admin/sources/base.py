"""What every queue system must be able to answer and do: an adapter is a class with these methods, no base class.

An adapter knows nothing of Django, of tables, or of when to act: it reads a queue system, and it puts one batch of
messages where it is told. Screens ask `can`, never a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol


class SourceError(Exception):
    """A queue system did not do as asked. Nothing was changed."""


class SourceUnreachable(SourceError):
    """No connection, or no answer in time. The same call may succeed later."""


class SourceRefused(SourceError):
    """The queue system, or the message, does not allow this act. Trying again will not help.

    `token` names the letter of a batch that is to blame; None: the whole batch.
    """

    def __init__(self, message: str, token: int | None = None) -> None:
        super().__init__(message)
        self.token = token


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an adapter can do; what it cannot, the planner and the screens do without."""

    replay: bool = True
    atomic_send: bool = False  # publishing and recording are one step: a repeated token sends nothing
    edit: bool = False  # arguments can be replaced before sending
    outcomes: bool = False  # the end of a replayed job comes home
    recall: bool = False  # a sent job that still waits can be taken back
    redirect: bool = False  # a letter may go to another queue than its message came from
    same_id: bool = False  # a letter may keep the id that its message has
    attempts: bool = False  # a letter may say how many attempts count as made
    delay: bool = False
    priority: bool = False  # a letter may say its priority
    peek: bool = False
    remove: bool = False
    holds_dead: bool = False  # the system keeps dead letters itself (`source_dead`, reconcile)


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue now. None: the system cannot tell. Counts of jobs."""

    queue: str
    waiting: int | None = None
    active: int | None = None
    delayed: int | None = None
    source_dead: int | None = None
    by_priority: dict[str, int] = field(default_factory=dict)  # waiting, by the system's own priority


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to send again."""

    token: int  # the replay item's id: the same token is sent once
    raw: bytes  # the broker's message as captured
    queue: str  # where to send it
    job_id: str  # its new id, or the message's own where `can.same_id`
    lineage: dict[str, Any]  # what goes into the `redrive` header (core.envelope.Lineage.as_header)
    args: list[Any] | None = None  # replaces the arguments; None keeps them byte for byte
    kwargs: dict[str, Any] | None = None
    priority: int | None = None  # the system's own number; None keeps the message's
    retries: int | None = 0  # how many retries count as made: 0 is a fresh start; None keeps what the message says


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the system's settings that endangers jobs."""

    id: str
    severity: str  # info, warning, high
    text: str
    fix: str


class Source(Protocol):
    name: str
    can: Capabilities
    outcome_within_s: float  # a sent job without news for longer than this is uncertain

    def depths(self) -> list[Depth]:
        """Every known queue. Raises SourceUnreachable."""

    def workers(self) -> dict[str, set[str]] | None:
        """Who consumes each queue, guarded or not, by the names the workers go by; None where nobody can be asked.

        Only who answers within a second: a worker that is too busy to answer is not among them.
        """

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        """How many jobs wait in these queues now; None where the system cannot tell.

        One round trip, cheap enough for ten times a second. Raises SourceUnreachable.
        """

    def epoch(self, replay: str) -> str:
        """Names the ledger of one replay; another answer than before means that the ledger was lost meanwhile."""

    def send(self, replay: str, letters: Sequence[Letter]) -> dict[int, str]:
        """Put the letters on their queues, in order, each token once. Token -> "sent", "already" or "recalled".

        "recalled": the replay was recalled before; the letter was not sent, or was taken back, and never goes.
        All or nothing where `can.atomic_send`. Raises SourceRefused (with .token) for a letter that cannot be sent,
        SourceUnreachable when nothing is known of the batch: ask `was_sent`.
        """

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Those of the tokens that the ledger knows as sent; not those that were taken back since."""

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        """Take back what this replay sent to these queues and nobody has fetched, and let it send no more.

        Some milliseconds of it at each step, which tells the tokens; nothing before the first. All taken back so far are
        among them, also by earlier calls: may be broken off and called again. A job either ran or was taken back, never
        both; what a worker has fetched, or put back, is left to run. Only where `can.recall`, else SourceRefused. Raises
        SourceUnreachable: then some may be taken back, and the next call tells which.
        """

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments in a captured message, as they can be edited. Raises SourceRefused where they cannot be."""

    def headers(self, raw: bytes) -> dict[str, Any]:
        """The headers of a captured message, without those that repeat its arguments. Raises SourceRefused."""

    def is_chord_member(self, raw: bytes) -> bool:
        """Whether other jobs wait for the end of this one together with its like. Never raises; asked of every failure."""

    def expires_at(self, raw: bytes) -> datetime | None:
        """When the message says that it is of no more use; None where it does not. Never raises; asked of every failure."""

    def findings(self) -> list[Finding]:
        """Unsafe settings of the system, as far as it tells them."""

    def close(self) -> None: ...
