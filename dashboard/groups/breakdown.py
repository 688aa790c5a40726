"""Open groups by queue, tenant or release: the rows of the page."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.groups.listing import trend_words
from dashboard.web import links
from dashboard.web.figures import ago, number, percent
from dashboard.web.pictures import sparkline
from dashboard.web.text import visible
from jobs_admin.core import query as language
from jobs_admin.failures.open_by import OpenBy, OpenRow


class ByLine(TypedDict):
    value: str
    url: str  # empty where no search says it: jobs that name none
    open: str  # how many, of those that were looked at
    open_part: str  # what part of them; empty where all were counted
    dead: str
    dead_url: str
    groups: str
    groups_url: str
    worst: str
    worst_message: str
    worst_url: str
    worst_part: str  # of its open jobs
    trend: str
    first_heard: str
    last_seen: str


_NONE = {"queue": "no queue", "tenant": "no tenant", "release": "no release"}


def lines(found: OpenBy, name: str, now: datetime) -> list[ByLine]:
    return [_line(row, found, name, now) for row in found.rows]


def _line(row: OpenRow, found: OpenBy, name: str, now: datetime) -> ByLine:
    is_complete, total = found.counted_over is None, found.open or 1

    named = {name: row.value}
    groups = (
        f"{reverse('redrive:group-list')}?{urlencode({'q': language.qualifier(name, row.value)})}"
        if name == "queue"
        else ""
    )
    return ByLine(
        value=visible(row.value) if row.value else _NONE[name],
        url=links.failures_of(**named) if row.value else "",
        open=number(row.open),
        open_part="" if is_complete else percent(row.open / total),
        dead=number(row.dead) if row.dead else "",
        dead_url=links.failures_of(**named, state="dead") if row.value else "",
        groups=number(row.groups),
        groups_url=groups,
        worst=visible(row.worst.error_type) if row.worst else "",
        worst_message=visible(row.worst.message) if row.worst else "",
        worst_url=links.group_page(row.worst.name) if row.worst else "",
        worst_part=percent(row.worst_open / row.open) if row.worst and row.open else "",
        trend=sparkline(row.trend, trend_words(row.trend)) if row.trend else "",
        first_heard=ago(row.first_heard, now) if row.first_heard else "",
        last_seen=ago(row.last_seen, now) if row.last_seen else "",
    )
