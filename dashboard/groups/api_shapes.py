"""API shapes of groups. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from dashboard.web.api.shapes import Count, counts
from jobs_admin.groups import GroupRow
from jobs_admin.groups.group_detail import GroupDetail


class GroupItem(Schema):
    fingerprint: str
    title: str
    error_type: str
    culprit: str
    count: int  # failed attempts; jobs where `is_partial`
    is_partial: bool  # it has failures of sources that the token may not see: per_minute and trend are not told
    dead: int
    per_minute: float | None
    first_seen: datetime
    last_seen: datetime
    state: str
    state_since: datetime | None  # null where it is as it was found
    state_by: str  # empty for the engine
    regressed_after: str  # `replay:12`, `release:2026.11.2`; empty where it is not regressed, or that is not known
    first_release: str
    muted_until: datetime | None
    muted_until_count: int | None  # failed attempts from now that end the mute
    assignee: str | None
    note: str
    runbook_url: str
    queues: list[str]
    tasks: list[str]
    sources: list[str]
    trend: list[int]  # failed attempts in each of the last 24 hours, the oldest first


class GroupDetailItem(GroupItem):
    jobs_by_state: dict[str, int]
    share_of_dead: float
    by_queue: list[Count]
    by_task: list[Count]
    by_tenant: list[Count]
    by_release: list[Count]
    by_host: list[Count]
    counted_over: int | None
    representative: int | None
    url: str


class ChangedGroups(Schema):
    changed: list[str]  # fingerprints
    unchanged: int  # that were so already
    refused: list[str]  # of sources where the token is not operator
    missing: int  # that are not there, or that the token may not see
    receipt: str  # hand it to `undo`


class UndoneGroups(Schema):
    undone: list[str]
    changed_since: list[str]  # left as they are


def group(row: GroupRow | GroupDetail) -> dict[str, Any]:
    found = row.group
    return {
        **{name: getattr(found, name) for name in (
            "fingerprint", "title", "error_type", "culprit", "first_seen", "last_seen", "state", "state_since", "state_by",
            "regressed_after", "first_release", "muted_until", "note", "runbook_url",
        )},
        "muted_until_count": None if (end := found.muted_until_count) is None else max(0, end - found.count),
        "count": row.count,
        "dead": row.dead,
        "is_partial": row.is_partial,
        "per_minute": None if row.per_minute is None else round(row.per_minute, 2),
        "assignee": found.assignee.get_username() if found.assignee else None,
        "queues": _names(row.queues),
        "tasks": _names(row.tasks),
        "sources": _names(row.sources),
        "trend": row.trend,
    }  # fmt: skip


def _names(values: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else value[0] for value in values]


def group_detail(row: GroupDetail, url: str) -> dict[str, Any]:
    return group(row) | {
        "jobs_by_state": row.jobs_by_state,
        "share_of_dead": round(row.share_of_dead, 4),
        "by_queue": counts(row.queues),
        "by_task": counts(row.tasks),
        "by_tenant": counts(row.tenants),
        "by_release": counts(row.releases),
        "by_host": counts(row.hosts),
        "counted_over": row.counted_over,
        "representative": row.representative.pk if row.representative else None,
        "url": url,
    }
