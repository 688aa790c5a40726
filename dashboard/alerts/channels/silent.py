"""Disabled channels, with the time and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboard.web.links import url_of
from jobs_admin.models import Channel

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    since: datetime | None
    why: str  # as it goes on after a colon; empty for whoever may not know where it leads
    url: str


@dataclass(frozen=True, slots=True)
class Silent:
    lines: list[Line]
    more: int
    all_url: str


def silent(channels: Sequence[Channel], *, sees: bool) -> Silent:
    """`sees`: whether the reader may know what came back from there."""
    shown = [
        Line(
            one.name,
            one.disabled_at,
            _as_clause(one.why_disabled) if sees else "",
            url_of("redrive:channel-detail", one.pk),
        )
        for one in channels[:SHOWN]
    ]
    return Silent(shown, max(0, len(channels) - SHOWN), url_of("redrive:channel-list"))


def _as_clause(reason: str) -> str:
    """Return a sentence as the end of another: `The endpoint answered 410 (gone).` becomes `the endpoint answered 410 (gone)`."""
    reason = reason.strip().rstrip(".")
    return reason[:1].lower() + reason[1:] if reason[:3] in ("It ", "The") else reason
