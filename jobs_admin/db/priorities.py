"""Levels of priority as the jobs of each source have them: what a number means depends on the queue system."""

from __future__ import annotations

from django.db.models import Q

from jobs_admin import config
from jobs_admin.core import priority
from jobs_admin.core.priority import BULLMQ, RABBITMQ, REDIS


def system_of(source: str) -> str:
    """A source that is only heard of is taken for Celery on Redis, the one that is tested most."""
    found = config.sources().get(source)
    if found is None:
        return REDIS
    if found.backend == "bullmq":
        return BULLMQ
    return RABBITMQ if found.backend == "rabbitmq" or found.url.startswith(("amqp", "pyamqp")) else REDIS


def level_of(source: str, number: int | None) -> str | None:
    return None if number is None else priority.level(number, system_of(source))


def shown(source: str, number: int | None) -> str:
    """`3, high`; "" where a job has none. On Redis every job has one, and 0 says only that nobody gave it another."""
    if number is None:
        return ""
    if number == 0:
        return "0, the usual one"
    level = level_of(source, number)
    return f"{number}, {level}" if level else str(number)


def of_levels(levels: list[str]) -> Q:
    """Failures whose job has one of these levels."""
    others: dict[str, list[str]] = {}
    for source in config.sources():
        if (system := system_of(source)) != REDIS:
            others.setdefault(system, []).append(source)
    found = _within(levels, REDIS) & ~Q(source__in=[name for names in others.values() for name in names])
    for system, sources in others.items():
        found |= _within(levels, system) & Q(source__in=sources)
    return found


def _within(levels: list[str], system: str) -> Q:
    found = Q(pk__in=[])
    for level in levels:
        least, most = priority.span(level, system)
        one = Q(priority__isnull=False)
        if least is not None:
            one &= Q(priority__gte=least)
        if most is not None:
            one &= Q(priority__lte=most)
        found |= one
    return found


__all__ = ["level_of", "of_levels", "shown", "system_of"]
