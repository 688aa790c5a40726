"""The time of day as sentences and pages say it, in UTC: minutes ago may have been another day."""

from __future__ import annotations

from datetime import datetime, timezone


def clock(at: datetime, beside: datetime, with_seconds: bool = False) -> str:
    """02:07 where the day is that of `beside` (now, or the beginning of what is told), else 20 Nov 02:07."""
    at = at.astimezone(timezone.utc)
    time = "%H:%M:%S" if with_seconds else "%H:%M"
    return at.strftime(time if at.date() == beside.astimezone(timezone.utc).date() else f"%-d %b {time}")
