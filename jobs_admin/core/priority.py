"""Four priority levels for all queue systems, and each system's numbers for them.

BullMQ's are 1, 3, 5 and 10, as in
https://the-villa-life.pages.dev/reference/decisions/adr-0003-queue-retry-backoff. Systems disagree on the order: Celery
on Redis has a list for each of 0, 3, 6 and 9 and reads that of **0 first** (kombu 5.7, `priority_steps`); in RabbitMQ
the **highest** goes first, up to a queue's `x-max-priority`, and a message without one counts as 0; in BullMQ 1 is the
highest that can be set, and a job without one goes before all of them; in Django Tasks the **highest** of -100 to 100
goes first, and a task without one has 0.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("critical", "high", "medium", "low")


@dataclass(frozen=True, eq=False)
class Scale:
    """Numbers of one queue system: level -> (number sent, minimum and maximum that count as it); None is open."""

    numbers: dict[str, tuple[int, int | None, int | None]]


REDIS = Scale({"critical": (0, None, 2), "high": (3, 3, 5), "medium": (6, 6, 8), "low": (9, 9, None)})
RABBITMQ = Scale({"critical": (9, 9, None), "high": (6, 6, 8), "medium": (3, 3, 5), "low": (0, None, 2)})
BULLMQ = Scale({"critical": (1, 1, 1), "high": (3, 2, 3), "medium": (5, 4, 5), "low": (10, 6, None)})
DJANGO_TASKS = Scale({"critical": (100, 67, None), "high": (50, 1, 66), "medium": (0, -49, 0), "low": (-50, None, -50)})


def number(level: str, scale: Scale) -> int:
    """Return the number that a job of this level is sent with. Raises KeyError for an unknown level."""
    return scale.numbers[level][0]


def level(number: int, scale: Scale) -> str | None:
    """Return the level that a job's number counts as; None for a number that the system does not use."""
    for name, (_, least, most) in scale.numbers.items():
        if (least is None or number >= least) and (most is None or number <= most):
            return name
    return None


def span(level: str, scale: Scale) -> tuple[int | None, int | None]:
    """Return the minimum and maximum of the numbers that count as a level; None is open."""
    _, least, most = scale.numbers[level]
    return least, most
