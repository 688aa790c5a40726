"""The versions of a policy, and what each changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django.urls import reverse

from dashboard.policies import changes as policy_changes
from dashboard.policies import words as policy_words
from jobs_admin import policies
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer

MOST_SHOWN = 6  # changes of a version at once


@dataclass(frozen=True, slots=True)
class Line:
    version: PolicyVersion
    summary: str
    changes: list[policy_changes.Line]  # against the version before; empty where it said the same
    is_first: bool  # nothing was before it
    is_current: bool
    may_put_back: bool
    compare_url: str  # with the one in force; "" for that itself
    edit_url: str


def lines(
    shown: Sequence[PolicyVersion], known: Sequence[PolicyVersion], current: PolicyVersion | None, viewer: Viewer
) -> list[Line]:
    """`known`: those shown, and the one before them."""
    before = {one.version: older for one, older in pairwise(known)}
    return [_line(one, before.get(one.version), current, viewer) for one in shown]


def _line(version: PolicyVersion, before: PolicyVersion | None, current: PolicyVersion | None, viewer: Viewer) -> Line:
    is_current = bool(current and current.version == version.version)
    address = reverse("redrive:policy-versions", args=[version.name])
    curve, often = policy_words.in_brief(version)
    compare = f"{address}?left={version.version}&right={current.version}" if current and not is_current else ""
    return Line(
        version,
        f"{often}: {curve}",
        changes(before, version) if before else [],
        before is None,
        is_current,
        not is_current and policies.may_publish(viewer, version.match_source),
        compare,
        f"{reverse('redrive:policy-detail', args=[version.name])}?from={version.version}" if compare else "",
    )


def changes(before: PolicyVersion, after: PolicyVersion) -> list[Any]:
    found = policies.difference(before.document, after.document)
    return policy_changes.lines(found, "before", "after")
