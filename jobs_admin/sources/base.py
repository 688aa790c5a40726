"""Interface of the adapters to queue systems: a class with these methods, no base class.

An adapter knows nothing of Django, tables, or the time to act: it reads a queue system, and sends one batch of messages
to the queues that the caller names. Screens check `can`, never a name.
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
    """A queue system did not carry out a request. Nothing was changed."""


class SourceUnreachable(SourceError):
    """No connection, or no answer in time. The same call may succeed later."""


class SourceRefused(SourceError):
    """The queue system, or the message, does not allow this action. Trying again will not help.

    `tokens`: the messages of a batch that caused it, and `token` one of them; None: the entire batch.
    """

    def __init__(self, message: str, token: int | None = None, tokens: Collection[int] | None = None) -> None:
        super().__init__(message)
        self.tokens = frozenset(tokens) if tokens is not None else None if token is None else frozenset({token})
        self.token = min(self.tokens, default=None) if self.tokens is not None else None

    def blames(self, token: int) -> bool:
        return self.tokens is None or token in self.tokens


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of an adapter; planner and screens work without the others."""

    replay: bool = True
    atomic_send: bool = False  # sending and recording are one step: nothing is ever in doubt
    edit: bool = False  # arguments can be replaced before sending
    outcomes: bool = False  # the end of a replayed job is reported
    recall: bool = False  # a sent job that still waits can be recalled
    redirect: bool = False  # a message may be sent to another queue than its own
    same_id: bool = False  # a message may keep its id
    attempts: bool = False  # a message can state the number of attempts made
    delay: bool = False
    priority: bool = False  # a message can have a priority
    peek: bool = False
    remove: bool = False  # dead letters can be removed from the system
    holds_dead: bool = False  # the system itself stores dead letters: they are pulled (`PulledSource`)
    follows: bool = False  # failures are read from the system's own events, without messages: also pulled
    gives_back: bool = False  # jobs that a dead worker had fetched can be returned to their queue (`GivesBack`)
    in_place: bool = False  # a sent job continues under its id: all runs have the same
    reschedule: bool = False  # due time and maximum attempts of a waiting retry can be changed
    options: bool = False  # each job contains its retry options, and they can be read (`OptionsSource`)


@dataclass(frozen=True, slots=True)
class Depth:
    """Current depth of a queue, in jobs. None: not reported by the system."""

    queue: str
    waiting: int | None = None
    active: int | None = None
    delayed: int | None = None
    source_dead: int | None = None
    by_priority: dict[str, int] = field(default_factory=dict)  # waiting jobs, by the system's own priority


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Message to send again."""

    token: int  # id of the replay item: each token is sent once
    raw: bytes  # broker's message as captured
    queue: str  # target queue
    job_id: str  # its new id, or the message's own if `can.same_id`
    lineage: dict[str, Any]  # the `redrive` header (core.envelope.Lineage); its `sent_as` is `job_id`
    args: list[Any] | None = None  # replaces the arguments; None keeps their bytes
    kwargs: dict[str, Any] | None = None
    priority: int | None = None  # system's own number; None keeps the message's
    retries: int | None = 0  # number of retries counted as made: 0 starts again; None keeps the message's
    was_removed: bool = False  # `remove` took the job out: its absence is not another's action, and it is put back


# Id of a finding that forbids all changes in the system: unknown version, missing permission.
READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting of the system that endangers jobs. With the id READ_ONLY: why nothing is sent to it."""

    id: str
    severity: str  # info, warning, high
    text: str
    fix: str


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of a configured source, for its adapter."""

    name: str
    url: str
    queues: Sequence[str] = ()  # empty: all that can be discovered
    options: Mapping[str, Any] = field(default_factory=dict)
    store_prefix: str = keys.PREFIX
    store: Callable[[], redis.Redis] | None = None  # for systems without their own ledger: without it they send nothing


def refuse_unknown_options(name: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise SourceRefused for an option that is not among `known`."""
    if unknown := options.keys() - set(known):
        listed = ", ".join(sorted({*known, "queues"}))
        raise SourceRefused(f"Source {name}: unknown option {min(unknown)!r}; known: {listed}.")


@dataclass(frozen=True, slots=True)
class System:
    """A queue system: the `SYSTEM` of its package, listed in `jobs_admin/sources/__init__.py`."""

    label: str  # for screens
    open: Callable[[SourceSettings], Source]  # opens no connection; raises SourceRefused
    priorities: Callable[[str], Scale] = lambda url: REDIS  # by the source's URL
    # Celery: our guard runs in its workers, stores their delayed jobs in a Redis, and reports its workers to `doctor`.
    is_guarded: bool = False
    is_for_tests: bool = False


class Source(Protocol):
    name: str
    can: Capabilities
    outcome_within_s: float  # a sent job without an outcome after this time is uncertain

    def depths(self) -> list[Depth]:
        """Return the depths of all known queues. Raises SourceUnreachable."""

    def workers(self) -> dict[str, set[str]] | None:
        """Return the consumers of each queue, guarded or not, by worker name; None if the system has no such query.

        Only workers that answer within a second: busy ones may be missing.
        """

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Return the number of waiting jobs in each of these queues; None if unknown.

        One round trip, cheap enough for ten calls per second. Raises SourceUnreachable.
        """

    def epoch(self, replay: str) -> str:
        """Return the name of one replay's ledger. A changed name means that the ledger was lost meanwhile."""

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """Send the messages to their queues, in order, each token once.

        Return token -> "sent", "already" or "recalled".

        "recalled": the replay was recalled, or the token withheld, before; the message was not sent, or was taken back,
        and never will be sent. All or nothing if `can.atomic_send`. Raises SourceRefused (with .tokens) for messages
        that cannot be sent and were not; without atomic sending, others may have been: send them again, and those are
        "already" there. Raises SourceUnreachable if the outcome of the batch is unknown: check `was_sent` and
        `in_doubt`.
        """

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Return the tokens recorded as sent, without those recalled since."""

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Return the tokens whose sending was started with an unknown outcome. They are never sent again.

        Empty if `can.atomic_send`. Includes a token that another process is sending at this moment.
        """

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Forbid sending these tokens, even for a sender about to. Return those that were sent before.

        `send` answers "recalled" for the others. Those in doubt stay in doubt. Raises SourceUnreachable; may be
        repeated.
        """

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        """Recall this replay's jobs in these queues that no worker has fetched, and stop its sending.

        Each step takes some milliseconds and yields the recalled tokens, including those of earlier calls; nothing
        happens before the first. May be interrupted and called again. A job either ran or was recalled, never both;
        jobs that a worker has fetched, or returned, will run. Only if `can.recall`, else SourceRefused. Raises
        SourceUnreachable: then some may be recalled, and the next call yields them.
        """

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the editable arguments of a captured message. Raises SourceRefused if they cannot be edited."""

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Check that the job of a captured message can have these arguments instead.

        Raises SourceRefused if it cannot.
        """

    def headers(self, raw: bytes) -> dict[str, Any]:
        """Return the headers of a captured message, without those that repeat its arguments. Raises SourceRefused."""

    def is_chord_member(self, raw: bytes) -> bool:
        """Return whether other jobs wait for this one and its siblings to end.

        Never raises; called for every failure.
        """

    def expires_at(self, raw: bytes) -> datetime | None:
        """Return the expiry time of the message; None without one. Never raises; called for every failure."""

    def findings(self) -> list[Finding]:
        """Return unsafe settings of the system, as far as it reveals them."""

    def close(self) -> None: ...


class GivesBack(Protocol):
    """Broker that holds a dead worker's fetched jobs until a timeout (`can.gives_back`)."""

    def fetched_at(self, tags: Sequence[str]) -> dict[str, float]:
        """Return the fetch time of these deliveries (Unix seconds), without those acknowledged or returned."""

    def give_back(self, tags: Sequence[str]) -> int:
        """Return these deliveries to the head of their queues now, each once, even with concurrent callers.

        Return their number.
        """


@dataclass(frozen=True, slots=True)
class Ref:
    """Job of a system that stores dead letters."""

    queue: str  # of run 1, as in its reports
    job_id: str  # in its current run
    # Known facts, if given; not part of its identity.
    state: str = field(default="", compare=False)  # of models.FailureState: `dead`, `retrying`, `replaying` …
    at: float | None = field(default=None, compare=False)  # end of its latest attempt, Unix seconds
    # `remove` was called for it: its absence alone does not mean `gone`
    was_removed: bool = field(default=False, compare=False)
    made_at: float | None = field(default=None, compare=False)  # creation time of run 1's job, by its producer's clock


@dataclass(frozen=True, slots=True)
class Unread:
    """A job that could not be reported: a defect of the adapter. It is set aside, and reading continues."""

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
    """Reports read from a system that stores dead letters, in order."""

    reports: list[Envelope]  # attempts that ended: dead, waiting for a retry, or succeeded if sent by us
    after: str  # cursor for the next call once these are filed; at most 4,000 characters, only read by the adapter
    is_more: bool = False  # there may be more to read at once
    receipt: Any = None  # for `confirm_filed`
    # (queue, minute since 1970) -> jobs that succeeded since the previous call, as far as the system counts them; none
    # twice.
    ran: Mapping[tuple[str, int], int] = field(default_factory=dict)
    unread: Sequence[Unread] = ()
    # queue -> why it cannot be read; the other queues were read
    failing: Mapping[str, str] = field(default_factory=dict)
    is_divisible: bool = False  # it may be confirmed in part (`DivisibleSource`)


@dataclass(frozen=True, slots=True)
class JobChanges:
    """Changes of the requested jobs. Unchanged and uncertain jobs are not included."""

    reports: list[Envelope] = field(
        default_factory=list
    )  # attempts that ended, of jobs that are dead, waiting or succeeded
    gone: dict[Ref, str] = field(default_factory=dict)  # job -> evidence of another's action, as a sentence
    due: dict[Ref, float] = field(default_factory=dict)  # waiting retry -> due time, Unix seconds


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """New timing for a waiting retry. None keeps a value."""

    job: Ref
    due_at: float | None = None  # Unix seconds
    max_attempts: int | None = None


class PulledSource(Source, Protocol):
    """System that itself stores dead letters (`can.holds_dead`).

    Read by `pulling.py` in one process and thread at a time, except for the methods of `Source`.
    """

    every_s: float  # pause after a reading without results

    def dead_letters(self, after: str) -> Pulled:
        """Return attempts that ended after the cursor `after` ("": from the beginning, all dead letters), some hundred
        at most.

        Reports may be repeated. A report of a job sent by us has the lineage it was sent with; successes are only
        reported for those. Raises SourceUnreachable; SourceRefused if the system is not the expected one.
        """

    def confirm_filed(self, pulled: Pulled) -> None:
        """Release what was stored only for these reports: they are in our tables. Raises like `dead_letters`."""

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        """Return the changes of at most 500 jobs that are dead, wait for a retry or were sent by us.

        Raises like `dead_letters`.

        `gone` requires evidence of another's action: data that a system lost, or dropped by its own rules, is not gone.
        """

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Remove these jobs from the system if they are still dead. Return those removed. Only if `can.remove`.

        Only jobs that `send` can restore from their message, so that undoing a discard loses nothing; the others stay.
        """

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        """Change the timing of waiting retries. Return those that still waited. Only if `can.reschedule`."""


class DivisibleSource(PulledSource, Protocol):
    """System whose dead letters are confirmed one by one (`Pulled.is_divisible`): one that cannot be stored stops no
    other.

    In other systems, a page with one such report is repeated as a whole.
    """

    def confirm_in_part(self, pulled: Pulled, left: Collection[int]) -> None:
        """Confirm all but the reports at these positions (of `reports`, then `unread`), for which there is no room.

        They stay in the system, are returned again later, not in a tight loop, and are in `Pulled.failing` meanwhile.
        Raises like `dead_letters`.
        """


# In `Pulled.failing`, with a number.
NO_ROOM = "Dead letters left here: {:,}. They cannot be filed, and no more unfiled reports are stored."


class OptionsSource(Source, Protocol):
    """System whose jobs contain their retry options (`can.options`)."""

    def found_options(self) -> FoundOptions:
        """Return each distinct set of retry options, quoted, of a bounded number of jobs. Called once a minute.

        Raises SourceUnreachable.
        """
