"""Checked configuration of a RabbitMQ source, and discovery of its dead-letter queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.amqp.management import QueueState
from jobs_admin.sources.base import SourceRefused, refuse_unknown_options
from jobs_admin.sources.rabbitmq.death import HeaderNames
from jobs_admin.sources.rabbitmq.reading import DeadQueue

_MODES = ("mirror", "drain")
_LONGEST_NAME = 255
_OPTIONS = {"mode", "dead_letter_queues", "management_url", "error_headers", "task_headers", "confirm_within_s", "ssl"}


@dataclass(frozen=True, slots=True)
class Settings:
    dead: tuple[DeadQueue, ...]  # empty: discovered with the management plugin
    is_drained: bool  # for discovered queues
    words: HeaderNames
    confirm_within_s: float
    management_url: str
    ssl: Any

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> Settings:
        """Check the options of a source. Raises SourceRefused, with a sentence."""
        refuse_unknown_options(name, options, _OPTIONS)
        mode = _mode(name, options.get("mode", "mirror"))
        listed = options.get("dead_letter_queues", [])
        if not isinstance(listed, list | tuple):
            raise SourceRefused(f'Source {name}: dead_letter_queues is a list, such as ["webhooks.dlq"].')
        dead = tuple(_dead_queue(name, one, mode) for one in listed)
        url = str(options.get("management_url") or "")
        if not dead and not url:
            raise SourceRefused(
                f'Source {name}: name its dead-letter queues (dead_letter_queues = ["webhooks.dlq"]), or give a '
                "management_url by which they are found: RabbitMQ itself cannot list its queues."
            )
        if len({one.name for one in dead}) < len(dead):
            raise SourceRefused(f"Source {name}: dead_letter_queues names one of them twice.")
        words = HeaderNames(_names(name, options, "error_headers"), _names(name, options, "task_headers"))
        return cls(dead, mode == "drain", words, _seconds(name, options), url, options.get("ssl") or False)


def _mode(name: str, value: Any) -> str:
    if value not in _MODES:
        raise SourceRefused(f'Source {name}: mode is "mirror" or "drain", not {str(value)[:40]!r}.')
    return str(value)


def _dead_queue(name: str, value: Any, mode: str) -> DeadQueue:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or set(table) - {"name", "of", "mode"} or not isinstance(table.get("name"), str):
        raise SourceRefused(
            f'Source {name}: a dead-letter queue is a name, or {{name = "webhooks.dlq", of = "webhooks", mode = "drain"}}.'
        )
    of = table.get("of", "")
    if not isinstance(of, str) or not 0 < len(table["name"].encode(errors="replace")) <= _LONGEST_NAME:
        raise SourceRefused(f"Source {name}: a queue's name is text of 1 to {_LONGEST_NAME} bytes.")
    if of == table["name"]:
        raise SourceRefused(f"Source {name}: {of[:100]} cannot hold the dead letters of itself.")
    return DeadQueue(table["name"], of, _mode(name, table.get("mode", mode)) == "drain")


def _names(name: str, options: Mapping[str, Any], option: str) -> tuple[str, ...]:
    value = options.get(option, [])
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise SourceRefused(f'Source {name}: {option} is a list of names of headers, such as ["x-error"].')
    return tuple(value)


def _seconds(name: str, options: Mapping[str, Any]) -> float:
    value = options.get("confirm_within_s", 10)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 600:
        raise SourceRefused(f"Source {name}: confirm_within_s is a number of seconds, up to 600.")
    return float(value)


def find_dead_queues(
    states: Mapping[str, QueueState], bindings: list[tuple[str, str]], is_drained: bool
) -> tuple[DeadQueue, ...]:
    """Return the queues that receive other queues' dead letters and do not pass them on.

    Never a queue in which jobs wait for a retry, nor one in which they then run: removing dead letters there would take
    jobs from their workers. So queues fed only by queues with a time to live, and queues with a consumer, are excluded.
    Those of Dramatiq have a source of their own, which knows its messages.
    """
    dramatiq = set(dramatiq_queues(states))
    targets = {queue: _targets(queue, one, states, bindings) for queue, one in states.items()}
    origins: dict[str, set[str]] = {}
    for queue, one in states.items():
        for target in targets[queue] if one.settings.get("message-ttl") is None else ():
            origins.setdefault(target, set()).add(queue)
    return tuple(
        DeadQueue(name, next(iter(of)) if len(of) == 1 else "", is_drained)
        for name, of in sorted(origins.items())
        if not targets[name] and not states[name].consumers and not _hands_on(states[name])
        if name.removesuffix(".XQ") not in dramatiq
    )


def dramatiq_queues(states: Mapping[str, QueueState]) -> tuple[str, ...]:
    """Return the queues of Dramatiq: those with a delay queue NAME.DQ and a dead-letter queue NAME.XQ."""
    return tuple(name for name in sorted(states) if f"{name}.DQ" in states and f"{name}.XQ" in states)


def _targets(
    queue: str, one: QueueState, states: Mapping[str, QueueState], bindings: list[tuple[str, str]]
) -> set[str]:
    """Return the other queues that receive its dead letters."""
    exchange = one.settings.get("dead-letter-exchange")
    if exchange is None:
        return set()
    key = one.settings.get("dead-letter-routing-key")
    bound = [key or queue] if exchange == "" else [to for source, to in bindings if source == exchange]
    return {target for target in bound if target in states and target != queue}


def _hands_on(one: QueueState) -> bool:
    return one.settings.get("dead-letter-exchange") is not None and one.settings.get("message-ttl") is not None
