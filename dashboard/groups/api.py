"""The calls for grouping rules and for groups. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import Http404, HttpRequest
from ninja import Query, Schema, Status
from pydantic import AfterValidator, Field

from dashboard.web import moments
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import NO_CURSOR, REFUSALS, Body, Limit, Number, Text, api
from dashboard.web.api.shapes import Count, counts
from dashboard.web.links import group_page
from jobs_admin import config, failures
from jobs_admin.core.refused import Refused
from jobs_admin.groups import GroupRow, group_changes, group_rules
from jobs_admin.groups.group_detail import GroupDetail
from jobs_admin.groups.group_rules import Row as RuleRow
from jobs_admin.groups.issue_form import create_issue_url
from jobs_admin.groups.rule_previews import Preview as RulePreviewed
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer


class Dependency(Schema):
    name: str
    reason: str
    set_by: str  # empty: derived


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
    issue_url: str  # its issue in the issue tracker
    queues: list[str]
    tasks: list[str]
    sources: list[str]
    trend: list[int]  # failed attempts in each of the last 24 hours, the oldest first
    dependencies: list[Dependency]  # what failed its jobs; several where its sources differ


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
    create_issue_url: str  # the issue tracker's form; empty if no template is set or the group has an issue
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
            "regressed_after", "first_release", "muted_until", "note", "runbook_url", "issue_url",
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
        "dependencies": [{"name": one.name, "reason": one.reason, "set_by": one.by} for one in row.dependencies],
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
        "create_issue_url": create_issue_url(row, url),
        "url": url,
    }


class GroupingRuleItem(Schema):
    id: int
    kind: str
    says: str
    group: str | None  # fingerprint; null for a frame
    others: list[str]
    by: str
    frame: str
    note: str
    author: str
    created_at: datetime
    progress: float  # 0 to 1, of the failures that are known
    is_withdrawn: bool


class Becoming(Schema):
    fingerprint: str
    title: str
    becomes: str
    becomes_title: str
    is_new: bool
    failures: int
    sample: list[int]


class GroupingRulePreview(Schema):
    kind: str
    sentence: str
    rows: list[Becoming]
    more: int  # rows that are not listed
    looked_at: int  # failures, of a frame groups
    of: int
    is_partial: bool


def rule(row: RuleRow) -> dict[str, Any]:
    same = ("id", "kind", "others", "by", "frame", "note", "author", "created_at", "is_withdrawn")
    return {name: getattr(row.rule, name) for name in same} | {
        "says": row.summary,
        "progress": round(row.progress, 4),
        "group": row.rule.group.name if row.rule.group else None,
    }


def rule_preview(row: RulePreviewed) -> dict[str, Any]:
    same = ("kind", "sentence", "more", "looked_at", "of", "is_partial")
    rows = [{name: getattr(one, name) for name in Becoming.model_fields} for one in row.rows]
    return {name: getattr(row, name) for name in same} | {"rows": rows}


class AskedRule(Body):
    kind: Literal["merge", "split", "ignore"]
    groups: list[Text] = Field(
        [], max_length=group_rules.MOST_MERGED
    )  # fingerprints; of a merge the first takes the others in
    by: Text = Field("", max_length=20)  # split: task, queue, source, tenant, release or message
    frame: Text = Field("", max_length=300)  # ignore: `file in function`; * matches anything


class NewRule(AskedRule):
    note: Text = Field("", max_length=500)


@api.get("/groups/rules", response={200: shapes.Listed[GroupingRuleItem], **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def list_grouping_rules(request: HttpRequest) -> Any:
    """Return grouping rules in force, latest first, then withdrawn ones."""
    rows = group_rules.listing(request.auth)
    return shapes.listed(rows, rule, next=None, count=len(rows))


@api.post("/groups/rules", response={201: GroupingRuleItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def create_grouping_rule(request: HttpRequest, body: NewRule) -> Any:
    """Create a grouping rule. New failures follow it at once, existing ones in the background (`progress`)."""
    made = group_rules.save(request.auth, **body.model_dump())
    return Status(201, _answer(request, made.pk))


@api.post("/groups/rules/preview", response={200: GroupingRulePreview, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def preview_grouping_rule(request: HttpRequest, body: AskedRule) -> Any:
    """Return the groups before and after the rule. Changes nothing."""
    return rule_preview(group_rules.preview(request.auth, **body.model_dump()))


@api.post("/groups/rules/{rule_id}/withdraw", response={200: GroupingRuleItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def withdraw_grouping_rule(request: HttpRequest, rule_id: Number) -> Any:
    """Withdraw a rule: its groups return to their state before the rule."""
    rule = next((row.rule for row in group_rules.listing(request.auth) if row.rule.pk == rule_id), None)
    if rule is None:
        raise Http404
    group_rules.withdraw(request.auth, rule)
    return _answer(request, rule_id)


def _answer(request: HttpRequest, rule_id: int) -> Any:
    return next(rule(row) for row in group_rules.listing(request.auth) if row.rule.pk == rule_id)


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
    issue_url: Text | None = Field(None, max_length=500)
    dependency: Text | None = Field(None, max_length=120)  # "none": of no dependency; "": derived again
    reason: Text = Field("", max_length=500)


class GroupsChange(GroupChange):
    groups: list[Text] = Field(min_length=1, max_length=group_changes.MOST_AT_ONCE)  # fingerprints


class Receipt(Body):
    receipt: Text = Field(min_length=1, max_length=5_000)


@api.get("/groups", response={200: shapes.Listed[GroupItem], **REFUSALS}, tags=["groups"])
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
        group,
        next=page.next,
        count=page.count,
        count_is_capped=page.count_is_capped,
        reading=page.reading,
        hints=list(page.hints),
    )


@api.post("/groups/bulk", response={200: ChangedGroups, **REFUSALS}, tags=["groups"])
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


@api.post("/groups/undo", response={200: UndoneGroups, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def undo_change_groups(request: HttpRequest, body: Receipt) -> Any:
    """Undo a change of groups by this token. Groups changed since are not restored."""
    done = group_changes.undo(request.auth, body.receipt)
    return {"undone": done.fingerprints, "changed_since": done.changed_since}


@api.get("/groups/{fingerprint}", response={200: GroupDetailItem, **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def get_group(request: HttpRequest, fingerprint: str) -> Any:
    return _group(request.auth, fingerprint)


@api.patch("/groups/{fingerprint}", response={200: GroupDetailItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def change_group(request: HttpRequest, fingerprint: str, body: GroupChange) -> Any:
    """Change state, mute limits, assignee (a username; "" for no one), note, runbook, issue or dependency of a group."""
    found = failures.group_named(request.auth, fingerprint)
    changes = body.model_dump(exclude_unset=True, exclude={"reason"})
    group_changes.change(request.auth, found, changes, reason=body.reason)
    return _group(request.auth, fingerprint)


def _group(viewer: Viewer, fingerprint: str) -> dict[str, Any]:
    found = failures.group(viewer, fingerprint)
    return group_detail(found, config.page_url(group_page(found.group.fingerprint)))
