"""Abilities of each source, from its adapter: missing ones as a sentence, and the priority levels of its jobs.

The meaning of a priority number depends on the queue system. For planning and display.
"""

from __future__ import annotations

from django.db.models import Q

from jobs_admin import config
from jobs_admin.core import priority
from jobs_admin.core.priority import REDIS, Scale
from jobs_admin.sources import SYSTEMS
from jobs_admin.sources.base import Capabilities, SourceRefused

# Ability -> the effect if a source lacks it; {0} is its name.
_WITHOUT = {
    "replay": "Nothing can be sent to {0}.",
    "edit": "{0} can only send jobs unchanged: arguments cannot be edited.",
    "redirect": "{0} can only send jobs to the queue that they came from.",
    "same_id": "{0} gives each run a new job ID.",
    "attempts": "{0} cannot set how many attempts a job has made.",
    "priority": "{0} cannot set priorities: each job keeps its own.",
    "recall": "Jobs sent to {0} cannot be withdrawn.",
    "outcomes": "{0} does not report outcomes.",
    "remove": "{0} keeps jobs that are discarded here.",
}


def capabilities(source: str) -> Capabilities | None:
    """Return the capabilities of a source; None if unknown: it is not configured here, or its address is unusable."""
    try:
        return config.adapter(source).can
    except (KeyError, SourceRefused):
        return None


def missing_ability(source: str, ability: str) -> str:
    """Return the effect of a missing ability as a sentence; "" if it is present or unknown."""
    can = capabilities(source)
    if can is None or getattr(can, ability):
        return ""
    if ability == "same_id" and can.in_place:
        return f"Jobs of {source} always keep their ID."
    return _WITHOUT[ability].format(source)


def system_name(backend: str) -> str:
    """Return the display name of a source's queue system."""
    return SYSTEMS[backend].label if backend in SYSTEMS else backend


def scale_of(source: str) -> Scale:
    """Return the priority scale of a source; for an unconfigured one, that of Celery on Redis, which is tested most."""
    found = config.sources().get(source)
    return found.system.priorities(found.url) if found is not None else REDIS


def level_of(source: str, number: int | None) -> str | None:
    return None if number is None else priority.level(number, scale_of(source))


def priority_text(source: str, number: int | None) -> str:
    """Return `3, high`; "" for a job without a priority. On Redis every job has one, and 0 is the default."""
    if number is None:
        return ""
    if number == 0:
        return "0, default"
    level = level_of(source, number)
    return f"{number}, {level}" if level else str(number)


def of_levels(levels: list[str]) -> Q:
    """Return the condition of failures whose job has one of these levels."""
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
