"""Retries that wait in a system that keeps them itself: when they are due, and how many attempts they may have.

A person plans it: a row that says which, what, and why. `watch` carries it out, some at a time, where it reads the source.
"""

from jobs_admin.retries.rescheduling.carrying import carry_out, is_planned
from jobs_admin.retries.rescheduling.planning import find, listing, plan, undo
from jobs_admin.retries.rescheduling.previewing import Herd, Line, Preview, preview

__all__ = [
    "Herd", "Line", "Preview", "carry_out", "find", "is_planned", "listing", "plan", "preview", "undo",
]  # fmt: skip
