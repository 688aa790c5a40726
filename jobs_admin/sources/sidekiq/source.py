"""Sidekiq 5 to 8 on Redis: its dead set, its retries and its queues.

The adapter uses Sidekiq's keys, and nothing of Ruby.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from jobs_admin.sources.ledger import ANSWERS, AtomicLedger
from jobs_admin.sources.one_redis import JobRefusals, batches, job_member, now_ms, seconds_option, tenant_option
from jobs_admin.sources.sidekiq.findings import collect_findings
from jobs_admin.sources.sidekiq.job_changes import find_changes, why_not_absent
from jobs_admin.sources.sidekiq.message import Job, build_retry, is_jid
from jobs_admin.sources.sidekiq.reading import Reading
from jobs_admin.sources.sidekiq.reports import headers_of
from jobs_admin.sources.sidekiq.wire import Wire

_OPTIONS = {"namespace", "dead_max_jobs", "dead_timeout_s", "every_s", "tenant"}
_WHY_NOT = {
    "keys": "a key of its queue does not have the type that Sidekiq gives it, so workers fail on it too",
    "removed": "it is no longer in the dead set: someone else build_retry or deleted it",
    "unseen": "it is no longer in the dead set: Sidekiq dropped it, or someone retried it, and it may have run",
}
_NO_EDIT = "Arguments of Sidekiq's jobs cannot be edited. Nothing was changed."
_MESSAGES_PER_CALL = 100
_NOT_JSON = "This entry is not a job of Sidekiq's."


class Sidekiq(AtomicLedger):
    """A `sources.PulledSource`. Options: docs/sources/sidekiq.md."""

    can = Capabilities(atomic_send=True, same_id=True, remove=True, holds_dead=True, in_place=True)
    outcome_within_s = 3600.0

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options or URLs."""
        name, options = given.name, given.options
        refuse_unknown_options(name, options, _OPTIONS)
        namespace = options.get("namespace", "")
        if not isinstance(namespace, str):
            raise SourceRefused(f"Source {name}: namespace is text, not {str(namespace)[:40]!r}.")
        most = options.get("dead_max_jobs", 10_000)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 10**9:
            raise SourceRefused(f"Source {name}: dead_max_jobs is a number of jobs, not {str(most)[:40]!r}.")
        self.name = name
        self.every_s = seconds_option(name, "every_s", options.get("every_s", 0.5), 0.05, 3600)
        timeout_s = seconds_option(
            name, "dead_timeout_s", options.get("dead_timeout_s", 180 * 86_400), 1, 10 * 365 * 86_400
        )
        self._wire = Wire(name, given.url, namespace, given.queues, given.store_prefix, most, timeout_s)
        super().__init__(self._wire.client, self._wire.call, self._wire.ledger)
        self._reading = Reading(self._wire, tenant_option(name, options.get("tenant", ())))

    # Reading

    def depths(self) -> list[Depth]:
        """See `base.Source`. Queues of dead jobs and retries that Sidekiq no longer lists are included."""
        return self._wire.call(self._depths)

    def _depths(self) -> list[Depth]:
        wire = self._wire
        dead, retries = wire.count_by_queue("dead"), wire.count_by_queue("retry")
        queues = sorted(
            {*wire.queues(), *(one for one in {**(dead or {}), **(retries or {})} if one and wire.is_read(one))}
        )
        return [
            Depth(
                queue,
                waiting=waiting,
                delayed=None if retries is None else retries.get(queue, 0),
                source_dead=None if dead is None else dead.get(queue, 0),
            )
            for queue, waiting in wire.waiting(queues).items()
        ]

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        return self._wire.call(lambda: self._wire.waiting(queues))

    def workers(self) -> dict[str, set[str]] | None:
        found: dict[str, set[str]] = {}
        for name, info in self._wire.call(self._wire.processes).items():
            queues = info.get("queues")
            for queue in queues if isinstance(queues, list) else ():
                found.setdefault(str(queue), set()).add(name)
        return found

    def findings(self) -> list[Finding]:
        return self._wire.call(lambda: collect_findings(self._wire))

    def dead_letters(self, after: str) -> Pulled:
        return self._wire.call(lambda: self._reading.pull(after))

    def confirm_filed(self, pulled: Pulled) -> None:
        self._reading.confirm_filed(pulled)

    def check_jobs(self, jobs: Sequence[Ref]) -> JobChanges:
        return self._wire.call(lambda: find_changes(self._wire, self._reading.retries, jobs))

    # Sending and removal

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All jobs are built before the first is sent."""
        for outgoing in messages:
            try:
                build_retry(outgoing.raw, outgoing.lineage, 0.0, 0.0)
            except SourceRefused as error:
                raise SourceRefused(str(error), token=outgoing.token) from error
        self._wire.refuse_read_only()
        answers, rest = dict.fromkeys((one.token for one in messages), "already"), self.unsent(replay, messages)
        for part in batches(rest, _MESSAGES_PER_CALL):
            answers |= self._send_part(replay, part)
        return answers

    def _send_part(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        wire = self._wire
        now = wire.call(lambda: now_ms(wire.client)) / 1000
        jobs = [job_member(one.queue, one.job_id) for one in messages]
        known = wire.call(lambda: wire.latest_deaths(jobs))
        failed = [Job.read(one.raw).failed_at for one in messages]
        died = [at or failed_at or now for at, failed_at in zip(known, failed, strict=True)]
        why_not = wire.call(lambda: why_not_absent(wire, list(zip(known, failed, strict=True))))
        arguments = [
            (
                outgoing.token,
                outgoing.queue,
                outgoing.raw,
                build_retry(outgoing.raw, outgoing.lineage, at, now),
                "" if outgoing.was_removed else why,
            )
            for outgoing, at, why in zip(messages, died, why_not, strict=True)
        ]
        try:
            found = wire.call(lambda: wire.send(replay, arguments))
        except JobRefusals as refused:
            raise refused.explain(_WHY_NOT) from None
        answers: dict[int, str] = {}
        for outgoing, answer in zip(messages, found, strict=True):
            answers.setdefault(outgoing.token, ANSWERS[answer])
        return answers

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(
            "Jobs sent to Sidekiq cannot be withdrawn: they wait in their queue until they run. Nothing was changed."
        )

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        """Remove the dead jobs whose time of death is known."""
        wire = self._wire
        wire.refuse_read_only()
        jobs = [one for one in jobs if one.queue and is_jid(one.job_id)]
        died = wire.call(lambda: wire.latest_deaths([job_member(one.queue, one.job_id) for one in jobs]))
        known = [(ref, at) for ref, at in zip(jobs, died, strict=True) if at is not None]
        removed: set[Ref] = set()
        for start in range(0, len(known), _MESSAGES_PER_CALL):
            part = known[start : start + _MESSAGES_PER_CALL]
            targets = [(at, ref.job_id) for ref, at in part]
            answers = wire.call(lambda targets=targets: wire.find("dead", targets, remove=True)).answers  # type: ignore[misc]
            removed |= {ref for (ref, _), answer in zip(part, answers, strict=True) if answer == 1}
        return removed

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused("Retries of Sidekiq cannot be rescheduled here. Nothing was changed.")

    # Content of a captured message

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        args = _read(raw).fields["args"]
        if not isinstance(args, list):
            raise SourceRefused("The arguments of this job are not a list.")
        return args, {}

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        raise SourceRefused(_NO_EDIT)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return headers_of(_read(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        """Return whether the job is in a batch (Sidekiq Pro), whose callbacks wait for it."""
        return bool(Job.read(raw).fields.get("bid"))

    def expires_at(self, raw: bytes) -> datetime | None:
        return None

    def close(self) -> None:
        self._wire.client.close()


def _read(raw: bytes) -> Job:
    job = Job.read(raw)
    if not job.fields:
        raise SourceRefused(_NOT_JSON)
    return job
