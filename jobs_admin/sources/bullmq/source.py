"""BullMQ 4, 5 and 6 on Redis: failed jobs are read in place, and retried there by BullMQ's own scripts.

Only queues with a known major version are written, in one step with our ledger. A job that Redis has trimmed meanwhile
is restored from our copy, under its own id.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs_admin.core.lint.options import FoundOptions
from jobs_admin.sources.base import (
    Capabilities,
    Depth,
    Finding,
    JobChanges,
    OutgoingMessage,
    Pulled,
    Ref,
    Rescheduled,
    SourceRefused,
    SourceSettings,
    refuse_unknown_options,
)
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq.dead_letters import Configured, DeadLetterQueues, copies_field, parse_configured
from jobs_admin.sources.bullmq.findings import collect_findings
from jobs_admin.sources.bullmq.job_changes import find_changes
from jobs_admin.sources.bullmq.job_hash import Message
from jobs_admin.sources.bullmq.jobs import Jobs
from jobs_admin.sources.bullmq.options import OptionsSurvey
from jobs_admin.sources.bullmq.reading import Reading
from jobs_admin.sources.bullmq.wire import MAJORS, Target, Wire, find_workers, number
from jobs_admin.sources.ledger import ANSWERS, LEDGER_S, SENT_MARK, AtomicLedger
from jobs_admin.sources.one_redis import (
    JobRefusals,
    batches,
    parts_by_queue,
    seconds_option,
    tenant_option,
    text_option,
)

_MESSAGES_PER_CALL = 100  # each about twenty commands: some milliseconds in total
_COPIES_PER_CALL = 5  # each is searched in a possibly long list
_ROUNDED_MS = 2  # tolerance for a time stored in our tables
_OPTIONS = frozenset({"prefix", "dead_letter_queues", "outcome_within_s", "every_s", "major", "tenant"})
_COPY_STATES = ("wait", "paused", "prioritized", "delayed", "failed")
_WHY_NOT = {
    "version": "its queue is written by another version of BullMQ than is known here",
    "bull": 'its queue is BullMQ\'s, by its keys (meta, events, marker, prioritized): name it in a source with backend = "bullmq"',
    "locked": "a worker still has it: its lock exists",
    "absent": "it is no longer there: someone replayed or removed it, or Bull dropped it (removeOnFail). Bull does not say which",
    "rights": "this user may not run all commands that a send needs. Let it write the keys of its queue and PUBLISH on its channels",
    "another": "another job has its id now",
    "no-job": "its key does not hold a job",
    "lost": "it is no longer there, and no whole copy of it is kept",
    "nameless": "the job's name is unknown, because its dead letter does not contain it: set job_name for that queue (dead_letter_queues)",
    "no-queue": "its dead letter names a queue that does not exist there. Where it is right, name it in queues = […] for this source",
    "priority": "its priority is no number between 0 and 2097152. Choose another for this replay",
    "parent": "the keys of the job that waits for it are not such as BullMQ makes",
    "keys": "a key of its queue, or a number in its settings, is not such as BullMQ makes: no worker can go on there either",
    "completed": "it is no longer failed: someone else replayed it, and it succeeded",
    "delayed": "it is no longer failed: someone else replayed it, and it is delayed",
    "removed": "it is no longer there: someone else removed it, or replayed it and it ran",
    **dict.fromkeys(
        ("waiting", "prioritized", "waiting-children"),
        "it is no longer failed: someone else replayed it, and it is waiting or running",
    ),
}


class BullmqOnRedis(AtomicLedger):
    """A `sources.PulledSource`. Options: docs/sources/bullmq.md."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        redirect=True,  # for dead letters that do not name their queue
        same_id=True,
        attempts=True,
        priority=True,
        remove=True,
        holds_dead=True,
        in_place=True,
        options=True,
    )

    _connect = Wire
    _options = _OPTIONS
    _per_call = _MESSAGES_PER_CALL

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options or URLs."""
        settings = Settings.from_options(given.name, given.options, self._options)
        self.name = given.name
        self.outcome_within_s = settings.outcome_within_s
        self.every_s = settings.every_s
        self._major = settings.major
        self._named = frozenset(given.queues)
        self._wire = self._connect(given.name, given.url, settings.prefix, given.queues, given.store_prefix)
        super().__init__(self._wire.client, self._wire.call, self._wire.ledger)
        self._dead = DeadLetterQueues(self._wire, settings.dead, settings.tenants)
        self._jobs = Jobs(self._wire, self._dead, settings.tenants)
        self._reading = Reading(self._wire, self._jobs)
        self._survey = OptionsSurvey(self._wire.client)

    # Reading

    def depths(self) -> list[Depth]:
        """Return the depths of all known queues, by name. Raises SourceUnreachable.

        `waiting` includes jobs of a paused queue and jobs with a priority; `delayed` includes those waiting for their
        children.
        """
        return self._wire.call(self._depths)

    def _depths(self) -> list[Depth]:
        queues = self._wire.queues()
        waiting = self._waiting(queues)
        pipe = self._wire.client.pipeline(transaction=False)
        for queue in queues:
            pipe.llen(self._wire.key(queue, "active"))
            for state in ("delayed", "waiting-children", "failed"):
                pipe.zcard(self._wire.key(queue, state))
        counts = iter(self._wire.answers(pipe))
        found = []
        for queue in queues:
            active, delayed, parents, failed = (number(next(counts)) for _ in range(4))
            # A worker on a dead-letter queue reads dead letters: all its jobs are dead.
            dead = failed + waiting[queue] + delayed if self._dead.is_one(queue) else failed
            found.append(Depth(queue, waiting[queue], active, delayed + parents, dead))
        return found

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return dict(self._wire.call(lambda: self._waiting(queues)))

    def _waiting(self, queues: Sequence[str]) -> dict[str, int]:
        pipe = self._wire.client.pipeline(transaction=False)
        for queue in queues:
            for state in ("wait", "paused"):
                pipe.llen(self._wire.key(queue, state))
                for end in (0, -1):
                    pipe.lindex(self._wire.key(queue, state), end)
            pipe.zcard(self._wire.key(queue, "prioritized"))
        answers = iter(self._wire.answers(pipe))
        found = {}
        for queue in queues:
            count = 0
            for _ in ("wait", "paused"):
                length, *ends = (next(answers) for _ in range(3))
                # Up to BullMQ 4, the list contains a mark that wakes workers, `0:` and a time.
                marks = {end for end in ends if isinstance(end, bytes) and end.startswith(b"0:")}
                count += max(0, number(length) - len(marks))
            found[queue] = count + number(next(answers))
        return found

    def workers(self) -> dict[str, set[str]] | None:
        return self._wire.call(lambda: find_workers(self._wire))

    def findings(self) -> list[Finding]:
        return [*self._wire.call(lambda: collect_findings(self._wire, self._major)), *self._dead.findings()]

    def found_options(self) -> FoundOptions:
        queues = self._wire.call(self._wire.queues)
        begins = {queue: self._wire.base(queue) for queue in queues}
        for_dead = set(self._wire.call(lambda: self._dead.select(queues)))
        return self._wire.call(lambda: self._survey.sample(self.name, time.time(), begins, for_dead))

    def dead_letters(self, after: str) -> Pulled:
        return self._wire.call(lambda: self._reading.pull(after))

    def confirm_filed(self, pulled: Pulled) -> None:
        self._reading.confirm_filed(pulled)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        return self._wire.call(lambda: find_changes(self._wire, self._jobs, jobs))

    # Sending

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`.

        All messages are parsed before the first is sent, so that an invalid one leaves all unsent.
        """
        stored = {outgoing.token: _message(outgoing) for outgoing in messages}
        self._wire.refuse_read_only()
        rest = self.unsent(replay, messages)
        majors = self._majors(rest, stored)
        self._refuse_what_others_took(rest, stored)
        answers = dict.fromkeys(stored, "already")
        for major in self._wire.majors:
            mine = [outgoing for outgoing in rest if majors[outgoing.token] == major]
            for part in batches(mine, self._per_call):
                answers |= self._send_part(replay, major, part, stored)
        return answers

    def _majors(
        self, messages: Sequence[OutgoingMessage], stored: Mapping[int, bullmq_job_hash.Message]
    ) -> dict[int, int]:
        """Return the major version of each message's queue: the current one; if its data was lost, that at the time
        of reading.
        """
        queues = list(dict.fromkeys(outgoing.queue for outgoing in messages))
        versions = self._wire.call(lambda: self._wire.versions_of(queues))
        found: dict[int, int] = {}
        bad: dict[int, str] = {}
        for outgoing in messages:
            version = versions[outgoing.queue]
            if version.backend:
                bad[outgoing.token] = version.written_by
                continue
            unsaid = self._major or stored[outgoing.token].major
            major = version.major if version.written_by else unsaid
            if major in self._wire.majors:
                found[outgoing.token] = major
            else:
                bad[outgoing.token] = version.written_by or "a version that it does not say"
        if bad:
            writer = min(bad.values())
            raise SourceRefused(
                f"Nothing was sent: a queue is written by {writer[:80]}, and only {self._wire.known} are known. Its jobs can be read; send "
                "them with its own means.",
                tokens=bad,
            )
        return found

    def _refuse_what_others_took(
        self, messages: Sequence[OutgoingMessage], stored: Mapping[int, bullmq_job_hash.Message]
    ) -> None:
        """Refuse absent jobs that an operator removed or that ran. Trimmed ones are restored."""

        def absent() -> dict[str, list[OutgoingMessage]]:
            pipe = self._wire.client.pipeline(transaction=False)
            for outgoing in messages:
                pipe.exists(self._wire.key(outgoing.queue, outgoing.job_id))
            found: dict[str, list[OutgoingMessage]] = defaultdict(list)
            for outgoing, is_there in zip(messages, pipe.execute(), strict=True):
                if not is_there:
                    found[outgoing.queue].append(outgoing)
            return found

        taken: list[int] = []
        for queue, mine in self._wire.call(absent).items():
            refs = [_ref(outgoing) for outgoing in mine]
            standing = self._wire.call(lambda refs=refs: self._dead.still_present(refs))  # type: ignore[misc]
            # A job in a dead-letter queue was removed from its own queue to be stored there.
            mine = [outgoing for outgoing in mine if not standing.get(_ref(outgoing))]
            if not mine:
                continue
            ids = list({outgoing.job_id for outgoing in mine})
            events = self._wire.call(lambda queue=queue, ids=ids: self._wire.events_of(queue, ids, "-"))  # type: ignore[misc]
            for outgoing in mine:
                kinds = [one.event for one in events.get(outgoing.job_id, ())]
                # Its last known event: a failure, after which it was trimmed, or an operator's action.
                known = {"failed", "completed"} if outgoing.was_removed else {"failed", "completed", "removed"}
                ends = [event for event in kinds if event in known]
                if ends and ends[-1] != "failed":
                    taken.append(outgoing.token)
        if taken:
            raise SourceRefused(f"Nothing was sent: {_WHY_NOT['removed']}.", tokens=taken)

    def _send_part(
        self,
        replay: str,
        major: int,
        messages: Sequence[OutgoingMessage],
        stored: Mapping[int, bullmq_job_hash.Message],
    ) -> dict[int, str]:
        arguments: list[Any] = [LEDGER_S, SENT_MARK, round(time.time() * 1000), len(messages), self._wire.prefix]
        # A server that lost its data has no settings of queues either.
        lost_at = self._wire.call(self._jobs.complete_since)
        for outgoing in messages:
            message = stored[outgoing.token]
            arguments += self._send_arguments(outgoing, message, self._may_be_new(outgoing, message, lost_at))
        try:
            answers = self._wire.call(lambda: self._wire.send(major, replay, self._dead.copies_key, arguments))
        except JobRefusals as refused:
            raise refused.explain(_WHY_NOT) from None
        return {outgoing.token: ANSWERS[answer] for outgoing, answer in zip(messages, answers, strict=True)}

    def _may_be_new(self, outgoing: OutgoingMessage, message: bullmq_job_hash.Message, lost_at: int | None) -> bool:
        """Return whether the queue may have no settings yet. `lost_at`: as from `Jobs.complete_since`."""
        return lost_at != 0 or message.copy is None or self._is_named(outgoing.queue)

    def _is_named(self, queue: str) -> bool:
        return queue in self._named or self._dead.is_home(queue)

    def _send_arguments(
        self, outgoing: OutgoingMessage, message: bullmq_job_hash.Message, may_be_new: bool
    ) -> list[Any]:
        data = bullmq_job_hash.encode_edited(outgoing.args, outgoing.kwargs)
        is_lifo = bullmq_job_hash.options_of(message.fields).get("lifo") is True
        fields = [part for pair in message.fields.items() for part in pair]
        return [
            outgoing.token,
            self._wire.base(outgoing.queue),
            outgoing.job_id,
            self._wire.sent_key(outgoing.queue) + outgoing.job_id,
            json.dumps(outgoing.lineage),
            "" if outgoing.retries is None else outgoing.retries,
            "" if outgoing.priority is None else outgoing.priority,
            b"" if data is None else b"=" + data,
            "R" if is_lifo else "L",
            self._wire.base(message.copy[0]) if message.copy else "",
            message.copy[1] if message.copy else "",
            message.copy[2] if message.copy else "",
            copies_field(outgoing.lineage["queue"], outgoing.job_id),
            "1" if may_be_new else "0",
            len(message.fields),
            *fields,
        ]

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(
            f"{self._wire.system} has no way back from waiting to failed: what was sent waits in its queue until it runs."
        )

    # Removal

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Remove jobs with BullMQ's own script, from the failed jobs of their queue and from the dead-letter queue that
        has a copy.

        Only failures up to the known time. Another job with the same id stays, to be read. Jobs of a flow stay:
        removing a child would let its parent run without it, and removing a parent would drop its children's results.
        """
        self._wire.refuse_read_only()
        versions = self._wire.call(lambda: self._wire.versions_of([job.queue for job in jobs]))
        removed: set[Ref] = set()
        for queue, mine in parts_by_queue(jobs, _MESSAGES_PER_CALL):
            targets = {
                Target(job.job_id, str(int(job.at * 1000) + _ROUNDED_MS)): job for job in mine if job.at is not None
            }
            removed |= self._take_out(queue, targets, ("failed",), versions[queue].major)
        copies: dict[str, dict[str, Ref]] = defaultdict(dict)
        for job, places in self._wire.call(lambda: self._dead.copies_of(jobs)).items():
            for name, copy, _ in places:
                copies[name][copy] = job
        for queue, of in copies.items():
            major = self._wire.call(lambda queue=queue: self._wire.versions_of([queue]))[queue].major  # type: ignore[misc]
            copied = self._wire.call(lambda queue=queue, of=of: self._dead.find_targets(queue, of))  # type: ignore[misc]
            taken = self._take_out(queue, copied, _COPY_STATES, major)
            self._wire.call(lambda taken=taken: self._dead.forget(taken))  # type: ignore[misc]
            removed |= taken
        return removed

    def _take_out(self, queue: str, jobs: Mapping[Target, Ref], states: Sequence[str], major: int | None) -> set[Ref]:
        major = major or self._major
        if major is None:
            return set()  # not ours to change; a finding reports it
        targets = list(jobs)
        removed: set[Ref] = set()
        at_once = _COPIES_PER_CALL if "wait" in states else self._per_call
        for start in range(0, len(targets), at_once):
            part = targets[start : start + at_once]
            answers = self._wire.call(lambda part=part: self._wire.remove(major, queue, part, states))  # type: ignore[misc]
            removed |= {jobs[job] for job, answer in zip(part, answers, strict=True) if answer}
        return removed

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused(
            f"When a job of {self._wire.system} is retried cannot be changed here. Nothing was changed."
        )

    # Content of a captured job

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return bullmq_job_hash.arguments(raw)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        bullmq_job_hash.encode_edited(args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return bullmq_job_hash.headers_of(bullmq_job_hash.unpack(raw).fields)

    def is_chord_member(self, raw: bytes) -> bool:
        return False  # a job of a flow returns to its parent automatically

    def expires_at(self, raw: bytes) -> datetime | None:
        return None  # BullMQ's jobs do not expire

    def close(self) -> None:
        self._wire.client.close()


def _ref(outgoing: OutgoingMessage) -> Ref:
    """Return the failure that a message retries."""
    return Ref(outgoing.lineage["queue"], outgoing.job_id)


def _message(outgoing: OutgoingMessage) -> bullmq_job_hash.Message:
    try:
        message = bullmq_job_hash.unpack(outgoing.raw)
        refuse_misdirected(message, outgoing.queue, outgoing.job_id)
        bullmq_job_hash.encode_edited(outgoing.args, outgoing.kwargs)
        if outgoing.priority is not None and not 0 <= outgoing.priority <= 2**21:
            raise SourceRefused("A priority of BullMQ is between 0 and 2097152. Nothing was sent.")
        return message
    except SourceRefused as error:
        raise SourceRefused(str(error), token=outgoing.token) from error


# Checked configuration of a BullMQ source (docs/sources/bullmq.md).

_OFTEN_S, _SELDOM_S = 0.05, 3600  # bounds of the interval between two readings
_LONGEST_S = 30 * 86400


@dataclass(frozen=True, slots=True)
class Settings:
    prefix: str
    dead: Mapping[str, Configured]
    outcome_within_s: float
    every_s: float
    major: int | None  # for queues that do not state it
    tenants: tuple[str, ...]  # paths

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], known: frozenset[str]) -> Settings:
        """Check the options of a source. Raises SourceRefused, with a sentence."""
        refuse_unknown_options(name, options, known)
        major = options.get("major")
        if major is not None and (not isinstance(major, int) or major not in MAJORS):
            raise SourceRefused(f"Source {name}: major is 4, 5 or 6, not {str(major)[:40]!r}.")
        return cls(
            text_option(name, "prefix", options.get("prefix", "bull"), "bull"),
            parse_configured(name, options.get("dead_letter_queues")),
            seconds_option(name, "outcome_within_s", options.get("outcome_within_s", 3600), 1, _LONGEST_S),
            seconds_option(name, "every_s", options.get("every_s", 0.5), _OFTEN_S, _SELDOM_S),
            major,
            tenant_option(name, options.get("tenant", ())),
        )


# Checked destinations of BullMQ jobs: queue and id in a dead letter are untrusted. Pure.

# Names of a queue's own keys (`QueueKeys` of 4.18, 5.81 and 6.7, and older ones): a job with such an id would overwrite
# one.
RESERVED = frozenset(
    (
        *(
            "active",
            "added",
            "completed",
            "de",
            "delayed",
            "drained",
            "events",
            "failed",
            "groups",
            "id",
            "jobs",
            "limiter",
            "marker",
        ),
        *(
            "meta",
            "metrics",
            "paused",
            "pc",
            "prioritized",
            "priority",
            "repeat",
            "resumed",
            "stalled",
            "stalled-check",
            "wait",
        ),
        *("waiting", "waiting-children"),
    )
)
_REPEATED = re.compile(r"repeat:[^:]+:[0-9]+")  # the only form with colons that BullMQ itself creates
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def refuse_misdirected(message: Message, queue: str, job_id: str) -> None:
    """Raise SourceRefused unless a job returns to its own queue, or, if it names none, to the one an operator chose.

    Never to a key that no job can have.
    """
    if message.more.get("unclear"):
        if queue == message.queue:
            raise SourceRefused(
                f"Nothing was sent: this dead letter does not say which queue it is of. Choose a queue to send it to, or name it for "
                f'good: dead_letter_queues = [{{name = "{queue[:100]}", of = "…"}}].'
            )
    elif queue != message.queue:
        raise SourceRefused(
            f"Nothing was sent: a job of BullMQ or Bull is brought back in its own queue ({message.queue[:100]}), not in another."
        )
    if job_id in RESERVED:
        raise SourceRefused(
            f"Nothing was sent: {job_id!r} is the name of one of the queue's own keys, which no job can have as its id. Take this dead "
            "letter out."
        )
    if message.copy is None:
        return  # read from its own queue under this id
    if queue == message.copy[0]:
        raise SourceRefused(
            "Nothing was sent: this dead letter names as its queue the one in which it lies. Take it out, or add its job again."
        )
    if not queue or ":" in queue or _CONTROL.search(queue):
        raise SourceRefused(
            f"Nothing was sent: {queue[:100]!r} is no name of a queue of BullMQ (a colon or a control character is in it)."
        )
    if not job_id or _CONTROL.search(job_id) or (":" in job_id and not _REPEATED.fullmatch(job_id)):
        raise SourceRefused(
            f"Nothing was sent: {job_id[:100]!r} is no id of a job of BullMQ (a colon or a control character is in it)."
        )
