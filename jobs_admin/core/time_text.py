"""The time of day in sentences and on pages: minutes ago may have been another day. In UTC, or in the zone of a reader."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo


def dated(at: datetime, beside: datetime, with_seconds: bool = False, zone: tzinfo = timezone.utc) -> str:
    """20 Nov 02:07, or 20 Nov 2024 02:07 where `beside` (now) is of another year: for texts that may be read on another day."""
    at, beside = at.astimezone(zone), beside.astimezone(zone)
    day = "%-d %b" if at.year == beside.year else "%-d %b %Y"
    return at.strftime(f"{day} %H:%M:%S" if with_seconds else f"{day} %H:%M")


def clock(at: datetime, beside: datetime, with_seconds: bool = False, zone: tzinfo = timezone.utc) -> str:
    """02:07 where the day is that of `beside` (now, or the start of the period shown), else 20 Nov 02:07."""
    at = at.astimezone(zone)
    time = "%H:%M:%S" if with_seconds else "%H:%M"
    return at.strftime(time if at.date() == beside.astimezone(zone).date() else f"%-d %b {time}")
