"""Levels of priority as the jobs of each source have them: what a number means depends on the queue system."""

from __future__ import annotations

from django.db.models import Q

from jobs_admin import config
from jobs_admin.core import priority
from jobs_admin.core.priority import REDIS, Scale


def scale_of(source: str) -> Scale:
    """Return the scale of a source; that of Celery on Redis, which is tested most, for one that is only heard of."""
    found = config.sources().get(source)
    return found.system.priorities(found.url) if found is not None else REDIS


def level_of(source: str, number: int | None) -> str | None:
    return None if number is None else priority.level(number, scale_of(source))


def priority_text(source: str, number: int | None) -> str:
    """`3, high`; "" where a job has none. On Redis every job has one, and 0 is the default."""
    if number is None:
        return ""
    if number == 0:
        return "0, default"
    level = level_of(source, number)
    return f"{number}, {level}" if level else str(number)


def of_levels(levels: list[str]) -> Q:
    """Failures whose job has one of these levels."""
    others: dict[Scale, list[str]] = {}
    for source in config.sources():
        if (scale := scale_of(source)) is not REDIS:
            others.setdefault(scale, []).append(source)
    found = _within(levels, REDIS) & ~Q(source__in=[name for names in others.values() for name in names])
    for scale, sources in others.items():
        found |= _within(levels, scale) & Q(source__in=sources)
    return found


def _within(levels: list[str], scale: Scale) -> Q:
    found = Q(pk__in=[])
    for level in levels:
        least, most = priority.span(level, scale)
        one = Q(priority__isnull=False)
        if least is not None:
            one &= Q(priority__gte=least)
        if most is not None:
            one &= Q(priority__lte=most)
        found |= one
    return found


__all__ = ["level_of", "of_levels", "priority_text", "scale_of"]
