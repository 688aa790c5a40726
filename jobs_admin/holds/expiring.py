"""A pause that was for a time ends, and the store is repaired."""

from __future__ import annotations

from datetime import datetime

from jobs_admin.holds import pausing, pushing


def step(now: datetime) -> bool:
    """One round of `watch`. Return whether there was something to do."""
    ended = pausing.expire(now)
    return pushing.push() or ended
