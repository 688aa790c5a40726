"""Lint of the desk: policies, workers' configurations and queued jobs, checked against facts that the viewer may see.

Facts are volume, outages and errors, from counters; no failure is read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Max, Q, Sum

from jobs_admin.core import lint
from jobs_admin.core.canonical_error import name_of
from jobs_admin.core.lint import Case, Check, Finding
from jobs_admin.core.lint.case import Facts, Outage
from jobs_admin.core.lint.finding import count
from jobs_admin.core.lint.rules.errors import PROGRAMMING
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import list_some
from jobs_admin.fleet import configurations
from jobs_admin.fleet.configurations import QueuedOptions, ReportedConfigurations
from jobs_admin.models import Failure, FailureCount, Group, PolicyVersion, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE, QUARTER
from jobs_admin.search import scope as scopes

_DAY = timedelta(days=1)
_OUTAGES_BY_MINUTE = timedelta(days=2)  # retention of minutes; quarters of an hour are stored for two weeks
_OUTAGES = timedelta(days=7)
_LEAST_FAILED = 10  # per minute, for a minute to count as part of an outage
_CALM = timedelta(minutes=5)  # a longer gap starts another outage
_FAILED = F("failed") + F("retried")
_MOST_GROUPS = 5_000  # the latest, whose errors are read

# Signs of rate limiting in the error class or message, case-insensitive, for the database.
_MAYBE_LIMITED = Q(message__contains="429")
for _error_word in ("ratelimit", "rate limit", "toomanyrequests", "too many requests", "throttl"):
    _MAYBE_LIMITED |= Q(error_type__icontains=_error_word) | Q(message__icontains=_error_word)
_LIMITED = re.compile(r"rate ?limit|too ?many ?requests|throttl|\b429\b", re.IGNORECASE)
# Messages that call the error permanent: "Permanent failure: …", "550 permanent error"; not "301 Moved Permanently".
_PERMANENT = re.compile(r"\A\s*permanent\b|\bpermanent(ly)? (failure|failed|error)\b", re.IGNORECASE)
_MOST_ERRORS = 500
_MOST_RETRIED = 10_000  # latest failures that are counted
_PROGRAMMING = Q()
for _error_word in PROGRAMMING:
    _PROGRAMMING |= Q(error_type=_error_word) | Q(error_type__endswith=f".{_error_word}")


def facts(viewer: Viewer, now: datetime, complete: frozenset[str], outage_s: float) -> Facts:
    """Return the facts, in at most seven queries.

    `complete`: sources of which every worker reported its configuration; `outage_s`: used if no outage was seen.
    """
    started, failed = _busiest(viewer, now)
    errors, limited = _errors(viewer)
    return Facts(
        per_minute=started,
        failed_per_minute=failed,
        outages=tuple(_outages(viewer, now)),
        errors=errors,
        rate_limited=limited,
        permanent_retried=_permanent_retried(viewer),
        fully_reported=complete,
        outage_s=outage_s,
    )


def _busiest(viewer: Viewer, now: datetime) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Return jobs started and attempts failed per minute, by queue, in the last day's busiest quarter of an hour."""
    counted = QueueCounter.objects.filter(scopes.visible(viewer), step=QUARTER, at__gte=now - _DAY, at__lte=now)
    rows = counted.values_list("source", "queue").annotate(started=Max("started"), failed=Max(_FAILED))
    minutes = QUARTER / MINUTE
    started, failed = {}, {}
    for source, queue, most_started, most_failed in rows:
        started[source, queue] = most_started / minutes
        failed[source, queue] = most_failed / minutes
    return started, failed


def _outages(viewer: Viewer, now: datetime) -> list[Outage]:
    """Return the stretches in which no more attempts succeeded than failed: by the minute for two days, by quarters
    before.
    """
    recent = now - _OUTAGES_BY_MINUTE
    minutes = _bad(viewer, MINUTE, recent, now)
    quarters = _bad(viewer, QUARTER, now - _OUTAGES, recent)
    return [*_stretches(minutes, MINUTE), *_stretches(quarters, QUARTER)]


_Bad = tuple[str, str, datetime, int, int]  # source, queue, start of the step, failed attempts, succeeded attempts


def _bad(viewer: Viewer, step: int, since: datetime, until: datetime) -> Iterable[_Bad]:
    counted = QueueCounter.objects.filter(scopes.visible(viewer), step=step, at__gte=since, at__lt=until)
    counted = counted.annotate(bad=_FAILED).filter(bad__gte=_LEAST_FAILED * step // MINUTE)
    bad = counted.filter(bad__gte=F("succeeded")).order_by("source", "queue", "at")
    return bad.values_list("source", "queue", "at", "bad", "succeeded").iterator()


def _stretches(bad: Iterable[_Bad], step: int) -> list[Outage]:
    found: list[Outage] = []
    for source, queue, at, failed, succeeded in bad:
        last = found[-1] if found else None
        ended = last and last.began + timedelta(seconds=last.seconds)
        if last and ended and (last.source, last.queue) == (source, queue) and at - ended <= _CALM:
            seconds = (at - last.began).total_seconds() + step
            found[-1] = Outage(source, queue, last.began, seconds, last.failed + failed, last.succeeded + succeeded)
        else:
            found.append(Outage(source, queue, at, step, failed, succeeded))
    return found


def _errors(viewer: Viewer) -> tuple[dict[tuple[str, str], dict[str, int]], dict[tuple[str, str], int]]:
    """Return programming errors by class, and rate limits, in the stored failures, by task."""
    groups = Group.objects.filter(_PROGRAMMING | _MAYBE_LIMITED).order_by("-last_seen")
    named = {
        pk: (name_of(kind), _LIMITED.search(f"{kind} {message}") is not None)
        for pk, kind, message in groups.values_list("pk", "error_type", "message")[:_MOST_GROUPS]
    }
    errors: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    limits: dict[tuple[str, str], int] = defaultdict(int)
    counts = FailureCount.objects.filter(scopes.visible(viewer), group_id__in=named, count__gt=0)
    for source, task, group, n in counts.values_list("source", "task", "group_id").annotate(n=Sum("count")):
        name, is_limited = named[group]
        if is_limited:
            limits[source, task] += n
        if name in PROGRAMMING:
            errors[source, task][name] = errors[source, task].get(name, 0) + n
    return dict(errors), dict(limits)


def _permanent_retried(viewer: Viewer) -> dict[tuple[str, str], int]:
    """Return failures that ran more than once in a run although their message says permanent, by task."""
    groups = Group.objects.filter(message__icontains="permanent").order_by("-last_seen")
    named = [pk for pk, message in groups.values_list("pk", "message")[:_MOST_GROUPS] if _PERMANENT.search(message)]
    if not named:
        return {}
    retried = Failure.objects.filter(scopes.visible(viewer), group_id__in=named[:_MOST_ERRORS], attempts__gt=1)
    return dict(Counter(retried.order_by("-id").values_list("source", "task")[:_MOST_RETRIED]))


_MOST_NAMED = 3  # tasks named in a sentence


@dataclass(frozen=True, slots=True)
class Report:
    """Findings and what was checked. Unreadable policies of a newer Redrive are named, not checked."""

    findings: tuple[Finding, ...]
    check: Check
    reported: ReportedConfigurations
    policies: int
    unread: tuple[str, ...]
    looked_at: datetime
    lying: QueuedOptions = field(default_factory=QueuedOptions)

    @property
    def tasks(self) -> int:
        return len({(one.source, task.name) for one in self.reported.found for task in one.tasks})

    @property
    def left_out(self) -> int:
        """Number of tasks that workers have and could not report."""
        return sum(one.left_out for one in self.reported.found)

    @property
    def options(self) -> int:
        """Number of distinct retry options of queued jobs, if reported."""
        return sum(len(one.options) for one in self.lying.found)

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def report(viewer: Viewer, now: datetime | None = None, *, outage_s: float | None = None) -> Report:
    """Return the report for the viewer. `outage_s` is the outage to survive if none was observed."""
    now = now or datetime.now(UTC)
    policies, unread = _policies(viewer)
    reported = configurations.reported_configurations(viewer, now)
    lying = configurations.stored_options(viewer)
    case = _case(viewer, policies, reported, now, outage_s, lying)
    return Report(tuple(lint.findings(case)), lint.check(case), reported, len(policies), tuple(unread), now, lying)


def attempts_given(viewer: Viewer, policy: Policy, now: datetime | None = None) -> list[str]:
    """A sentence for tasks that get more attempts by this policy than they have now, as far as live workers report it."""
    if not policy.retries:
        return []
    reported = configurations.reported_configurations(viewer, now)
    stale = {one.source for one in reported.stale}
    found = [one for one in reported.found if one.source not in stale]
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
    sentences = []
    if none:
        has = "it has no retries now" if len(none) == 1 else "they have no retries now"
        sentences.append(f"{gives} {count(len(none), 'task')} {most}; {has}: {list_some(sorted(none), _MOST_NAMED)}.")
    if fewer:
        has = "it has fewer now" if len(fewer) == 1 else "they have fewer now"
        named = list_some([f"{task} ({attempts})" for task, attempts in sorted(fewer.items())], _MOST_NAMED)
        sentences.append(f"{gives} {count(len(fewer), 'task')} {most}; {has}: {named}.")
    return sentences


def findings_of(viewer: Viewer, policy: Policy, now: datetime | None = None) -> list[Finding]:
    """Return the findings of one policy, published or a draft, as if it were in force among the others."""
    now = now or datetime.now(UTC)
    others = [one for one in _policies(viewer)[0] if one.name != policy.name]
    case = _case(viewer, [*others, policy], configurations.reported_configurations(viewer, now), now, None)
    return [finding for finding in lint.findings(case) if finding.where.policy == policy.name]


def _case(
    viewer: Viewer,
    policies: list[Policy],
    reported: ReportedConfigurations,
    now: datetime,
    outage_s: float | None,
    lying: QueuedOptions | None = None,
) -> Case:
    seen = facts(viewer, now, reported.complete, lint.OUTAGE_S if outage_s is None else outage_s)
    return lint.case(policies, reported.found, seen, lying.found if lying else ())


def _policies(viewer: Viewer) -> tuple[list[Policy], list[str]]:
    """Return those in force that may decide about the viewer's sources, and the names of those that cannot be read."""
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


def coverage(report: Report) -> str:
    """Return what was checked, as text: 3 policies and 26 tasks of 2 live workers."""
    parts = [count(report.policies, "policy")] if report.policies else []
    if report.tasks:
        stale = {one.source for one in report.reported.stale}
        whose = (
            f" of {count(report.reported.workers, 'live worker')}"
            if report.reported.workers
            else " of workers"
            if stale
            else ""
        )
        parts.append(count(report.tasks, "task") + whose)
    if report.options:
        jobs_checked = sum(queue.jobs for one in report.lying.found for queue in one.queues)
        parts.append(f"{count(report.options, 'set')} of options of {count(jobs_checked, 'queued job')}")
    return _listed(parts) or "no policies and no tasks"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def reservations(report: Report) -> list[str]:
    """Return what the verdict does not cover, as sentences."""
    reported = report.reported
    sentences = []
    if not reported.is_reachable:
        sentences.append("The store does not answer: live workers were not checked.")
    for one in reported.stale:
        sentences.append(
            f"{one.source} has no live worker: checked with the settings last reported on {one.seen_at:%-d %b %H:%M} UTC."
        )
    for source, workers in reported.silent:
        sentences.append(
            f"{count(workers, 'worker')} of {source} without reported settings: the guard is an older version."
        )
    if report.left_out:
        sentences.append(f"{count(report.left_out, 'more task')} not reported and not checked.")
    for name, at in report.lying.stale(report.looked_at):
        sentences.append(f"The queued jobs of {name} were last checked on {at:%-d %b %H:%M} UTC.")
    for one_found in report.lying.found:
        jobs, there = sum(q.jobs for q in one_found.queues), sum(q.of for q in one_found.queues)
        if jobs < there:
            sentences.append(
                f"{jobs:,} of {there:,} jobs in the queues of {one_found.source} were checked: the latest, and others in turn."
            )
        if one_found.left_out:
            sentences.append(f"{count(one_found.left_out, 'more set')} of options of {one_found.source} not listed.")
    for name in report.unread:
        sentences.append(f"The policy {name} cannot be read by this version of Redrive and was not checked.")
    return sentences


def as_json(report: Report) -> dict[str, Any]:
    """Return the report in the API's format."""
    check, reported = report.check, report.reported
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
        "workers": reported.workers,
        "options": [
            {"source": some.source, "queue": one.queue, "task": one.task, "quoted": one.quoted, "jobs": one.jobs,
             "looked_at": one.sample_size, "in_queue": some.find_queue(one.queue).of, "example": one.example}
            for some in report.lying.found for one in some.options
        ],
        "reservations": reservations(report),
        "looked_at": report.looked_at.isoformat(),
    }  # fmt: skip


def finding_as_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"where": str(finding.where), "at": asdict(finding.where)}
