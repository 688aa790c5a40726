"""Holds: jobs that wait without an attempt being spent. So far: pauses by hand of a queue or a task.

An operator's pause enters, is audited, and leaves as one document a source in the store, which guarded workers read each
second; their heartbeats show where the pause is in force.
"""

from jobs_admin.holds.pausing import (
    is_open,
    listing,
    may_resume,
    pause,
    pauses_of,
    resume,
    step,
    why_not_pausable,
)
from jobs_admin.holds.reach import Reach, reach

__all__ = [
    "Reach",
    "is_open",
    "listing",
    "may_resume",
    "pause",
    "pauses_of",
    "reach",
    "resume",
    "step",
    "why_not_pausable",
]
