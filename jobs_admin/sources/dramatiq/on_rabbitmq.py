"""Dramatiq 1.18 and 2 on RabbitMQ: its dead-letter queues (`NAME.XQ`) are drained, as those of a RabbitMQ source are.

A message is sent to its own queue (`NAME`) with a new id, and the lineage among its options: Dramatiq keeps these in
each retry, but no headers of AMQP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from jobs_admin.core.envelope import Envelope
from jobs_admin.sources.amqp.management import Management, QueueState
from jobs_admin.sources.amqp.wire import Written
from jobs_admin.sources.base import (
    Capabilities,
    Depth,
    Finding,
    OutgoingMessage,
    SourceRefused,
    SourceSettings,
    SourceUnreachable,
    refuse_unknown_options,
)
from jobs_admin.sources.dramatiq.message import Message, read_arguments, read_known, rewritten
from jobs_admin.sources.dramatiq.reports import build_report, headers_of
from jobs_admin.sources.dramatiq.wire import StoredMessage
from jobs_admin.sources.one_redis import tenant_option
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from jobs_admin.sources.rabbitmq import settings as rabbitmq_settings
from jobs_admin.sources.rabbitmq.death import DeadLetter, Death, RawMessage
from jobs_admin.sources.rabbitmq.messages import StoredMessage as StoredAMQP
from jobs_admin.sources.rabbitmq.reading import DeadQueue, NamedMessage
from jobs_admin.sources.rabbitmq.source import RabbitMQ

_OPTIONS = {"management_url", "confirm_within_s", "ssl", "tenant"}
_OF_RABBITMQ = _OPTIONS - {"tenant"}
_LONGEST_NAME = 200  # characters of a queue: a failure stores no more
_LONGEST_BASE = 160  # characters of a message's id in that of a job
_SUFFIXES = (".DQ", ".XQ")
_BY_RABBITMQ = ("expired", "maxlen", "delivery_limit")  # causes of death other than an error
# Findings of a RabbitMQ source that are always there for Dramatiq's queues, and are no fault.
_EXPECTED = ("no-management", "dead-letters-vanish")


class DramatiqOnRabbitMQ(RabbitMQ):
    """A `sources.PulledSource`. Options: docs/sources/dramatiq.md."""

    can = Capabilities(edit=True, redirect=True, attempts=True, holds_dead=True)

    def __init__(self, given: SourceSettings) -> None:
        """Raises SourceRefused, with a sentence, for unusable options."""
        self._tenant_paths = tenant_option(given.name, given.options.get("tenant", ()))
        self._too_long: tuple[str, ...] = ()
        super().__init__(given)

    def _read_settings(self, given: SourceSettings) -> rabbitmq_settings.Settings:
        name, options = given.name, given.options
        refuse_unknown_options(name, options, _OPTIONS)
        if not given.queues and not options.get("management_url"):
            raise SourceRefused(
                f'Source {name}: name its queues (queues = ["default"]), or give a management_url by which they are '
                "found: RabbitMQ itself cannot list its queues."
            )
        for queue in given.queues:
            if len(queue) > _LONGEST_NAME:
                raise SourceRefused(f"Source {name}: the name of a queue has at most {_LONGEST_NAME} characters.")
            if queue.endswith(_SUFFIXES):
                raise SourceRefused(
                    f"Source {name}: {queue} belongs to a queue of Dramatiq. Name the queue itself: {queue[:-3]}."
                )
        chosen: dict[str, Any] = {one: options[one] for one in options.keys() & _OF_RABBITMQ}
        chosen["dead_letter_queues"] = [f"{queue}.XQ" for queue in dict.fromkeys(given.queues)]
        found = rabbitmq_settings.Settings.from_options(name, {**chosen, "mode": "drain"})
        return replace(found, dead=tuple(_dead_queue(one.name.removesuffix(".XQ")) for one in found.dead))

    # Queues

    def _find_dead_queues(self, of: Management, states: Mapping[str, QueueState]) -> tuple[DeadQueue, ...]:
        names = rabbitmq_settings.dramatiq_queues(states)
        self._too_long = tuple(name for name in names if len(name) > _LONGEST_NAME)
        return tuple(_dead_queue(name) for name in names if len(name) <= _LONGEST_NAME)

    def depths(self) -> list[Depth]:
        """See `base.Source`. Without an answer of the management plugin, `delayed` is unknown: workers hold delayed messages."""
        depths = super().depths()
        if self._management is None:
            return depths
        try:
            states = self._management.queues()
        except SourceUnreachable:  # reported by `findings`
            return depths
        with self._sender.wire() as wire:
            return [
                replace(one, delayed=_sum(wire.ready(f"{one.queue}.DQ"), states.get(f"{one.queue}.DQ")))
                for one in depths
            ]

    def findings(self) -> list[Finding]:
        """See `RabbitMQ.findings`. Dead letters expire in each dead-letter queue of Dramatiq, and are drained before."""
        found = [self._worded(one) for one in super().findings() if one.id not in _EXPECTED]
        if self._too_long:
            text = f"Queues with names of more than {_LONGEST_NAME} characters are not read: {len(self._too_long)}."
            found.append(Finding("long-queue-name", "warning", text, "Use shorter names of queues."))
        return found

    def _worded(self, one: Finding) -> Finding:
        if one.id == "no-dead-letter-queues":
            text = "No queue of Dramatiq (NAME, NAME.DQ and NAME.XQ) is here, so nothing is read."
            return replace(one, text=text, fix="Start a worker, or correct the URL: its last part is the virtual host.")
        if one.id == "queue-missing":
            return replace(one, fix=f"Correct queues in [sources.{self.name}] of sources.toml, or start a worker.")
        return one

    # Dead letters

    def _report(self, one: NamedMessage, dlq: str, now: float) -> Envelope:
        generic = super()._report(one, dlq, now)
        if one.read.why_unread:
            return generic
        message = Message.read(one.read.found.body)
        died_at = one.read.death.at or (message.failed_ms or 0.0) / 1000
        is_own_run = one.read.lineage is not None and one.read.lineage.sent_as == one.job_id
        stored = StoredMessage(one.read.death.queue, one.job_id, (died_at or now) * 1000, len(message.raw), message)
        report = build_report(
            self.name, stored, "exception", one.read.lineage if is_own_run else None, True, self._tenant_paths
        )
        report = replace(
            report,
            queue=generic.queue,
            job_id=one.job_id,
            priority=generic.priority,
            raw=generic.raw,
            raw_size=generic.raw_size,
            raw_sha256=generic.raw_sha256,
            made_at=None,  # each death has its own id, or is the next run
        )
        if one.read.death.reason not in _BY_RABBITMQ:
            return report
        counted = replace(one, read=replace(one.read, attempt=max(1, one.read.death.deliveries)))
        cause = super()._report(counted, dlq, now)
        return replace(report, kind=cause.kind, error_type=cause.error_type, message=cause.message, trace=cause.trace)

    # Sending

    def _build_message(self, outgoing: OutgoingMessage) -> Written:
        if outgoing.queue.endswith(_SUFFIXES):
            raise SourceRefused(
                f"{outgoing.queue[:100]} belongs to a queue of Dramatiq, where nothing runs: choose the queue itself. "
                "Nothing was sent.",
                outgoing.token,
            )
        return rabbitmq_messages.build_message(outgoing, (), _new_body)

    # Content of a captured message

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return read_arguments(rabbitmq_messages.unpack(raw).body, is_on_redis=False)

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        _read_known(raw)

    def headers(self, raw: bytes) -> dict[str, Any]:
        return headers_of(_read_known(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        """Return whether the callbacks of a group wait for this message."""
        return bool(_read(raw).options.get("group_completion_uuid"))

    def expires_at(self, raw: bytes) -> datetime | None:
        """See `base.Source`. Only a `max_age` in the message is known, not one in the actor's code."""
        return _read(raw).expires_at


def _dead_queue(name: str) -> DeadQueue:
    return DeadQueue(f"{name}.XQ", name, True, _parse)


def _sum(ready: int | None, state: QueueState | None) -> int | None:
    unacknowledged = state.unacknowledged if state is not None else None
    return None if ready is None or unacknowledged is None else ready + unacknowledged


def _parse(found: RawMessage, dlq: str, of: str) -> DeadLetter:
    """Parse a dead letter.

    Each death is a job of its own, named by the message's id and a digest of the death; of a replayed job, a run.
    """
    parsed = rabbitmq_death.parse(found, dlq, of)
    if parsed.why_unread:
        return parsed
    message, death = Message.read(found.body), parsed.death
    lineage = message.lineage
    return replace(
        parsed,
        death=replace(death, queue=of),  # RabbitMQ names the delay queue if a worker rejected it there
        attempt=lineage.run if lineage is not None else 1,
        base=message.id if lineage is not None else f"{message.id[:_LONGEST_BASE]}.{death_digest(of, found, death)}",
        lineage=lineage,
    )


def death_digest(queue: str, found: RawMessage, death: Death) -> str:
    """Return a digest of one death: the same each time that the dead letter is read."""
    digest = hashlib.sha256(found.body)
    digest.update(f"{queue}|{death.at}|{death.count}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]


def _new_body(outgoing: OutgoingMessage, found: StoredAMQP) -> bytes:
    read_known(found.body, is_on_redis=False)
    return rewritten(
        found.body,
        queue=outgoing.queue,
        message_id=outgoing.job_id,
        redis_id=None,
        lineage=outgoing.lineage,
        args=outgoing.args,
        kwargs=outgoing.kwargs,
        retries=outgoing.retries,
    )


def _read_known(raw: bytes) -> Message:
    return read_known(rabbitmq_messages.unpack(raw).body, is_on_redis=False)


def _read(raw: bytes) -> Message:
    """Parse a captured message. Never raises."""
    try:
        return Message.read(rabbitmq_messages.unpack(raw).body)
    except SourceRefused:
        return Message(raw, {})
