"""API shapes of grouping rules. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin.groups.group_rules import Preview as RulePreviewed
from jobs_admin.groups.group_rules import Row as RuleRow


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
