"""Interface of every queue system: an adapter is a class with these methods, no base class.

An adapter knows nothing of Django, of tables, or of when to act: it reads a queue system, and it puts one batch of
messages where the caller says. Screens check `can`, never a name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.lint.options import FoundOptions
from jobs_admin.core.priority import REDIS, Scale

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)


class SourceError(Exception):
    """A queue system did not do as asked. Nothing was changed."""


class SourceUnreachable(SourceError):
    """No connection, or no answer in time. The same call may succeed later."""


class SourceRefused(SourceError):
    """The queue system, or the message, does not allow this act. Trying again will not help.

    `tokens` are the messages of a batch that are to blame, and `token` one of them; None: the entire batch.
    """

    def __init__(self, message: str, token: int | None = None, tokens: Collection[int] | None = None) -> None:
        super().__init__(message)
        self.tokens = frozenset(tokens) if tokens is not None else None if token is None else frozenset({token})
        self.token = min(self.tokens, default=None) if self.tokens is not None else None

    def blames(self, token: int) -> bool:
        return self.tokens is None or token in self.tokens


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of an adapter; the planner and the screens do without the others."""

    replay: bool = True
    atomic_send: bool = False  # publishing and recording are one step: nothing is ever in doubt
    edit: bool = False  # arguments can be replaced before sending
    outcomes: bool = False  # the end of a replayed job is reported
    recall: bool = False  # a sent job that still waits can be taken back
    redirect: bool = False  # a message may go to another queue than it came from
    same_id: bool = False  # a message may keep its id
    attempts: bool = False  # a message may say how many attempts count as made
    delay: bool = False
    priority: bool = False  # a message may say its priority
    peek: bool = False
    remove: bool = False  # dead letters can be taken out of the system
    holds_dead: bool = False  # the system keeps dead letters itself: they are pulled (`PulledSource`)
    follows: bool = False  # failures are seen in the system's own events, without messages: they are pulled, too
    gives_back: bool = False  # what a dead worker had fetched can be put back on its queue (`GivesBack`)
    in_place: bool = False  # a job that is sent goes on under the id that it has: each run has the same
    reschedule: bool = False  # when a waiting retry is due, and how many attempts it may have, can be changed
    options: bool = False  # each job says itself how it is retried, and that can be read (`OptionsSource`)


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue now. None: the system does not report it. Counts of jobs."""

    queue: str
    waiting: int | None = None
    active: int | None = None
    delayed: int | None = None
    source_dead: int | None = None
    by_priority: dict[str, int] = field(default_factory=dict)  # waiting, by the system's own priority


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send again."""

    token: int  # the replay item's id: the same token is sent once
    raw: bytes  # the broker's message as captured
    queue: str  # where to send it
    job_id: str  # its new id, or the message's own where `can.same_id`
    lineage: dict[str, Any]  # the `redrive` header (core.envelope.Lineage); its `sent_as` is `job_id`
    args: list[Any] | None = None  # replaces the arguments; None keeps them byte for byte
    kwargs: dict[str, Any] | None = None
    priority: int | None = None  # the system's own number; None keeps the message's
    retries: int | None = 0  # how many retries count as made: 0 is a fresh start; None keeps what the message says
    was_removed: bool = False  # `remove` took its job out: its absence is no other's act, and it is put back


# The id of a finding that forbids all changes in the system: an unknown version, a missing right.
READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting of the system that endangers jobs; with the id READ_ONLY, the reason why nothing is sent to it."""

    id: str
    severity: str  # info, warning, high
    text: str
    fix: str


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of a configured source, as its adapter takes them."""

    name: str
    url: str
    queues: Sequence[str] = ()  # empty: all that can be discovered
    options: Mapping[str, Any] = field(default_factory=dict)
    store_prefix: str = keys.PREFIX
    store: Callable[[], redis.Redis] | None = None  # for systems that keep no ledger: without it they send nothing


@dataclass(frozen=True, slots=True)
class System:
    """A queue system: the `SYSTEM` of its package, listed in `jobs_admin/sources/__init__.py`."""

    label: str  # on screens
    open: Callable[[SourceSettings], Source]  # dials nothing; raises SourceRefused
    priorities: Callable[[str], Scale] = lambda url: REDIS  # by the source's URL
    # Celery: our guard runs in its workers, lets their retries wait in a Redis, and names its workers to `doctor`.
    is_guarded: bool = False
    is_for_tests: bool = False


class Source(Protocol):
    name: str
    can: Capabilities
    outcome_within_s: float  # a sent job without news for longer than this is uncertain

    def depths(self) -> list[Depth]:
        """Every known queue. Raises SourceUnreachable."""

    def workers(self) -> dict[str, set[str]] | None:
        """Consumers of each queue, guarded or not, by their workers' names; None where the system cannot be asked.

        Only those that answer within a second: a worker that is too busy to answer is not among them.
        """

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Number of waiting jobs in each of these queues; None where the system does not know.

        One round trip, cheap enough for ten times a second. Raises SourceUnreachable.
        """

    def epoch(self, replay: str) -> str:
        """Return the name of one replay's ledger; another name than before means that the ledger was lost meanwhile."""

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """Put the messages on their queues, in order, each token once. Token -> "sent", "already" or "recalled".

        "recalled": the replay was recalled, or the token withheld, before; the message was not sent, or was taken back, and is never sent.
        All or nothing where `can.atomic_send`. Raises SourceRefused (with .tokens) for messages that cannot be sent, and
        were not; the others may have been, where it is not atomic: send them again, and those are "already" there.
        Raises SourceUnreachable when the outcome of the batch is unknown: check `was_sent` and `in_doubt`.
        """

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Return the tokens that the ledger has as sent, without those that were taken back since."""

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Return the tokens whose sending was begun and whose outcome is unknown. They are never sent again.

        Empty where `can.atomic_send`. One that is being sent by another process at this moment is among them.
        """

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Forbid sending these tokens, also by a sender that is about to. Return those that were sent before.

        `send` answers "recalled" for the others. Those in doubt stay in doubt. Raises SourceUnreachable; may be
        repeated.
        """

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        """Take back what this replay sent to these queues and no worker has fetched, and let it send no more.

        Works some milliseconds at each step, which yields the tokens; nothing before the first. All taken back so far
        are among them, also by earlier calls: may be broken off and called again. A job either ran or was taken back,
        never both; what a worker has fetched, or put back, is left to run. Only where `can.recall`, else SourceRefused.
        Raises SourceUnreachable: then some may be taken back, and the next call returns which.
        """

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments in a captured message, as they can be edited. Raises SourceRefused where they cannot be."""

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Check that the job of a captured message can have these arguments instead.

        Raises SourceRefused where it cannot.
        """

    def headers(self, raw: bytes) -> dict[str, Any]:
        """The headers of a captured message, without those that repeat its arguments. Raises SourceRefused."""

    def is_chord_member(self, raw: bytes) -> bool:
        """Return whether other jobs wait for this one and its siblings to end. Never raises; called for every failure."""

    def expires_at(self, raw: bytes) -> datetime | None:
        """Time after which the message is of no use; None where it has none. Never raises; called for every failure."""

    def findings(self) -> list[Finding]:
        """Unsafe settings of the system, as far as it reveals them."""

    def close(self) -> None: ...


class GivesBack(Protocol):
    """A broker that keeps what a dead worker had fetched until a time is over (`can.gives_back`)."""

    def fetched_at(self, tags: Sequence[str]) -> dict[str, float]:
        """Time when each of these deliveries was fetched (s since 1970), without those that were acknowledged or put
        back."""

    def give_back(self, tags: Sequence[str]) -> int:
        """Put these deliveries back at the head of their queues now, each once, whoever else does so too.

        Return their number.
        """


@dataclass(frozen=True, slots=True)
class Ref:
    """A job of a system that holds dead letters."""

    queue: str  # of run 1, as in its reports
    job_id: str  # in its current run
    # Known facts, where they are given; they name no job.
    state: str = field(default="", compare=False)  # of models.FailureState: `dead`, `retrying`, `replaying` …
    at: float | None = field(default=None, compare=False)  # when its latest attempt ended, seconds since 1970
    was_removed: bool = field(default=False, compare=False)  # `remove` was called for it: that alone is not `gone`
    made_at: float | None = field(default=None, compare=False)  # when the job of run 1 was made, by its maker's clock


@dataclass(frozen=True, slots=True)
class Unread:
    """A job of which no report could be made: a defect of the adapter. It is set aside, and reading goes on."""

    queue: str
    job_id: str
    raw: bytes  # what was read of it
    why: str

    @classmethod
    def from_error(cls, queue: str, job_id: str, raw: bytes, error: Exception) -> Unread:
        log.error("Job %s of queue %s cannot be read.", job_id, queue, exc_info=error)
        return cls(queue, job_id, raw, f"job {job_id} of queue {queue} cannot be read: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Pulled:
    """Reports read from a system that holds dead letters, in order."""

    reports: list[Envelope]  # attempts that ended: dead, waiting for a retry, or, of what we sent, succeeded
    after: (
        str  # where the next call goes on, once these are filed; at most 4,000 characters, which only the adapter reads
    )
    is_more: bool = False  # there may be more to read at once
    receipt: Any = None  # for `confirm_filed`
    # (queue, minute since 1970) -> jobs that succeeded since the call before, as far as the system counts; none of them twice.
    ran: Mapping[tuple[str, int], int] = field(default_factory=dict)
    unread: Sequence[Unread] = ()
    failing: Mapping[str, str] = field(default_factory=dict)  # queues that cannot be read, and why; the others were


@dataclass(frozen=True, slots=True)
class JobChanges:
    """Changes of the requested jobs. A job that is unchanged, or of which nothing is certain, is not among them."""

    reports: list[Envelope] = field(
        default_factory=list
    )  # attempts that ended, of those that are dead, wait or succeeded
    gone: dict[Ref, str] = field(default_factory=dict)  # someone else acted: the evidence, a sentence
    due: dict[Ref, float] = field(default_factory=dict)  # of those that wait for a retry: when, seconds since 1970


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """New timing for a waiting retry. None keeps what the system has."""

    job: Ref
    due_at: float | None = None  # seconds since 1970
    max_attempts: int | None = None


class PulledSource(Source, Protocol):
    """A system that keeps dead letters itself (`can.holds_dead`).

    Read by `pulling.py`: by one process at a time, and by no other thread meanwhile, except for the methods of
    `Source`.
    """

    every_s: float  # pause after a reading that found nothing

    def dead_letters(self, after: str) -> Pulled:
        """Attempts that ended since the place `after` ("" is the beginning: all dead letters there are), some hundred
        at most.

        Reports may come again. A report whose job was sent by us carries the lineage that it was sent with; successes
        are reported only of those. Raises SourceUnreachable; SourceRefused where the system is not what it should be.
        """

    def confirm_filed(self, pulled: Pulled) -> None:
        """Let go of what was only kept for these reports: they are in our tables for good. Raises as `dead_letters`."""

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        """Return the changes of jobs that are dead, wait for a retry or were sent by us: at most 500.

        Raises as `dead_letters`.

        `gone` needs evidence that someone acted: what a system has lost, or has dropped by its own rules, is not gone.
        """

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Take these out of the system where they are still dead, and return those that were. Only where `can.remove`.

        Only what `send` can put back from its message, so that an undone discard loses nothing; the others stay.
        """

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        """Change the timing of waiting retries; return those that still waited. Only where `can.reschedule`."""


class OptionsSource(Source, Protocol):
    """A system whose jobs carry how they are retried (`can.options`)."""

    def found_options(self) -> FoundOptions:
        """Each distinct set of retry options, quoted, of a bounded number of jobs: called once a minute.

        Raises SourceUnreachable.
        """
