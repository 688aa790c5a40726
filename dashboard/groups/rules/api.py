"""The calls for people's rules of grouping."""

from __future__ import annotations

from typing import Any, Literal

from django.http import Http404, HttpRequest
from ninja import Status
from pydantic import Field

from dashboard.groups.rules import api_shapes as rule_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, Body, Number, Text, api
from jobs_admin.groups import group_rules
from jobs_admin.models.access import OPERATOR, VIEWER


class AskedRule(Body):
    kind: Literal["merge", "split", "ignore"]
    groups: list[Text] = Field(
        [], max_length=group_rules.MOST_MERGED
    )  # fingerprints; of a merge the first takes the others in
    by: Text = Field("", max_length=20)  # split: task, queue, source, tenant, release or message
    frame: Text = Field("", max_length=300)  # ignore: `file in function`; * matches anything


class NewRule(AskedRule):
    note: Text = Field("", max_length=500)


@api.get("/groups/rules", response={200: shapes.Listed[rule_shapes.GroupingRuleItem], **REFUSALS}, tags=["groups"])
@needs(VIEWER)
def list_grouping_rules(request: HttpRequest) -> Any:
    """Return grouping rules in force, latest first, then withdrawn ones."""
    rows = group_rules.listing(request.auth)
    return shapes.listed(rows, rule_shapes.rule, next=None, count=len(rows))


@api.post("/groups/rules", response={201: rule_shapes.GroupingRuleItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def create_grouping_rule(request: HttpRequest, body: NewRule) -> Any:
    """Create a grouping rule. New failures follow it at once, existing ones in the background (`progress`)."""
    made = group_rules.save(request.auth, **body.model_dump())
    return Status(201, _answer(request, made.pk))


@api.post("/groups/rules/preview", response={200: rule_shapes.GroupingRulePreview, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def preview_grouping_rule(request: HttpRequest, body: AskedRule) -> Any:
    """Return the groups before and after the rule. Changes nothing."""
    return rule_shapes.rule_preview(group_rules.preview(request.auth, **body.model_dump()))


@api.post("/groups/rules/{rule_id}/withdraw", response={200: rule_shapes.GroupingRuleItem, **REFUSALS}, tags=["groups"])
@needs(OPERATOR)
def withdraw_grouping_rule(request: HttpRequest, rule_id: Number) -> Any:
    """Withdraw a rule: its groups return to their state before the rule."""
    rule = next((row.rule for row in group_rules.listing(request.auth) if row.rule.pk == rule_id), None)
    if rule is None:
        raise Http404
    group_rules.withdraw(request.auth, rule)
    return _answer(request, rule_id)


def _answer(request: HttpRequest, rule_id: int) -> Any:
    return next(rule_shapes.rule(row) for row in group_rules.listing(request.auth) if row.rule.pk == rule_id)
