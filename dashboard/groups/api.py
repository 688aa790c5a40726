"""The calls for groups: the list, one, and changes to one or many."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query
from pydantic import AfterValidator, Field

from dashboard.groups import api_shapes as group_shapes
from dashboard.web import moments
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import NO_CURSOR, REFUSALS, Body, Limit, Text, api
from dashboard.web.links import group_page
from jobs_admin import config, failures
from jobs_admin.core.refused import Refused
from jobs_admin.groups import group_changes
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer

AfterGroup = Annotated[str | None, Query(max_length=100)]
Order = Literal["last_seen", "first_seen", "count", "dead"]
State = Literal["new", "ongoing", "regressed", "resolved", "muted"]


class GroupChange(Body):
    state: Literal["ongoing", "resolved", "muted"] | None = None
    muted_until: Annotated[datetime, AfterValidator(moments.sane)] | None = None
    muted_until_count: int | None = Field(
        None, ge=1, le=group_changes.MOST_MUTED_COUNT
    )  # failed attempts more than now
    assignee: Text | None = Field(None, max_length=150)
    note: Text | None = Field(None, max_length=10_000)
    runbook_url: Text | None = Field(None, max_length=500)
    reason: Text = Field("", max_length=500)


class GroupsChange(GroupChange):
    groups: list[Text] = Field(min_length=1, max_length=group_changes.MOST_AT_ONCE)  # fingerprints


class Receipt(Body):
    receipt: Text = Field(min_length=1, max_length=5_000)


@api.get("/groups", response={200: shapes.Listed[group_shapes.GroupItem], **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def list_groups(
    request: HttpRequest,
    q: str = "",
    order: Order = "last_seen",
    state: Annotated[list[State], Query()] = [],  # noqa: B006  (only read)
    assignee: Text | None = None,
    after: AfterGroup = None,
    limit: Limit = 50,
) -> Any:
    """Return matching groups, in every state unless `state` is given. `assignee`: a user's name, "" for no one."""
    if after and not failures.is_group_cursor(order, after):
        raise Refused("invalid", f"{NO_CURSOR}. It belongs to one order.", "after")
    page = failures.groups(request.auth, q, order=order, after=after, limit=limit, states=state, assignee=assignee)
    return shapes.listed(
        page.rows,
        group_shapes.group,
        next=page.next,
        count=page.count,
        count_is_capped=page.count_is_capped,
        reading=page.reading,
        hints=list(page.hints),
    )


@api.post("/groups/bulk", response={200: group_shapes.ChangedGroups, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def change_groups(request: HttpRequest, body: GroupsChange) -> Any:
    """Apply one change to up to 1,000 groups, given by fingerprint. `receipt` undoes the change."""
    changes = body.model_dump(exclude_unset=True, exclude={"reason", "groups"})
    done = group_changes.change_many(request.auth, body.groups, changes, reason=body.reason)
    return {
        "changed": done.fingerprints,
        "unchanged": done.unchanged,
        "refused": done.refused,
        "missing": done.missing,
        "receipt": done.receipt,
    }


@api.post("/groups/undo", response={200: group_shapes.UndoneGroups, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def undo_change_groups(request: HttpRequest, body: Receipt) -> Any:
    """Undo a change of groups by this token. Groups changed since are not restored."""
    done = group_changes.undo(request.auth, body.receipt)
    return {"undone": done.fingerprints, "changed_since": done.changed_since}


@api.get("/groups/{fingerprint}", response={200: group_shapes.GroupDetailItem, **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def get_group(request: HttpRequest, fingerprint: str) -> Any:
    return _group(request.auth, fingerprint)


@api.patch("/groups/{fingerprint}", response={200: group_shapes.GroupDetailItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def change_group(request: HttpRequest, fingerprint: str, body: GroupChange) -> Any:
    """Change state, mute limits, assignee (a username; "" for no one), note or runbook of a group."""
    found = failures.group_named(request.auth, fingerprint)
    changes = body.model_dump(exclude_unset=True, exclude={"reason"})
    group_changes.change(request.auth, found, changes, reason=body.reason)
    return _group(request.auth, fingerprint)


def _group(viewer: Viewer, fingerprint: str) -> dict[str, Any]:
    found = failures.group(viewer, fingerprint)
    return group_shapes.group_detail(found, config.page_url(group_page(found.group.fingerprint)))
