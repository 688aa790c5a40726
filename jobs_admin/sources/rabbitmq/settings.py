"""What is configured of a RabbitMQ source, checked; and which dead-letter queues there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.amqp.management import Told
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rabbitmq.death import Words
from jobs_admin.sources.rabbitmq.reading import DeadQueue

_MODES = ("mirror", "drain")
_LONGEST_NAME = 255
_OPTIONS = {"mode", "dead_letter_queues", "management_url", "error_headers", "task_headers", "confirm_within_s", "ssl"}


@dataclass(frozen=True, slots=True)
class Settings:
    dead: tuple[DeadQueue, ...]  # empty: those that the management tells of
    is_drained: bool  # of those that are found
    words: Words
    confirm_within_s: float
    management_url: str
    ssl: Any

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Settings:
        """Raises SourceRefused, with a sentence."""
        if unknown := set(options) - _OPTIONS:
            known = ", ".join(sorted({*_OPTIONS, "queues"}))
            raise SourceRefused(f"Source {name}: unknown option {min(unknown)!r}; known: {known}.")
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
        words = Words(_names(name, options, "error_headers"), _names(name, options, "task_headers"))
        return cls(dead, mode == "drain", words, _seconds(name, options), url, options.get("ssl") or False)


def _mode(name: str, said: Any) -> str:
    if said not in _MODES:
        raise SourceRefused(f'Source {name}: mode is "mirror" or "drain", not {str(said)[:40]!r}.')
    return str(said)


def _dead_queue(name: str, said: Any, mode: str) -> DeadQueue:
    table = {"name": said} if isinstance(said, str) else said
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
    said = options.get(option, [])
    if not isinstance(said, list | tuple) or not all(isinstance(one, str) and one for one in said):
        raise SourceRefused(f'Source {name}: {option} is a list of names of headers, such as ["x-error"].')
    return tuple(said)


def _seconds(name: str, options: Mapping[str, Any]) -> float:
    said = options.get("confirm_within_s", 10)
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said <= 600:
        raise SourceRefused(f"Source {name}: confirm_within_s is a number of seconds, up to 600.")
    return float(said)


def discovered(told: Mapping[str, Told], bindings: list[tuple[str, str]], is_drained: bool) -> tuple[DeadQueue, ...]:
    """The queues into which RabbitMQ puts what other queues give up, and from which nothing goes on.

    Never one in which jobs wait for their next try, nor the one where they run then: to take dead letters out of those would take jobs
    from their workers. So what only comes out of queues with a time to live is none, and no queue on which somebody works.
    """
    targets = {queue: _targets(queue, one, told, bindings) for queue, one in told.items()}
    origins: dict[str, set[str]] = {}
    for queue, one in told.items():
        for target in targets[queue] if one.settings.get("message-ttl") is None else ():
            origins.setdefault(target, set()).add(queue)
    return tuple(
        DeadQueue(name, next(iter(of)) if len(of) == 1 else "", is_drained)
        for name, of in sorted(origins.items())
        if not targets[name] and not told[name].consumers and not _hands_on(told[name])
    )


def _targets(queue: str, one: Told, told: Mapping[str, Told], bindings: list[tuple[str, str]]) -> set[str]:
    """The other queues into which it gives up messages."""
    exchange = one.settings.get("dead-letter-exchange")
    if exchange is None:
        return set()
    key = one.settings.get("dead-letter-routing-key")
    bound = [key or queue] if exchange == "" else [to for source, to in bindings if source == exchange]
    return {target for target in bound if target in told and target != queue}


def _hands_on(one: Told) -> bool:
    return one.settings.get("dead-letter-exchange") is not None and one.settings.get("message-ttl") is not None
