"""Bull 3 and 4 on Redis: the adapter of BullMQ, without a stream of events.

A failed job is sent as by `job.retry()`, with Bull's own script, in one step with our ledger. An absent one may have
been retried by someone and have run, of which Bull stores nothing: it is restored only if a discard here removed it.
"""

from __future__ import annotations

from dataclasses import replace

from jobs_admin.core.lint.options import EXPONENTIAL, EXPONENTIAL_OF_BULL, FoundOptions, Options
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.sources.bull.wire import BullWire
from jobs_admin.sources.bullmq.job_hash import Message
from jobs_admin.sources.bullmq.source import BullmqOnRedis


class BullOnRedis(BullmqOnRedis):
    """A `sources.PulledSource`. Options: docs/sources/bull.md."""

    can = replace(BullmqOnRedis.can, redirect=False, priority=False)
    _connect = BullWire
    _options = frozenset({"prefix", "outcome_within_s", "every_s", "tenant"})
    _per_call = 20

    def _may_be_new(self, outgoing: OutgoingMessage, message: Message, lost_at: int | None) -> bool:
        """Return whether the job may be absent, and is restored from its stored copy."""
        if not outgoing.was_removed:
            return False
        record = f"{self._wire.sent_key(outgoing.queue)}{outgoing.job_id}:removed"
        return self._wire.call(lambda: self._wire.client.get(record)) == message.fields.get(b"timestamp", b"")

    def found_options(self) -> FoundOptions:
        found = super().found_options()
        return replace(found, options=tuple(_of_bull(one) for one in found.options))


def _of_bull(options: Options) -> Options:
    """Return options as Bull applies them: without jitter, and jobs with a priority before those without."""
    backoff = EXPONENTIAL_OF_BULL if options.backoff == EXPONENTIAL else options.backoff
    return replace(options, backoff=backoff, jitter=0.0, without_priority=0, with_priority=0, first_priority=0)
