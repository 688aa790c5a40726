"""Adapter of Celery on a RabbitMQ broker.

Sending is in `amqp/sender.py`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import amqp
from amqp.exceptions import AMQPError

from jobs_admin.core import amqp as core_amqp
from jobs_admin.sources.amqp.management import QueueState
from jobs_admin.sources.amqp.sender import LARGEST_HEADERS, Message, Sender, management
from jobs_admin.sources.base import (
    Capabilities,
    Depth,
    Finding,
    OutgoingMessage,
    SourceRefused,
    SourceSettings,
    SourceUnreachable,
)
from jobs_admin.sources.celery import message as celery_message
from jobs_admin.sources.celery import workers as celery_workers
from jobs_admin.sources.ledger import Ledger, StoreLedger

__all__ = ["CeleryOnRabbitMQ"]

_QUEUES_FOR_S = 60


class CeleryOnRabbitMQ(celery_message.Reader, StoreLedger):
    """A `sources.Source`. Options: `management_url`, `ssl`, `confirm_within_s`, `outcome_within_s`."""

    can = Capabilities(edit=True, outcomes=True, redirect=True, same_id=True, attempts=True, priority=True)

    def __init__(self, given: SourceSettings) -> None:
        name, url, options = given.name, given.url, given.options
        self.name = name
        self.outcome_within_s = float(options.get("outcome_within_s", 3600))
        self._queues = tuple(given.queues)
        self._url = url
        self._ssl = options.get("ssl") or False
        self._ledger = Ledger(name, given.store, given.store_prefix)
        self._sender = Sender(name, url, self._ssl, self._ledger, float(options.get("confirm_within_s", 10)))
        self._management = management(name, url, str(options.get("management_url") or ""))
        self._asks_workers = options.get("guard", True) is not False  # the query declares a queue
        self._found: tuple[float, set[str]] | None = None

    # Reading

    def depths(self) -> list[Depth]:
        """Return the depths of all known queues, by name. Raises SourceUnreachable."""
        states = self._queue_states()
        with self._sender.wire() as wire:
            names = sorted(self._queues or self._discovered(states))
            return [
                Depth(name, waiting=wire.depth(name), active=states[name].unacknowledged if name in states else None)
                for name in names
            ]

    def waiting(self, queues: Sequence[str]) -> dict[str, int | None]:
        """See `base.Source`; one round trip per queue. Excludes messages that a worker has fetched."""
        with self._sender.wire() as wire:
            return {queue: wire.depth(queue) for queue in queues}

    def _queue_states(self) -> dict[str, QueueState]:
        """Return states from the management plugin; none without it or its answer, which `findings` reports."""
        try:
            return self._management.queues() if self._management else {}
        except SourceUnreachable:
            return {}

    def _discovered(self, states: Mapping[str, QueueState]) -> set[str]:
        """Return queues that workers consume or the management plugin lists, and all found earlier."""
        here = {name for name, one in states.items() if one.is_ours}
        before = self._found[1] if self._found else set()
        if self._found is None or time.monotonic() - self._found[0] > _QUEUES_FOR_S:
            self._found = (
                time.monotonic(),
                before | set((self.workers() or ()) if self._asks_workers else ("celery",)),
            )
        return self._found[1] | here

    def workers(self) -> dict[str, set[str]] | None:
        """See `base.Source`."""
        return celery_workers.consumers(self._url, {"max_retries": 1}, self._ssl)

    def findings(self) -> list[Finding]:
        """Return settings of RabbitMQ that lose jobs. Raises SourceUnreachable."""
        with self._sender.wire() as wire:
            wire.prove()
            gone = [queue for queue in self._queues if not wire.has(queue)]
        found = [
            Finding(
                "queue-missing",
                "warning",
                f"There is no queue {queue} here: what is sent there is refused.",
                "Start a worker that consumes it, or take it out of this source's queues.",
            )
            for queue in gone
        ]
        if self._management is None:
            return found
        try:
            states = self._management.queues()
        except SourceUnreachable as error:
            fix = "Look at management_url of this source. Without it, how many jobs workers hold is not known."
            return [*found, Finding("management", "warning", str(error), fix)]
        for queue in sorted(states):
            if states[queue].is_ours and (not self._queues or queue in self._queues):
                found += _about(queue, states[queue].settings)
        return found

    # Sending

    def epoch(self, replay: str) -> str:
        return self._sender.epoch(replay)

    def send(self, replay: str, messages: Sequence[OutgoingMessage]) -> dict[int, str]:
        """See `base.Source`. All messages are built before the first is sent."""
        ready: dict[int, Message] = {}
        for outgoing in messages:
            ready.setdefault(outgoing.token, (outgoing.queue, _message(outgoing, replay)))
        return self._sender.send(replay, ready)

    def recall(self, replay: str, queues: Sequence[str]) -> Iterator[set[int]]:
        raise SourceRefused("RabbitMQ gives no message back by its name: what was sent runs. Nothing was changed.")

    def close(self) -> None:
        self._sender.close()


def _message(outgoing: OutgoingMessage, replay: str) -> amqp.Message:
    """Build the AMQP message to publish. Raises SourceRefused (with the token)."""
    # The guard checks each token once; see `worker/once.py`.
    once = replace(outgoing, lineage={**outgoing.lineage, "item": outgoing.token, "once": True})
    _, made = celery_message.renew(once, replay)
    try:
        parts = core_amqp.parts(made)
        message = amqp.Message(parts.body, application_headers=parts.headers, **parts.properties)
        size = len(message._serialize_properties())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error, AMQPError) as error:
        raise SourceRefused("The message cannot be written for RabbitMQ. Nothing was sent.", outgoing.token) from error
    if size > LARGEST_HEADERS:
        raise SourceRefused(
            f"Its headers have {size:,} bytes, more than RabbitMQ takes. Nothing was sent.", outgoing.token
        )
    return message


def _about(queue: str, settings: Mapping[str, Any]) -> list[Finding]:
    found = []
    bound = next((name for name in ("max-length", "max-length-bytes") if settings.get(name) is not None), None)
    refuses_new = settings.get("overflow") in ("reject-publish", "reject-publish-dlx")
    if bound and not refuses_new:
        found.append(
            Finding(
                "drops-oldest",
                "high",
                f"The queue {queue} is bounded ({bound} {settings[bound]}): when it is full, RabbitMQ drops the oldest jobs.",
                "Set its overflow to reject-publish, or take the bound away.",
            )
        )
    if settings.get("message-ttl") is not None:
        found.append(
            Finding(
                "drops-late",
                "warning",
                f"Jobs that wait in {queue} for longer than {settings['message-ttl']} ms are taken out by RabbitMQ.",
                "Take message-ttl away, unless that is meant.",
            )
        )
    if settings.get("queue-type", settings.get("type")) == "quorum" and settings.get("delivery-limit") is not None:
        found.append(
            Finding(
                "delivery-limit",
                "info",
                f"A job in {queue} that was delivered {settings['delivery-limit']} times is taken out by RabbitMQ.",
                "A policy's poison counts crashes and keeps the job, where you want it to be seen here.",
            )
        )
    return found
