"""Findings on RabbitMQ settings that lose dead letters, or prevent Redrive from reading or sending them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError

from jobs_admin.core.text import list_some
from jobs_admin.sources.amqp import wire as amqp_reading
from jobs_admin.sources.amqp.management import Management, QueueState
from jobs_admin.sources.amqp.wire import Wire
from jobs_admin.sources.base import READ_ONLY, Finding, SourceUnreachable
from jobs_admin.sources.rabbitmq.reading import MOST_UNACKNOWLEDGED, DeadQueue, dropping_setting

_KNOWN_VERSIONS = ("3.", "4.")


def queue_type(wire: Wire, queue: str, management: Management | None) -> str:
    """Return the type of a queue: `classic`, `quorum`, `stream` …; "" if unknown.

    Raises like `Wire`, and SourceUnreachable.
    """
    kind = amqp_reading.read_settings(wire, queue).get("queue-type")
    if not kind and management is not None:
        state = management.queues().get(queue)
        kind = state.settings.get("queue-type") or state.settings.get("type") if state else ""
    return str(kind or "")


def collect_findings(
    source: str, wire: Wire, dead: Sequence[DeadQueue], management: Management | None, where: str
) -> list[Finding]:
    """Return the findings of one source. Raises like `Wire`."""
    findings = _rights(wire, where)
    states: dict[str, QueueState] = {}
    if management is None:
        findings.append(
            Finding(
                "no-management",
                "info",
                "Without RabbitMQ's management plugin, removals of dead letters by others go unnoticed: they stay dead here.",
                f"Give management_url in [sources.{source}] of sources.toml.",
            )
        )
    else:
        try:
            states = management.queues()
        except SourceUnreachable as error:
            findings.append(Finding("management", "warning", str(error), "Look at management_url of this source."))
    for queue in dead:
        findings += _about(wire, queue, states.get(queue.name))
    if not dead:
        findings.append(
            Finding(
                "no-dead-letter-queues",
                "warning",
                "No queue here is the target of another one's dead letters, so nothing is read.",
                f"Name them: dead_letter_queues in [sources.{source}] of sources.toml.",
            )
        )
    return findings


def unread_dramatiq(queues: Sequence[str]) -> list[Finding]:
    """Return the finding on dead-letter queues of Dramatiq, which a RabbitMQ source does not discover."""
    if not queues:
        return []
    names = list_some([f"{queue[:60]}.XQ" for queue in queues], 5)
    text = f"Dead-letter queues of Dramatiq are not read by this source: {names}."
    fix = 'Add a source with backend = "dramatiq" and this URL. Or name them in dead_letter_queues.'
    return [Finding("dramatiq-queues", "warning", text, fix)]


def why_unknown(wire: Wire, where: str) -> str:
    """Return why nothing is changed in this server; "" for a known version."""
    product, version = wire.server
    if product == "RabbitMQ" and version.startswith(_KNOWN_VERSIONS):
        return ""
    return (
        f"{where} is {product[:40]} {version[:20]}, which is not known here: nothing is taken out of it, or sent to it."
    )


def _rights(wire: Wire, where: str) -> list[Finding]:
    if why := why_unknown(wire, where):
        return [Finding(READ_ONLY, "high", why, "Upgrade Redrive, or name a RabbitMQ 3 or 4.")]
    try:
        wire.prove()
    except AccessRefused:
        text = f"{where} lets this user publish nothing, so nothing can be replayed."
        fix = "Give the user the right to write to amq.default (rabbitmqctl set_permissions)."
        return [Finding(READ_ONLY, "high", text, fix)]
    return []


def _about(wire: Wire, queue: DeadQueue, state: QueueState | None) -> list[Finding]:
    name = queue.name
    if not wire.has(name):
        return [
            Finding(
                "queue-missing",
                "warning",
                f"There is no queue {name} here.",
                "Correct dead_letter_queues, or declare the queue.",
            )
        ]
    settings: Mapping[str, Any] = amqp_reading.read_settings(wire, name) | (state.settings if state else {})
    kind = str(settings.get("queue-type") or settings.get("type") or "")
    findings = _reading(queue, kind, settings)
    if not _may_read(wire, name, kind):
        findings.append(
            Finding(
                "unreadable",
                "high",
                f"This user may not read {name}: its dead letters are counted only.",
                "Give the user the right to read it (rabbitmqctl set_permissions).",
            )
        )
    if setting := dropping_setting(settings):
        findings.append(
            Finding(
                "dead-letters-vanish",
                "high",
                f"RabbitMQ removes dead letters from {name} automatically ({setting}): some may vanish before they are read.",
                "Take that setting away, or drain the queue: what is drained is kept here.",
            )
        )
    if not queue.is_drained and kind == "classic" and (wire.depth(name) or 0) > MOST_UNACKNOWLEDGED:
        findings.append(
            Finding(
                "too-deep",
                "warning",
                f"{name} holds more than {MOST_UNACKNOWLEDGED:,} dead letters: those behind are counted, and not read.",
                'Drain it (mode = "drain").',
            )
        )
    return findings


def _reading(queue: DeadQueue, kind: str, settings: Mapping[str, Any]) -> list[Finding]:
    name = queue.name
    limit = settings.get("delivery-limit")
    if kind == "stream":
        text = f"{name} is a stream, which hands out no single messages: it is counted only."
        return [Finding("never-peeked", "warning", text, "Dead-letter into a classic or quorum queue.")]
    if kind == "quorum" and not queue.is_drained:
        drop = f", and after {limit} it drops the message" if limit is not None else ""
        text = f"{name} is a quorum queue: each look counts as a delivery{drop}. So it is never looked into; it is counted only."
        fix = (
            'Drain it ({name = "…", mode = "drain"}): its dead letters are then kept here; or make it a classic queue.'
        )
        return [Finding("never-peeked", "warning", text, fix)]
    if kind == "quorum" and limit is not None:
        text = (
            f"{name} drops a message that was handed out {limit} times and not acknowledged: as often as a drain may die "
            "with it, or cannot store it for half an hour."
        )
        return [Finding("delivery-limit", "info", text, "Take the limit off queues of dead letters.")]
    if not kind and not queue.is_drained:
        text = (
            f"The type of queue {name} is unknown, so its messages are only counted: reading a quorum queue changes it."
        )
        fix = (
            "Give this user the right to configure the queue (nothing is configured), or a management_url; or drain it."
        )
        return [Finding("never-peeked", "warning", text, fix)]
    return []


def _may_read(wire: Wire, queue: str, kind: str) -> bool:
    """Return whether this user may read the queue, tested by fetching and returning its first message (classic
    queues only).
    """
    if kind != "classic":
        return True
    channel = wire.channel()
    try:
        channel.basic_get(queue)
    except AccessRefused:
        return False
    except AMQPError:
        if not wire.is_open:
            raise
    finally:
        if wire.is_open:
            channel.close()
    return True
