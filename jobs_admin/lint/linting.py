"""Lint as somebody may see it: our policies, what live workers have and what lies in queues, held against what was seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs_admin.core import lint
from jobs_admin.core.lint import Case, Check, Finding
from jobs_admin.core.lint.finding import count
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.refused import Refused
from jobs_admin.fleet import configurations, found_options
from jobs_admin.fleet.configurations import ReportedConfigurations
from jobs_admin.fleet.found_options import QueuedOptions
from jobs_admin.lint import lint_facts
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer

_MOST_NAMED = 3  # tasks that a sentence names


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, of what was looked at. Policies of a newer Redrive that cannot be read are named, not judged."""

    findings: tuple[Finding, ...]
    check: Check
    told: ReportedConfigurations
    policies: int
    unread: tuple[str, ...]
    looked_at: datetime
    lying: QueuedOptions = field(default_factory=QueuedOptions)

    @property
    def tasks(self) -> int:
        return len({(one.source, task.name) for one in self.told.found for task in one.tasks})

    @property
    def left_out(self) -> int:
        """Tasks that workers have and could not tell."""
        return sum(one.left_out for one in self.told.found)

    @property
    def options(self) -> int:
        """Distinct ways of being retried that lie in queues, as far as they are told."""
        return sum(len(one.options) for one in self.lying.found)

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def report(viewer: Viewer, now: datetime | None = None, *, outage_s: float | None = None) -> Report:
    """Everything that the viewer may see. `outage_s` is the outage to survive, where none was seen."""
    now = now or datetime.now(UTC)
    policies, unread = _policies(viewer)
    told = configurations.reported_configurations(viewer, now)
    lying = found_options.stored_options(viewer)
    case = _case(viewer, policies, told, now, outage_s, lying)
    return Report(tuple(lint.findings(case)), lint.check(case), told, len(policies), tuple(unread), now, lying)


def attempts_given(viewer: Viewer, policy: Policy, now: datetime | None = None) -> list[str]:
    """A sentence for tasks that get more attempts by this policy than they have now, as far as live workers report it."""
    if not policy.retries:
        return []
    told = configurations.reported_configurations(viewer, now)
    stale = {one.source for one in told.stale}
    found = [one for one in told.found if one.source not in stale]
    in_force = _policies(viewer)[0]
    others = [one for one in in_force if one.name != policy.name]
    before = {one.where: one.attempts for one in lint.known_tasks(in_force, found)}
    none: set[str] = set()
    fewer: dict[str, int] = {}
    for one in lint.known_tasks([*others, policy], found):
        attempts = before[one.where]
        if one.policy is not policy or attempts is None or attempts >= policy.max_attempts:
            continue
        if attempts == 1:
            none.add(one.task.name)
        else:
            fewer[one.task.name] = attempts
    gives = "This gives" if policy.mode == ENFORCE else "Once enforced, this gives"
    most = f"up to {count(policy.max_attempts, 'attempt')}"
    said = []
    if none:
        has = "it has no retries now" if len(none) == 1 else "they have no retries now"
        said.append(f"{gives} {count(len(none), 'task')} {most}; {has}: {_named(sorted(none))}.")
    if fewer:
        has = "it has fewer now" if len(fewer) == 1 else "they have fewer now"
        named = _named([f"{task} ({attempts})" for task, attempts in sorted(fewer.items())])
        said.append(f"{gives} {count(len(fewer), 'task')} {most}; {has}: {named}.")
    return said


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def findings_of(viewer: Viewer, policy: Policy, now: datetime | None = None) -> list[Finding]:
    """What is wrong with one policy, published or only a draft, as if it were in force among the others."""
    now = now or datetime.now(UTC)
    others = [one for one in _policies(viewer)[0] if one.name != policy.name]
    case = _case(viewer, [*others, policy], configurations.reported_configurations(viewer, now), now, None)
    return [finding for finding in lint.findings(case) if finding.where.policy == policy.name]


def _case(
    viewer: Viewer,
    policies: list[Policy],
    told: ReportedConfigurations,
    now: datetime,
    outage_s: float | None,
    lying: QueuedOptions | None = None,
) -> Case:
    seen = lint_facts.facts(viewer, now, told.complete, lint.OUTAGE_S if outage_s is None else outage_s)
    return lint.case(policies, told.found, seen, lying.found if lying else ())


def _policies(viewer: Viewer) -> tuple[list[Policy], list[str]]:
    """Those in force that may decide about the viewer's sources, and the names of those that cannot be read."""
    found, unread = [], []
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        if not viewer.sees_any_of(version.match_source):
            continue
        try:
            found.append(version.policy)
        except Refused:
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
    if report.options:
        looked = sum(queue.jobs for one in report.lying.found for queue in one.queues)
        parts.append(f"{count(report.options, 'kind')} of options of {count(looked, 'job')} in queues")
    return _listed(parts) or "no policy and no task"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


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
    for name, at in report.lying.stale(report.looked_at):
        said.append(f"What lies in the queues of {name} was last looked at on {at:%-d %b %H:%M} UTC.")
    for one_found in report.lying.found:
        jobs, there = sum(q.jobs for q in one_found.queues), sum(q.of for q in one_found.queues)
        if jobs < there:
            said.append(
                f"{jobs:,} of {there:,} jobs in the queues of {one_found.source} were looked at: the newest, and others in turn."
            )
        if one_found.left_out:
            said.append(f"{count(one_found.left_out, 'kind')} of options more of {one_found.source} are not told.")
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
        "options": [
            {"source": some.source, "queue": one.queue, "task": one.task, "quoted": one.quoted, "jobs": one.jobs,
             "looked_at": one.looked, "in_queue": some.looked(one.queue).of, "example": one.example}
            for some in report.lying.found for one in some.options
        ],
        "reservations": reservations(report),
        "looked_at": report.looked_at.isoformat(),
    }  # fmt: skip


def finding_as_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"where": str(finding.where), "at": asdict(finding.where)}
