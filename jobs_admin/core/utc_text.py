"""The time of day as sentences and pages say it, in UTC: minutes ago may have been another day."""

from __future__ import annotations

from datetime import datetime, timezone


def dated(at: datetime, beside: datetime, with_seconds: bool = False) -> str:
    """20 Nov 02:07, or 20 Nov 2024 02:07 where `beside` (now) is of another year: for texts that may be read on another day."""
    at, beside = at.astimezone(timezone.utc), beside.astimezone(timezone.utc)
    day = "%-d %b" if at.year == beside.year else "%-d %b %Y"
    return at.strftime(f"{day} %H:%M:%S" if with_seconds else f"{day} %H:%M")


def clock(at: datetime, beside: datetime, with_seconds: bool = False) -> str:
    """02:07 where the day is that of `beside` (now, or the start of the period shown), else 20 Nov 02:07."""
    at = at.astimezone(timezone.utc)
    time = "%H:%M:%S" if with_seconds else "%H:%M"
    return at.strftime(time if at.date() == beside.astimezone(timezone.utc).date() else f"%-d %b {time}")
