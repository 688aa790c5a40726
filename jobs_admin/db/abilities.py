"""Abilities of each source, from its adapter, and as a sentence the missing ones. For planning and display."""

from __future__ import annotations

from jobs_admin import config
from jobs_admin.sources import SYSTEMS
from jobs_admin.sources.base import Capabilities, SourceRefused

# Ability -> what is so where a source lacks it; {0} is its name.
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
    """Capabilities of a source; None where they are unknown: it is not configured here, or its address is unusable."""
    try:
        return config.adapter(source).can
    except (KeyError, SourceRefused):
        return None


def missing_ability(source: str, ability: str) -> str:
    """The missing ability, in a sentence; "" where there is none, or where it is not known."""
    can = capabilities(source)
    if can is None or getattr(can, ability):
        return ""
    if ability == "same_id" and can.in_place:
        return f"Jobs of {source} always keep their ID."
    return _WITHOUT[ability].format(source)


def system_name(backend: str) -> str:
    """Display name of a source's queue system."""
    return SYSTEMS[backend].label if backend in SYSTEMS else backend
