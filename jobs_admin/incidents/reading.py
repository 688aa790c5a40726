"""An incident to show or export: its events, its acts, and its numbers.

Numbers of attempts come from counters, those of jobs from rows, tenants from the latest rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Model, Q, QuerySet, Sum

from jobs_admin.incidents.moments import Moment, moments
from jobs_admin.incidents.over_time import OverTime, over_time
from jobs_admin.incidents.spans import Span
from jobs_admin.models import AuditEvent, Failure, FailureCount, GroupSource, QueueCounter
from jobs_admin.models.access import AUDITOR, Viewer
from jobs_admin.models.failure import FailureState

MOST_ACTS = 100

CAP = 100_000  # jobs that are counted
SAMPLE = 2_000  # jobs of each state whose tenants are listed
MOST_TENANTS = 10
MOST_DEPENDENCIES = 5
_LATE = timedelta(minutes=5)  # a report may arrive this long after its failure


@dataclass(frozen=True, slots=True)
class Act:
    """A row of the audit."""

    at: datetime
    who: str
    act: str
    object: str
    reason: str
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class Incident:
    where: Span
    timeline: list[Moment]  # the oldest first
    counts: Counts
    seen: OverTime
    acts: list[Act] | None  # the latest MOST_ACTS, oldest first; None: the viewer may not read the audit of the source
    has_more_acts: bool


def incident(viewer: Viewer, where: Span, now: datetime) -> Incident:
    """Return the incident of a span that `span` returned to this viewer."""
    seen = over_time(viewer, where, now)
    acts = _acts(where) if viewer.may(AUDITOR, where.source) else None
    return Incident(
        where,
        moments(viewer, where, seen),
        counts(where, seen),
        seen,
        acts[-MOST_ACTS:] if acts is not None else None,
        acts is not None and len(acts) > MOST_ACTS,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    failed: int  # attempts, including retried ones
    died: int  # attempts after which a job was dead
    recovered: int  # succeeded attempts of jobs that had failed
    jobs: dict[str, int]  # present state -> jobs that first failed in the period, as far as reported
    jobs_are_capped: bool  # more than CAP in a state
    tenants: list[
        tuple[str, int]
    ]  # with the most jobs among the newest SAMPLE of each state; "" where a job names none
    more_tenants: int
    looked_at: int  # jobs whose tenant was read
    dependencies: list[tuple[str, int]]  # dependencies that these failed on, with the most jobs

    @property
    def of_jobs(self) -> int:
        return sum(self.jobs.values())

    @property
    def open(self) -> int:
        """Jobs that need an operator: dead, or in quarantine."""
        return self.jobs[FailureState.DEAD] + self.jobs[FailureState.QUARANTINED]


def counts(where: Span, seen: OverTime) -> Counts:
    jobs = _jobs(where)
    some = {state: _some(jobs, state) for state in FailureState.values}
    within = {state: [job for job in rows if _is_of(job, where)] for state, rows in some.items()}
    if within == some:
        by_state = {state: jobs.filter(state=state).order_by()[: CAP + 1].count() for state in FailureState.values}
        most = CAP
    else:
        # Many reports arrived late, for instance from a spool: the rows show which failed in the period.
        by_state, most = {state: len(rows) for state, rows in within.items()}, SAMPLE - 1
    tenants = Counter(job[0] for rows in within.values() for job in rows)
    groups = Counter(job[2] for rows in within.values() for job in rows if job[2] is not None)
    ranked = sorted(tenants.items(), key=lambda one: (one[0] == "", -one[1], one[0]))
    return Counts(
        sum(point.failed for point in seen.points),
        _died(where, seen.step_s, seen.points[0].at),
        sum(point.recovered for point in seen.points),
        {state: min(n, CAP) for state, n in by_state.items()},
        any(n > most for n in by_state.values()),
        ranked[:MOST_TENANTS],
        max(0, len(ranked) - MOST_TENANTS),
        tenants.total(),
        _dependencies(where, groups),
    )


def _dependencies(where: Span, groups: Counter[int]) -> list[tuple[str, int]]:
    """Return the dependencies that jobs of these groups failed on at the incident's source."""
    named = GroupSource.objects.filter(source=where.source, group__in=list(groups), dependency__gt="")
    found: Counter[str] = Counter()
    for group, name in named.values_list("group_id", "dependency"):
        found[name] += groups[group]
    return sorted(found.items(), key=lambda one: (-one[1], one[0]))[:MOST_DEPENDENCIES]


def _died(where: Span, step_s: int, first: datetime) -> int:
    rows = QueueCounter.objects.filter(source=where.source, step=step_s, at__gte=first, at__lte=where.until)
    if where.queue:
        rows = rows.filter(queue=where.queue)
    return int(rows.aggregate(n=Sum("failed"))["n"] or 0)


def _jobs(where: Span) -> QuerySet[Failure]:
    """Return failures whose first report arrived in the period.

    Ids increase with arrival, and each place index ends with them.
    """
    lowest, highest = (
        first_since(Failure, "received_at", where.since),
        first_since(Failure, "received_at", where.until + _LATE) - 1,
    )
    found = Failure.objects.filter(pk__gte=lowest, pk__lte=highest)
    if not where.queue:
        return found.filter(source=where.source)
    # Read from the index by queue alone if no other source has a queue of this name: rows are kilobytes long.
    elsewhere = FailureCount.objects.filter(~Q(source=where.source), queue=where.queue, count__gt=0)
    found = found.filter(queue=where.queue)
    return found.filter(source=where.source) if elsewhere.exists() else found


def _some(jobs: QuerySet[Failure], state: str) -> list[tuple[str, datetime, int | None]]:
    """Return tenant, first failure and group of the latest of them."""
    rows = jobs.filter(state=state).order_by("-pk").values_list("tenant", "first_failed_at", "group_id")
    return list(rows[:SAMPLE])


def _is_of(job: tuple[str, datetime, int | None], where: Span) -> bool:
    return where.since - _LATE <= job[1] <= where.until + _LATE


def _acts(where: Span) -> list[Act]:
    """Return the acts done, or refused, at the source meanwhile; oldest first, one more than MOST_ACTS at most."""
    lowest, highest = first_since(AuditEvent, "at", where.since), first_since(AuditEvent, "at", where.until)
    rows = AuditEvent.objects.filter(
        pk__gte=lowest, pk__lte=highest, source=where.source, at__gte=where.since, at__lte=where.until
    )
    columns = ("at", "actor", "act", "object", "reason", "allowed")
    return [Act(*row) for row in rows.order_by("-pk").values_list(*columns)[: MOST_ACTS + 1]][::-1]


def first_since(model: type[Model], column: str, moment: datetime) -> int:
    """Return the approximate lowest id of a row that arrived at or after that moment; highest + 1 if none did.

    Ids increase with the time of arrival, so that no index on the time is needed.
    """
    rows = model._default_manager.values_list("pk", column)
    latest = rows.order_by("-pk").first()
    low, high = 0, (latest[0] if latest else 0) + 1
    while low < high:
        middle = (low + high) // 2
        found = rows.filter(pk__gte=middle).order_by("pk").first()
        if found is None or found[1] >= moment:
            high = middle
        else:
            low = found[0] + 1
    return low
