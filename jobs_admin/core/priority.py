"""Four levels of priority, the same for all queue systems, and the numbers that each system has for them.

BullMQ's are 1, 3, 5 and 10, as in
https://the-villa-life.pages.dev/reference/decisions/adr-0003-queue-retry-backoff. Systems disagree on
which end comes first: Celery on Redis keeps a list for each of 0, 3, 6 and 9 and reads that of **0 first** (kombu 5.7,
`priority_steps`); in RabbitMQ the **highest** goes first, up to a queue's `x-max-priority`, and a message without one counts
as 0; in BullMQ 1 is the highest that can be given, and a job without one goes before all of them.
"""

from __future__ import annotations

LEVELS = ("critical", "high", "medium", "low")
REDIS, RABBITMQ, BULLMQ = "redis", "rabbitmq", "bullmq"

# System -> level -> (its number, least, most): every number that counts as the level, both ends included, None is open.
_NUMBERS: dict[str, dict[str, tuple[int, int | None, int | None]]] = {
    REDIS: {"critical": (0, None, 2), "high": (3, 3, 5), "medium": (6, 6, 8), "low": (9, 9, None)},
    RABBITMQ: {"critical": (9, 9, None), "high": (6, 6, 8), "medium": (3, 3, 5), "low": (0, None, 2)},
    BULLMQ: {"critical": (1, 1, 1), "high": (3, 2, 3), "medium": (5, 4, 5), "low": (10, 6, None)},
}


def number(level: str, system: str) -> int:
    """What a job of this level is sent with. Raises KeyError for a level or a system that is not known."""
    return _NUMBERS[system][level][0]


def level(number: int, system: str) -> str | None:
    """The level that a job's number counts as; None for a number that the system does not use for any."""
    for name, (_, least, most) in _NUMBERS[system].items():
        if (least is None or number >= least) and (most is None or number <= most):
            return name
    return None


def span(level: str, system: str) -> tuple[int | None, int | None]:
    """Least and most of the numbers that count as a level; None is open."""
    _, least, most = _NUMBERS[system][level]
    return least, most
