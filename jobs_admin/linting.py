"""Lint as somebody may see it: our policies and what live workers have, held against what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from jobs_admin import configurations, lint_facts
from jobs_admin.configurations import Told
from jobs_admin.core import lint
from jobs_admin.core.lint import Case, Check, Finding
from jobs_admin.core.matching import matches
from jobs_admin.core.policy import Policy, PolicyRefused
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import VIEWER, Viewer


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, of what was looked at. Policies of a newer Redrive that cannot be read are named, not judged."""

    findings: tuple[Finding, ...]
    check: Check
    told: Told
    policies: int
    unread: tuple[str, ...]
    looked_at: datetime

    @property
    def tasks(self) -> int:
        return len({(one.source, task.name) for one in self.told.found for task in one.tasks})

    @property
    def left_out(self) -> int:
        """Tasks that workers have and could not tell."""
        return sum(one.left_out for one in self.told.found)

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def report(viewer: Viewer, now: datetime | None = None, *, outage_s: float | None = None) -> Report:
    """Everything that the viewer may see. `outage_s` is the outage to survive, where none was seen."""
    now = now or datetime.now(UTC)
    policies, unread = _policies(viewer)
    told = configurations.told(viewer, now)
    case = _case(viewer, policies, told, now, outage_s)
    return Report(tuple(lint.findings(case)), lint.check(case), told, len(policies), tuple(unread), now)


def findings_of(viewer: Viewer, policy: Policy, now: datetime | None = None) -> list[Finding]:
    """What is wrong with one policy, published or only a draft, as if it were in force among the others."""
    now = now or datetime.now(UTC)
    others = [one for one in _policies(viewer)[0] if one.name != policy.name]
    case = _case(viewer, [*others, policy], configurations.told(viewer, now), now, None)
    return [finding for finding in lint.findings(case) if finding.where.policy == policy.name]


def _case(viewer: Viewer, policies: list[Policy], told: Told, now: datetime, outage_s: float | None) -> Case:
    seen = lint_facts.facts(viewer, now, told.complete, lint.OUTAGE_S if outage_s is None else outage_s)
    return lint.case(policies, told.found, seen)


def _policies(viewer: Viewer) -> tuple[list[Policy], list[str]]:
    """Those in force that may decide about the viewer's sources, and the names of those that cannot be read."""
    found, unread = [], []
    theirs = viewer.sources(VIEWER)
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        if theirs is not None and not any(matches(version.match_source, one) for one in theirs):
            continue
        try:
            found.append(version.policy)
        except PolicyRefused:
            unread.append(version.name)
    return found, unread
