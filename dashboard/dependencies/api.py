"""The calls for dependencies: all of them, and one over time."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Schema

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, api
from dashboard.web.links import dependency_page
from jobs_admin import config
from jobs_admin.groups import dependencies
from jobs_admin.groups.dependencies import DependencyRow
from jobs_admin.models.access import VIEWER


class DependencyItem(Schema):
    name: str
    per_minute: float  # failed attempts
    dead: int
    open: int  # jobs in the default states
    jobs: int
    queues: int
    tasks: int
    groups: int
    trend: list[int]  # failed attempts in each of the last 24 hours, the oldest first
    url: str


class DependencyDetailItem(DependencyItem):
    reasons: list[shapes.Count]  # groups by the reason of their name
    failed: list[int]  # attempts in each of the last 24 hours, the oldest first
    ended: list[int]  # attempts of all jobs in its queues
    hidden_groups: int  # with failures in sources out of sight: their attempts are left out


@api.get("/dependencies", response={200: shapes.Listed[DependencyItem], **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def list_dependencies(request: HttpRequest) -> Any:
    """Return the hosts and services that failed jobs, what fails most now first; at most 200."""
    found, others = dependencies.listing(request.auth, timezone.now())
    return shapes.listed(found, _item, next=None, count=len(found) + others)


@api.get("/dependencies/{name}", response={200: DependencyDetailItem, **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def get_dependency(request: HttpRequest, name: str) -> Any:
    found = dependencies.detail(request.auth, name, timezone.now())
    return _item(found.row) | {
        "reasons": shapes.counts(found.reasons),
        "failed": found.failed,
        "ended": found.ended,
        "hidden_groups": found.hidden_groups,
    }


def _item(row: DependencyRow) -> dict[str, Any]:
    names = ("name", "dead", "open", "jobs", "queues", "tasks", "groups", "trend")
    url = config.page_url(dependency_page(row.name))
    return {name: getattr(row, name) for name in names} | {"per_minute": round(row.per_minute, 2), "url": url}
