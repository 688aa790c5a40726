"""BullMQ 4, 5 and 6 on Redis: failed jobs are read where they lie, and brought back there by BullMQ's own scripts.

What is written is written only into queues whose major is known, in one step with our ledger. A job that Redis has trimmed meanwhile
is put back from our copy, under its own id.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from jobs_admin.core import keys
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
)
from jobs_admin.sources.bullmq import health as bullmq_health
from jobs_admin.sources.bullmq import letters as bullmq_letters
from jobs_admin.sources.bullmq.addresses import refuse_misdirected
from jobs_admin.sources.bullmq.dead_letters import DeadLetterQueues, copies_field
from jobs_admin.sources.bullmq.jobs import Jobs
from jobs_admin.sources.bullmq.look import look
from jobs_admin.sources.bullmq.options import OptionsSurvey
from jobs_admin.sources.bullmq.reading import Reading
from jobs_admin.sources.bullmq.settings import Settings
from jobs_admin.sources.bullmq.wire import MAJORS, Meant, Refusals, Wire, number
from jobs_admin.sources.ledger import epoch_of

_LEDGER_S = 7 * 86400
_LETTERS_PER_CALL = 100  # each some twenty commands: together some milliseconds
_COPIES_PER_CALL = 5  # each is looked for in a list that may be long
_BYTES_PER_CALL = 4_000_000
_ROUNDED_MS = 2  # by which a time may differ that went through our tables
_SENT = str(keys.SCHEMA).encode()
_ANSWERS = {1: "sent", 0: "already", -1: "recalled"}  # of the script
_COPIES_LIE_IN = ("wait", "paused", "prioritized", "delayed", "failed")
_WHY_NOT = {
    "version": "its queue is written by another version of BullMQ than is known here",
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
}
_WAITS = "it is no longer failed: someone else replayed it, and it is waiting or running"


class BullmqOnRedis:
    """A `sources.PulledSource`. Options: docs/sources.md."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        redirect=True,  # of dead letters that do not say their queue
        same_id=True,
        attempts=True,
        priority=True,
        remove=True,
        holds_dead=True,
        in_place=True,
        options=True,
    )

    def __init__(
        self,
        name: str,
        url: str,
        queues: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        store_prefix: str = keys.PREFIX,
    ) -> None:
        """Raises SourceRefused, with a sentence, for options or a URL that cannot be used."""
        settings = Settings.of(name, options or {})
        self.name = name
        self.outcome_within_s = settings.outcome_within_s
        self.every_s = settings.every_s
        self._major = settings.major
        self._named = frozenset(queues)
        self._wire = Wire(name, url, settings.prefix, queues, store_prefix)
        self._dead = DeadLetterQueues(self._wire, settings.dead, settings.tenants)
        self._jobs = Jobs(self._wire, self._dead, settings.tenants)
        self._reading = Reading(self._wire, self._jobs)
        self._survey = OptionsSurvey(self._wire.client)

    # Reading

    def depths(self) -> list[Depth]:
        """Every known queue, by name. `waiting` has those of a paused queue and those with a priority; `delayed` those that wait for
        their children, too. Raises SourceUnreachable."""
        return self._wire.ask(self._depths)

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
            # Whoever works on a dead-letter queue reads what died: all that lies there is dead.
            dead = failed + waiting[queue] + delayed if self._dead.is_one(queue) else failed
            found.append(Depth(queue, waiting[queue], active, delayed + parents, dead))
        return found

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return dict(self._wire.ask(lambda: self._waiting(queues)))

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
                # Up to BullMQ 4 a mark that wakes workers stands in the list, `0:` and a time.
                marks = {end for end in ends if isinstance(end, bytes) and end.startswith(b"0:")}
                count += max(0, number(length) - len(marks))
            found[queue] = count + number(next(answers))
        return found

    def workers(self) -> dict[str, set[str]] | None:
        return self._wire.ask(lambda: bullmq_health.workers(self._wire))

    def findings(self) -> list[Finding]:
        return [*self._wire.ask(lambda: bullmq_health.findings(self._wire, self._major)), *self._dead.findings()]

    def found_options(self) -> FoundOptions:
        queues = self._wire.ask(self._wire.queues)
        begins = {queue: self._wire.base(queue) for queue in queues}
        for_dead = set(self._wire.ask(lambda: self._dead.among(queues)))
        return self._wire.ask(lambda: self._survey.look(self.name, time.time(), begins, for_dead))

    def dead_letters(self, after: str) -> Pulled:
        return self._wire.ask(lambda: self._reading.pull(after))

    def filed(self, pulled: Pulled) -> None:
        self._reading.filed(pulled)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        return self._wire.ask(lambda: look(self._wire, self._jobs, jobs))

    # Sending

    def epoch(self, replay: str) -> str:
        """Names this replay's ledger, and makes it where there is none. Raises SourceUnreachable."""

        def ask() -> str:
            pipe = self._wire.client.pipeline()
            pipe.hsetnx(self._wire.ledger(replay), "epoch", uuid.uuid4().hex)
            pipe.hget(self._wire.ledger(replay), "epoch")
            pipe.expire(self._wire.ledger(replay), _LEDGER_S)
            return epoch_of(pipe.execute()[1])

        return self._wire.ask(ask)

    def send(self, replay: str, letters: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All letters are read before the first is sent, so that one which cannot be leaves all unsent."""
        messages = {letter.token: _message(letter) for letter in letters}
        self._wire.refuse_read_only()
        sent = self.was_sent(replay, [letter.token for letter in letters])
        rest = [letter for letter in letters if letter.token not in sent]
        majors = self._majors(rest, messages)
        self._refuse_what_others_took(rest, messages)
        answers = dict.fromkeys(sent, "already")
        for major in MAJORS:
            mine = [letter for letter in rest if majors[letter.token] == major]
            for part in _parts(mine):
                answers |= self._put(replay, major, part, messages)
        return answers

    def _majors(
        self, letters: Sequence[OutgoingMessage], messages: Mapping[int, bullmq_letters.Message]
    ) -> dict[int, int]:
        """Of each letter's queue: as it says now; where it says nothing (its data was lost), as it was when the job was read."""
        queues = list(dict.fromkeys(letter.queue for letter in letters))
        versions = self._wire.ask(lambda: self._wire.versions_of(queues))
        found: dict[int, int] = {}
        bad: dict[int, str] = {}
        for letter in letters:
            version = versions[letter.queue]
            unsaid = self._major or messages[letter.token].major
            major = version.major if version.said else unsaid
            if major in MAJORS:
                found[letter.token] = major
            else:
                bad[letter.token] = version.said or "a version that it does not say"
        if bad:
            said = min(bad.values())
            raise SourceRefused(
                f"Nothing was sent: a queue is written by {said[:80]}, and only BullMQ 4, 5 and 6 are known. Its jobs can be read; send "
                "them with its own means.",
                tokens=bad,
            )
        return found

    def _refuse_what_others_took(
        self, letters: Sequence[OutgoingMessage], messages: Mapping[int, bullmq_letters.Message]
    ) -> None:
        """Of those that are not there any more: whoever took one out, or let it run, did so for a reason. Trimmed ones are put back."""

        def absent() -> dict[str, list[OutgoingMessage]]:
            pipe = self._wire.client.pipeline(transaction=False)
            for letter in letters:
                pipe.exists(self._wire.key(letter.queue, letter.job_id))
            found: dict[str, list[OutgoingMessage]] = defaultdict(list)
            for letter, is_there in zip(letters, pipe.execute(), strict=True):
                if not is_there:
                    found[letter.queue].append(letter)
            return found

        taken: list[int] = []
        for queue, mine in self._wire.ask(absent).items():
            standing = self._wire.ask(lambda mine=mine: self._dead.standing([_ref(letter) for letter in mine]))  # type: ignore[misc]
            # What lies in a dead-letter queue was taken out of its own to be kept.
            mine = [letter for letter in mine if not standing.get(_ref(letter))]
            if not mine:
                continue
            ids = list({letter.job_id for letter in mine})
            events = self._wire.ask(lambda queue=queue, ids=ids: self._wire.events_of(queue, ids, "-"))  # type: ignore[misc]
            for letter in mine:
                told = [one.event for one in events.get(letter.job_id, ())]
                # The last thing that is known of it: a failure, after which it was trimmed, or what somebody did.
                known = {"failed", "completed"} if letter.was_removed else {"failed", "completed", "removed"}
                ends = [event for event in told if event in known]
                if ends and ends[-1] != "failed":
                    taken.append(letter.token)
        if taken:
            raise SourceRefused(f"Nothing was sent: {_WHY_NOT['removed']}.", tokens=taken)

    def _put(
        self,
        replay: str,
        major: int,
        letters: Sequence[OutgoingMessage],
        messages: Mapping[int, bullmq_letters.Message],
    ) -> dict[int, str]:
        arguments: list[Any] = [_LEDGER_S, _SENT, round(time.time() * 1000), len(letters), self._wire.prefix]
        # A server that lost its data has no settings of queues, either.
        was_lost = self._wire.ask(self._jobs.whole_since) != 0
        for letter in letters:
            may_be_new = was_lost or messages[letter.token].copy is None or self._is_named(letter.queue)
            arguments += self._told(letter, messages[letter.token], may_be_new)
        try:
            answers = self._wire.ask(lambda: self._wire.send(major, replay, self._dead.copies_key, arguments))
        except Refusals as refused:
            why = next(iter(refused.why.values()))
            raise SourceRefused(f"Nothing was sent: {_WHY_NOT.get(why, _WAITS)}.", tokens=list(refused.why)) from None
        return {letter.token: _ANSWERS[answer] for letter, answer in zip(letters, answers, strict=True)}

    def _is_named(self, queue: str) -> bool:
        return queue in self._named or self._dead.is_home(queue)

    def _told(self, letter: OutgoingMessage, message: bullmq_letters.Message, may_be_new: bool) -> list[Any]:
        data = bullmq_letters.edited(letter.args, letter.kwargs)
        is_lifo = bullmq_letters.options_of(message.fields).get("lifo") is True
        fields = [part for pair in message.fields.items() for part in pair]
        return [
            letter.token,
            self._wire.base(letter.queue),
            letter.job_id,
            self._wire.sent(letter.queue) + letter.job_id,
            json.dumps(letter.lineage),
            "" if letter.retries is None else letter.retries,
            "" if letter.priority is None else letter.priority,
            b"" if data is None else b"=" + data,
            "R" if is_lifo else "L",
            self._wire.base(message.copy[0]) if message.copy else "",
            message.copy[1] if message.copy else "",
            message.copy[2] if message.copy else "",
            copies_field(letter.lineage["queue"], letter.job_id),
            "1" if may_be_new else "0",
            len(message.fields),
            *fields,
        ]

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        if not tokens:
            return set()
        names = [str(token) for token in tokens]
        known = self._wire.ask(lambda: self._wire.client.hmget(self._wire.ledger(replay), names))
        return {token for token, mark in zip(tokens, known, strict=True) if mark == _SENT}

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return set()

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        if not tokens:
            return set()
        ledger, names = self._wire.ledger(replay), [str(token) for token in tokens]

        def ask() -> list[bytes]:
            pipe = self._wire.client.pipeline()
            for name in names:
                pipe.hsetnx(ledger, name, "withheld")
            pipe.hmget(ledger, names)
            pipe.expire(ledger, _LEDGER_S)
            return cast(list[bytes], pipe.execute()[-2])

        return {token for token, mark in zip(tokens, self._wire.ask(ask), strict=True) if mark == _SENT}

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(
            "BullMQ has no way back from waiting to failed: what was sent waits in its queue until it runs."
        )

    # Taking out

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """By BullMQ's own script, from the failed jobs of its queue and from the dead-letter queue that has a copy; only what failed no
        later than is known here. Another job that was given the id meanwhile is left to be read. A job of a flow stays: removing a child
        lets its parent run without it, and removing a parent drops what its children returned."""
        self._wire.refuse_read_only()
        versions = self._wire.ask(lambda: self._wire.versions_of([job.queue for job in jobs]))
        removed: set[Ref] = set()
        for queue, mine in _by_queue(jobs).items():
            meant = {
                Meant(job.job_id, str(int(job.at * 1000) + _ROUNDED_MS)): job for job in mine if job.at is not None
            }
            removed |= self._take_out(queue, meant, ("failed",), versions[queue].major)
        copies: dict[str, dict[str, Ref]] = defaultdict(dict)
        for job, places in self._wire.ask(lambda: self._dead.copies_of(jobs)).items():
            for name, copy, _ in places:
                copies[name][copy] = job
        for queue, of in copies.items():
            major = self._wire.ask(lambda queue=queue: self._wire.versions_of([queue]))[queue].major  # type: ignore[misc]
            copied = self._wire.ask(lambda queue=queue, of=of: self._dead.meant(queue, of))  # type: ignore[misc]
            taken = self._take_out(queue, copied, _COPIES_LIE_IN, major)
            self._wire.ask(lambda taken=taken: self._dead.forget(taken))  # type: ignore[misc]
            removed |= taken
        return removed

    def _take_out(self, queue: str, jobs: Mapping[Meant, Ref], states: Sequence[str], major: int | None) -> set[Ref]:
        major = major or self._major
        if major is None:
            return set()  # not ours to touch; a finding says so
        meant = list(jobs)
        removed: set[Ref] = set()
        at_once = _COPIES_PER_CALL if "wait" in states else _LETTERS_PER_CALL
        for start in range(0, len(meant), at_once):
            part = meant[start : start + at_once]
            answers = self._wire.ask(lambda part=part: self._wire.remove(major, queue, part, states))  # type: ignore[misc]
            removed |= {jobs[job] for job, answer in zip(part, answers, strict=True) if answer}
        return removed

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("When a job of BullMQ is retried cannot be changed here. Nothing was changed.")

    # What a captured job says

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return bullmq_letters.arguments(raw)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        bullmq_letters.edited(args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return bullmq_letters.headers_of(bullmq_letters.unpack(raw).fields)

    def is_chord_member(self, raw: bytes) -> bool:
        return False  # a job of a flow goes back to its parent by itself

    def expires_at(self, raw: bytes) -> datetime | None:
        return None  # BullMQ's jobs do not expire

    def close(self) -> None:
        self._wire.client.close()


def _ref(letter: OutgoingMessage) -> Ref:
    """How the failure is known that it brings back."""
    return Ref(letter.lineage["queue"], letter.job_id)


def _message(letter: OutgoingMessage) -> bullmq_letters.Message:
    try:
        message = bullmq_letters.unpack(letter.raw)
        refuse_misdirected(message, letter.queue, letter.job_id)
        bullmq_letters.edited(letter.args, letter.kwargs)
        if letter.priority is not None and not 0 <= letter.priority <= 2**21:
            raise SourceRefused("A priority of BullMQ is between 0 and 2097152. Nothing was sent.")
        return message
    except SourceRefused as error:
        raise SourceRefused(str(error), token=letter.token) from error


def _parts(letters: Sequence[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    """In calls that hold Redis for milliseconds only."""
    part: list[OutgoingMessage] = []
    size = 0
    for letter in letters:
        if part and (len(part) == _LETTERS_PER_CALL or size + len(letter.raw) > _BYTES_PER_CALL):
            yield part
            part, size = [], 0
        part.append(letter)
        size += len(letter.raw)
    if part:
        yield part


def _by_queue(jobs: Sequence[Ref]) -> dict[str, list[Ref]]:
    found: dict[str, list[Ref]] = defaultdict(list)
    for job in jobs:
        found[job.queue].append(job)
    return found
