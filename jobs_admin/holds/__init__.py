"""Holds: jobs that wait without spending an attempt, by operators' pauses and by breakers.

A pause (of a queue, task, tenant or dependency) is audited, and written to the store as one document per source, which
guarded workers read every second; their heartbeats show where it is in force. Breakers are documents that workers write
there; the desk reads them, forces them for an operator, and records their transitions.
"""

from jobs_admin.holds.in_force import Place, pauses_of
from jobs_admin.holds.pausing import (
    AT_ONCE,
    CAREFUL,
    PACES,
    is_open,
    listing,
    may_resume,
    pause,
    resume,
    step,
    why_not_pausable,
)
from jobs_admin.holds.reach import Reach, reach

__all__ = [
    "AT_ONCE",
    "CAREFUL",
    "PACES",
    "Place",
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
