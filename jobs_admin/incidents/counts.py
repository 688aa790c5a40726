"""Numbers of an incident: attempts by counters, jobs by their rows, tenants among the latest of these."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet, Sum

from jobs_admin.incidents.ids import first_since
from jobs_admin.incidents.over_time import OverTime
from jobs_admin.incidents.spans import Span
from jobs_admin.models import Failure, FailureCount, QueueCounter
from jobs_admin.models.failure import FailureState

CAP = 100_000  # jobs that are counted
SAMPLE = 2_000  # jobs of each state whose tenants are told
MOST_TENANTS = 10
_LATE = timedelta(minutes=5)  # a report may arrive so long after its failure


@dataclass(frozen=True, slots=True)
class Counts:
    failed: int  # attempts, those that were retried included
    died: int  # attempts after which a job was dead
    recovered: int  # attempts that ran well of jobs that had failed
    jobs: dict[str, int]  # state now -> jobs that failed for the first time meanwhile, as far as their reports tell
    jobs_are_capped: bool  # more than CAP of a state
    tenants: list[
        tuple[str, int]
    ]  # with the most jobs among the newest SAMPLE of each state; "" where a job names none
    more_tenants: int
    looked_at: int  # jobs whose tenant was asked

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
        by_state = {state: _capped(jobs, state) for state in FailureState.values}
        most = CAP
    else:
        # Much arrived late, from a spool for instance: what of it failed then, only its rows tell.
        by_state, most = {state: len(rows) for state, rows in within.items()}, SAMPLE - 1
    tenants = Counter(job[0] for rows in within.values() for job in rows)
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
    )


def _died(where: Span, step_s: int, first: datetime) -> int:
    rows = QueueCounter.objects.filter(source=where.source, step=step_s, at__gte=first, at__lte=where.until)
    if where.queue:
        rows = rows.filter(queue=where.queue)
    return int(rows.aggregate(n=Sum("failed"))["n"] or 0)


def _jobs(where: Span) -> QuerySet[Failure]:
    """Failures whose first report came meanwhile: ids rise in order of arrival, and every index of places ends with them."""
    lowest, highest = (
        first_since(Failure, "received_at", where.since),
        first_since(Failure, "received_at", where.until + _LATE) - 1,
    )
    found = Failure.objects.filter(pk__gte=lowest, pk__lte=highest)
    if not where.queue:
        return found.filter(source=where.source)
    # Read off the index by queue alone where no other source has one of this name: rows are kilobytes long.
    elsewhere = FailureCount.objects.filter(~Q(source=where.source), queue=where.queue, count__gt=0)
    found = found.filter(queue=where.queue)
    return found.filter(source=where.source) if elsewhere.exists() else found


def _capped(jobs: QuerySet[Failure], state: str) -> int:
    return jobs.filter(state=state).order_by()[: CAP + 1].count()


def _some(jobs: QuerySet[Failure], state: str) -> list[tuple[str, datetime]]:
    """Return tenant and first failure of the latest of them."""
    rows = jobs.filter(state=state).order_by("-pk").values_list("tenant", "first_failed_at")
    return list(rows[:SAMPLE])


def _is_of(job: tuple[str, datetime], where: Span) -> bool:
    return where.since - _LATE <= job[1] <= where.until + _LATE
