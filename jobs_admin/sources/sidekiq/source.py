"""Sidekiq 5 to 8 on Redis, read only: its dead set, its retries and its queues.

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
from jobs_admin.sources.ledger import AtomicLedger
from jobs_admin.sources.one_redis import seconds_option, tenant_option
from jobs_admin.sources.sidekiq.findings import collect_findings
from jobs_admin.sources.sidekiq.job_changes import find_changes
from jobs_admin.sources.sidekiq.message import Job
from jobs_admin.sources.sidekiq.reading import Reading
from jobs_admin.sources.sidekiq.reports import headers_of
from jobs_admin.sources.sidekiq.wire import Wire

_OPTIONS = {"namespace", "dead_max_jobs", "dead_timeout_s", "every_s", "tenant"}
_READ_ONLY = "Sidekiq is only read: retry and delete its jobs in Sidekiq. Nothing was changed."
_NOT_JSON = "This entry is not a job of Sidekiq's."


class Sidekiq(AtomicLedger):
    """A `sources.PulledSource`. Options: docs/sources/sidekiq.md."""

    can = Capabilities(replay=False, holds_dead=True)
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

    # Sending and removal: none

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        raise SourceRefused(_READ_ONLY)

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused(_READ_ONLY)

    def remove(self, jobs: Sequence[Ref]) -> set[Ref]:
        raise SourceRefused(_READ_ONLY)

    def reschedule(self, changes: Sequence[Rescheduled]) -> set[Ref]:
        raise SourceRefused(_READ_ONLY)

    # Content of a captured message

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        args = _read(raw).fields["args"]
        if not isinstance(args, list):
            raise SourceRefused("The arguments of this job are not a list.")
        return args, {}

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        raise SourceRefused(_READ_ONLY)

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
