"""Lint as somebody may see it: our policies and what live workers have, held against what was seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from jobs_admin import configurations, lint_facts
from jobs_admin.configurations import Told
from jobs_admin.core import lint
from jobs_admin.core.lint import Case, Check, Finding
from jobs_admin.core.lint.words import count
from jobs_admin.core.policy import Policy, PolicyRefused
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer


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
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        if not viewer.sees_any_of(version.match_source):
            continue
        try:
            found.append(version.policy)
        except PolicyRefused:
            unread.append(version.name)
    return found, unread


# -- for the terminal, the API and the page ------------------------------------------------------------------------


def looked_at(report: Report) -> str:
    """What was judged, in words: 3 policies and 26 tasks of 2 live workers."""
    parts = [count(report.policies, "policy")] if report.policies else []
    if report.tasks:
        stale = {one.source for one in report.told.stale}
        whose = (
            f" of {count(report.told.workers, 'live worker')}"
            if report.told.workers
            else " of workers"
            if stale
            else ""
        )
        parts.append(count(report.tasks, "task") + whose)
    return " and ".join(parts) or "no policy and no task"


def reservations(report: Report) -> list[str]:
    """What the verdict does not cover, a sentence each."""
    told = report.told
    said = []
    if not told.is_reachable:
        said.append("The store does not answer: live workers were not looked at.")
    for one in told.stale:
        said.append(
            f"No worker of {one.source} lives: judged is what its workers told until {one.seen_at:%-d %b %H:%M} UTC."
        )
    for source, workers in told.silent:
        said.append(
            f"{count(workers, 'worker')} of {source} tell nothing of what they have: their guard is of an older version."
        )
    if report.left_out:
        said.append(f"{count(report.left_out, 'task')} beyond what workers tell were not looked at.")
    for name in report.unread:
        said.append(f"The policy {name} cannot be read by this version of Redrive, and was not judged.")
    return said


def as_json(report: Report) -> dict[str, Any]:
    """As the API answers."""
    check, told = report.check, report.told
    return {
        "findings": [finding_as_json(one) for one in report.findings],
        "counts": {severity: report.count(severity) for severity in lint.SEVERITIES},
        "check": {
            "id": lint.GROWTH,
            "passes": check.passes,
            "counts": {verdict: check.count(verdict) for verdict in lint.VERDICTS},
            "kinds": check.kinds,
            "verdicts": [
                {"verdict": v.verdict, "where": str(v.where), "at": asdict(v.where), "by": v.by, "kind": v.kind,
                 "quoted": v.quoted, "why": v.why}
                for v in check.verdicts
            ],
        },
        "policies": report.policies,
        "tasks": report.tasks,
        "workers": told.workers,
        "reservations": reservations(report),
        "looked_at": report.looked_at.isoformat(),
    }  # fmt: skip


def finding_as_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"where": str(finding.where), "at": asdict(finding.where)}
