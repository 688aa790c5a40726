"""RQ 1.16, 2 and 3 on Redis: failed jobs are read in place, and retried there like RQ's own `requeue`.

Each sending is one step with our ledger. A job that RQ has dropped meanwhile is restored from our copy, under its own
id. The adapter uses RQ's keys, not its library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from jobs_admin.sources.ledger import ANSWERS, LEDGER_S, SENT_MARK, AtomicLedger
from jobs_admin.sources.one_redis import (
    JobRefusals,
    batches,
    parts_by_queue,
    seconds_option,
    tenant_option,
    text_option,
)
from jobs_admin.sources.rq import call, job_changes, job_hash
from jobs_admin.sources.rq.findings import collect_findings
from jobs_admin.sources.rq.options import sample
from jobs_admin.sources.rq.reading import Reading
from jobs_admin.sources.rq.reports import headers_of
from jobs_admin.sources.rq.wire import Wire

_MESSAGES_PER_CALL = 100
_ROUNDED_S = 0.002  # tolerance for a time stored in our tables
_WHY_NOT = {
    "no-job": "its key does not hold a job",
    "keys": "a key of its queue is not what RQ writes there, so workers fail on it too",
    "unseen": "RQ dropped it at its failure_ttl, and Redrive did not check it in the minutes before: it may have run",
    "removed": "it is no longer there: someone else removed it, or requeued it and it ran",
    "finished": "it is no longer failed: someone else requeued it, and it succeeded",
    "canceled": "someone cancelled it in RQ",
    "elsewhere": "its id is now that of a job in another queue",
    "waits": "it is no longer failed: someone else requeued it, and it waits or runs",
    "moving": "it is not among the failed jobs of its queue: someone else is requeueing or removing it, or was interrupted",
}
_OPTIONS = {"prefix", "outcome_within_s", "every_s", "tenant"}


class RqOnRedis(AtomicLedger):
    """A `sources.PulledSource`. Options: docs/sources/rq.md."""

    can = Capabilities(
        atomic_send=True,
        edit=True,
        outcomes=True,
        same_id=True,
        remove=True,
        holds_dead=True,
        in_place=True,
        options=True,
    )

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options or URLs."""
        name, options = given.name, given.options
        refuse_unknown_options(name, options, _OPTIONS)
        prefix = text_option(name, "prefix", options.get("prefix", "rq"), "rq")
        self.name = name
        self.outcome_within_s = seconds_option(
            name, "outcome_within_s", options.get("outcome_within_s", 3600), 1, 30 * 86_400
        )
        self.every_s = seconds_option(name, "every_s", options.get("every_s", 0.5), 0.05, 3600)
        self._wire = Wire(name, given.url, prefix, given.queues, given.store_prefix)
        super().__init__(self._wire.client, self._wire.call, self._wire.ledger)
        self._tenants = tenant_option(name, options.get("tenant", ()))
        self._reading = Reading(self._wire, self._tenants)

    # Reading

    def depths(self) -> list[Depth]:
        """Return the depths of all known queues, by name. `delayed` includes jobs that wait for another job.

        Raises SourceUnreachable.
        """
        counts = self._wire.call(lambda: self._wire.counts(self._wire.queues()))
        return [
            Depth(queue, waiting, active, (scheduled or 0) + (deferred or 0), failed)
            for queue, (waiting, active, scheduled, deferred, failed) in counts.items()
        ]

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return self._wire.call(lambda: self._wire.waiting(queues))

    def workers(self) -> dict[str, set[str]] | None:
        return self._wire.call(self._wire.workers)

    def findings(self) -> list[Finding]:
        return self._wire.call(lambda: collect_findings(self._wire))

    def found_options(self) -> FoundOptions:
        return self._wire.call(lambda: sample(self._wire, time.time()))

    def dead_letters(self, after: str) -> Pulled:
        return self._wire.call(lambda: self._reading.pull(after))

    def confirm_filed(self, pulled: Pulled) -> None:
        self._reading.confirm_filed(pulled)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        return self._wire.call(lambda: job_changes.find_changes(self._wire, jobs, self._tenants))

    # Sending

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All messages are parsed before the first is sent."""
        stored = {outgoing.token: _Stored.read(outgoing) for outgoing in messages}
        self._wire.refuse_read_only()
        answers, rest = dict.fromkeys(stored, "already"), self.unsent(replay, messages)
        since = self._wire.call(self._wire.mark.complete_since)
        for part in batches(rest, _MESSAGES_PER_CALL):
            answers |= self._send_part(replay, part, stored, since)
        return answers

    def _send_part(
        self, replay: str, messages: Sequence[OutgoingMessage], stored: Mapping[int, _Stored], since: int | None
    ) -> dict[int, str]:
        now = time.time()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        arguments: list[Any] = [LEDGER_S, SENT_MARK, self._wire.prefix, f"{now:.3f}", stamp, len(messages)]
        seen = self._wire.call(lambda: self._wire.seen_at([(one.queue, one.job_id) for one in messages]))
        for outgoing, seen_at in zip(messages, seen, strict=True):
            message = stored[outgoing.token]
            why_not_absent = job_changes.why_not_absent(since, message.ended_at, message.expires_at, seen_at, now)
            arguments += [
                outgoing.token,
                outgoing.queue,
                outgoing.job_id,
                json.dumps(outgoing.lineage),
                b"" if message.edited is None else b"=" + message.edited,
                "" if outgoing.was_removed else why_not_absent,
                len(message.fields),
                *(part for pair in message.fields.items() for part in pair),
            ]
        try:
            answers = self._wire.call(lambda: self._wire.send(replay, arguments))
        except JobRefusals as refused:
            raise refused.explain(_WHY_NOT) from None
        return {outgoing.token: ANSWERS[answer] for outgoing, answer in zip(messages, answers, strict=True)}

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(
            "Jobs sent to RQ cannot be withdrawn: they wait in their queue until they run. Nothing was changed."
        )

    # Removal

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Remove the jobs whose failure is still the known one. Jobs that others depend on stay."""
        self._wire.refuse_read_only()
        removed: set[Ref] = set()
        for queue, part in parts_by_queue(jobs, _MESSAGES_PER_CALL):
            targets = [(job.job_id, _latest(job.at)) for job in part]
            answers = self._wire.call(lambda queue=queue, targets=targets: self._wire.remove(queue, targets))  # type: ignore[misc]
            removed |= {job for job, answer in zip(part, answers, strict=True) if answer}
        return removed

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("Retries of RQ cannot be rescheduled here. Nothing was changed.")

    # Content of a captured job

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return call.arguments(job_hash.unpack(raw).fields.get(b"data", b""))

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        call.encode_edited(job_hash.unpack(raw).fields.get(b"data", b""), args, kwargs)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return headers_of(job_hash.unpack(raw).fields)

    def is_chord_member(self, raw: bytes) -> bool:
        return False  # jobs that depend on this one are started by its worker after a success

    def expires_at(self, raw: bytes) -> datetime | None:
        return None  # a `ttl` starts again when the job is sent

    def close(self) -> None:
        self._wire.client.close()


@dataclass(frozen=True, slots=True)
class _Stored:
    """The job in a message."""

    fields: Mapping[bytes, bytes]
    edited: bytes | None
    ended_at: float
    expires_at: float  # in RQ

    @classmethod
    def read(cls, outgoing: OutgoingMessage) -> _Stored:
        """Parse a message. Raises SourceRefused, with the token."""
        try:
            message = job_hash.unpack(outgoing.raw)
            if (message.queue, message.job_id) != (outgoing.queue, outgoing.job_id):
                raise SourceRefused(
                    "A job of RQ can only be sent to its own queue, under its own id. Nothing was sent."
                )
            if b"data" not in message.fields:
                raise SourceRefused("RQ has no function or arguments for this job. Nothing was sent.")
            edited = call.encode_edited(message.fields[b"data"], outgoing.args, outgoing.kwargs)
        except SourceRefused as error:
            raise SourceRefused(str(error), token=outgoing.token) from error
        return cls(message.fields, edited, message.ended_at, message.expires_at)


def _latest(at: float | None) -> str:
    """Return the latest known time of a failure, in RQ's form."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at + _ROUNDED_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
