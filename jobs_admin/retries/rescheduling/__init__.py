"""Rescheduling of retries that wait in a system which stores them itself: their due time and number of attempts.

An operator plans it: a row with the jobs, the change and the reason. `watch` carries it out in batches, where it reads
the source.
"""

from jobs_admin.retries.rescheduling.carrying import carry_out, is_planned
from jobs_admin.retries.rescheduling.planning import Herd, Line, Preview, find, listing, plan, preview, undo

__all__ = [
    "Herd", "Line", "Preview", "carry_out", "find", "is_planned", "listing", "plan", "preview", "undo",
]  # fmt: skip
