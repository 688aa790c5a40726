"""Dramatiq 1.18 and 2 on Redis: dead letters are read in place, and enqueued again as Dramatiq's own `enqueue` does.

Each sending and its entry in the ledger are one step. If Redis lost all data, a message is sent from the stored copy.
The adapter uses Dramatiq's keys, not its library.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
from jobs_admin.sources.dramatiq import job_changes
from jobs_admin.sources.dramatiq.absences import Absences
from jobs_admin.sources.dramatiq.findings import collect_findings
from jobs_admin.sources.dramatiq.message import Message, read_arguments, read_known, rewritten
from jobs_admin.sources.dramatiq.reading import Reading
from jobs_admin.sources.dramatiq.reports import headers_of
from jobs_admin.sources.dramatiq.wire import Wire
from jobs_admin.sources.ledger import ANSWERS, AtomicLedger
from jobs_admin.sources.one_redis import (
    JobRefusals,
    batches,
    parts_by_queue,
    seconds_option,
    tenant_option,
    text_option,
)

_MESSAGES_PER_CALL = 100
_WHY_NOT = {
    "keys": "a key of its queue does not have the type that Dramatiq gives it, so workers fail on it too",
    "removed": "it is no longer a dead letter: someone else removed or requeued it",
    "unseen": "it is no longer a dead letter: Dramatiq dropped it after its dead_message_ttl, or someone requeued it, and it "
    "may have run",
}
_OPTIONS = {"namespace", "dead_message_ttl_s", "outcome_within_s", "every_s", "tenant"}


class DramatiqOnRedis(AtomicLedger):
    """A `sources.PulledSource`. Options: docs/sources/dramatiq.md."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        same_id=True,
        attempts=True,
        remove=True,
        holds_dead=True,
        in_place=True,
    )

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options or URLs."""
        name, options = given.name, given.options
        refuse_unknown_options(name, options, _OPTIONS)
        namespace = text_option(name, "namespace", options.get("namespace", "dramatiq"), "dramatiq")
        self.name = name
        self.outcome_within_s = seconds_option(
            name, "outcome_within_s", options.get("outcome_within_s", 3600), 1, 86_400
        )
        self.every_s = seconds_option(name, "every_s", options.get("every_s", 0.5), 0.05, 3600)
        self._ttl_s = seconds_option(
            name, "dead_message_ttl_s", options.get("dead_message_ttl_s", 7 * 86_400), 1, 10 * 365 * 86_400
        )
        self._wire = Wire(name, given.url, namespace, given.queues, given.store_prefix)
        super().__init__(self._wire.client, self._wire.call, self._wire.ledger)
        self._absences = Absences(self._wire)
        self._reading = Reading(self._wire, tenant_option(name, options.get("tenant", ())), self._ttl_s)

    # Reading

    def depths(self) -> list[Depth]:
        """See `base.Source`. `active` includes messages that a worker has fetched ahead."""
        counts = self._wire.call(lambda: self._wire.counts(self._wire.queues()))
        return [
            Depth(queue, waiting, None if stored is None else max(0, stored - (waiting or 0)), delayed, dead)
            for queue, (waiting, stored, delayed, dead) in counts.items()
        ]

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return self._wire.call(lambda: self._wire.waiting(queues))

    def workers(self) -> dict[str, set[str]] | None:
        return None  # the heartbeats of producers and workers look the same

    def findings(self) -> list[Finding]:
        return self._wire.call(lambda: collect_findings(self._wire, self._ttl_s))

    def dead_letters(self, after: str) -> Pulled:
        return self._wire.call(lambda: self._reading.pull(after))

    def confirm_filed(self, pulled: Pulled) -> None:
        self._reading.confirm_filed(pulled)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        return self._wire.call(
            lambda: job_changes.find_changes(self._wire, self._reading.delayed, self._absences, jobs, self._ttl_s)
        )

    # Sending

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All messages are built before the first is sent."""
        built = {outgoing.token: _Built.read(outgoing) for outgoing in messages}
        self._wire.refuse_read_only()
        answers, rest = dict.fromkeys(built, "already"), self.unsent(replay, messages)
        since = self._wire.call(self._wire.mark.complete_since)
        for part in batches(rest, _MESSAGES_PER_CALL):
            answers |= self._send_part(replay, part, built, since)
        return answers

    def _send_part(
        self, replay: str, messages: Sequence[OutgoingMessage], built: Mapping[int, _Built], since: int | None
    ) -> dict[int, str]:
        now = self._wire.call(self._wire.now)
        jobs = [(one.queue, one.job_id) for one in messages]
        deaths = self._wire.call(lambda: self._wire.died_at(jobs))
        arguments = []
        for outgoing, read_at in zip(messages, deaths, strict=True):
            one = built[outgoing.token]
            died_at = max(one.failed_at, read_at or 0.0)
            why_not = job_changes.why_not_absent(since, died_at, died_at + self._ttl_s, now)
            record = {"lineage": outgoing.lineage, "name": one.name, "actor": one.actor, "at": now}
            arguments.append(
                (
                    outgoing.token,
                    outgoing.queue,
                    outgoing.job_id,
                    one.dead_name,
                    one.name,
                    one.body,
                    "" if outgoing.was_removed else why_not,
                    json.dumps(record),
                )
            )
        try:
            found = self._wire.call(lambda: self._wire.send(replay, arguments))
        except JobRefusals as refused:
            raise refused.explain(_WHY_NOT) from None
        answers: dict[int, str] = {}
        for outgoing, answer in zip(messages, found, strict=True):
            answers.setdefault(outgoing.token, ANSWERS[answer])
        return answers

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(
            "Jobs sent to Dramatiq cannot be withdrawn: they wait in their queue until they run. Nothing was changed."
        )

    # Removal

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Remove the dead letters whose time of death is still the known one."""
        self._wire.refuse_read_only()
        removed: set[Ref] = set()
        for queue, part in parts_by_queue([job for job in jobs if job.at is not None], _MESSAGES_PER_CALL):
            targets = [(job.job_id, job_changes.death_ms(job)) for job in part]
            answers = self._wire.call(lambda queue=queue, targets=targets: self._wire.remove(queue, targets))  # type: ignore[misc]
            removed |= {job for job, answer in zip(part, answers, strict=True) if answer == 1}
        return removed

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("Retries of Dramatiq cannot be rescheduled here. Nothing was changed.")

    # Content of a captured message

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return read_arguments(raw)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        read_known(raw)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return headers_of(read_known(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        """Return whether the callbacks of a group wait for this message."""
        return bool(Message.read(raw).options.get("group_completion_uuid"))

    def expires_at(self, raw: bytes) -> datetime | None:
        """See `base.Source`. Only a `max_age` in the message is known, not one in the actor's code."""
        return Message.read(raw).expires_at

    def close(self) -> None:
        self._wire.client.close()


@dataclass(frozen=True, slots=True)
class _Built:
    """A message that is ready to send."""

    dead_name: str  # in the dead-letter queue
    name: str  # on its queue
    actor: str
    body: bytes
    failed_at: float  # seconds; the failure before its last attempt

    @classmethod
    def read(cls, outgoing: OutgoingMessage) -> _Built:
        """Parse a message. Raises SourceRefused, with the token."""
        name = str(uuid.uuid4())
        try:
            message = read_known(outgoing.raw)
            body = rewritten(
                outgoing.raw,
                queue=outgoing.queue,
                message_id=outgoing.job_id,
                redis_id=name,
                lineage=outgoing.lineage,
                args=outgoing.args,
                kwargs=outgoing.kwargs,
                retries=outgoing.retries,
            )
        except SourceRefused as error:
            raise SourceRefused(str(error), token=outgoing.token) from error
        return cls(message.redis_id, name, message.actor, body, (message.failed_ms or 0.0) / 1000)
