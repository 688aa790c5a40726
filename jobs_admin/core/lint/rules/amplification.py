"""Rules about retries that start together, or multiply across layers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from jobs_admin.core.lint.case import Case, Known
from jobs_admin.core.lint.configuration import ClientRetries
from jobs_admin.core.lint.curve import BY_SERVER, OPTIONS, Curve
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, Found, rule
from jobs_admin.core.policy import ENFORCE

MANY_A_MINUTE = 100.0


def busiest(case: Case, curve: Curve) -> tuple[float, str]:
    """Return (jobs/min, queue) where this curve has most jobs; a queue's jobs are divided among its tasks."""
    seen = []
    for source, queue in case.queues_of(curve):
        jobs = case.facts.per_minute.get((source, queue), 0.0)
        shared = 1 if curve.policy is not None else case.tasks_in(source, queue)
        seen.append((jobs / shared, jobs, queue))
    most = max(seen, default=(0.0, 0.0, ""))
    return (most[1], most[2]) if most[0] >= MANY_A_MINUTE else (0.0, "")


@rule(
    "no-jitter-at-volume",
    MEDIUM,
    title="No jitter at volume",
    why="Jobs that fail together are retried together at every step: 45,000 retries are 45,000 requests in one "
    "second without jitter, and about 826 with full jitter over a minute. The threshold is 100 started jobs/min "
    "per queue in the busiest 15 minutes of the last day, divided among the tasks routed to the queue. For "
    "systems that do not report starts, the threshold is 100 failed attempts/min.",
    fix="`retry_jitter=True` (Celery's default with `retry_backoff`), or a policy with full or equal jitter. In "
    "BullMQ 5 and 6: `backoff: { type: 'exponential', delay: 2000, jitter: 0.5 }`, which has none by default.",
    source="AWS, Exponential Backoff And Jitter",
)
def no_jitter_at_volume(case: Case) -> Iterator[Found]:
    for curve in case.curves:
        jobs, queue = busiest(case, curve)
        if jobs and curve.is_known and curve.retries != 0 and not curve.is_jittered and curve.kind != BY_SERVER:
            yield Found(
                curve.where,
                f"{queue} started {jobs:,.0f} jobs/min in its busiest 15 minutes.",
                curve.quoted,
            )
        elif (failed := _failed(case, curve)) and curve.is_known and curve.retries != 0 and not curve.is_jittered:
            evidence = f"{failed:,.0f} attempts/min failed in the worst 15 minutes. {curve.seen}."
            yield Found(curve.where, evidence, curve.quoted)


def _failed(case: Case, curve: Curve) -> float:
    """Return the failed attempts per minute of jobs with their own retry options; 0 if few."""
    failed = (
        case.facts.failed_per_minute.get((curve.where.source, curve.where.queue), 0.0) if curve.by == OPTIONS else 0.0
    )
    return failed if failed >= MANY_A_MINUTE else 0.0


@rule(
    "no-budget-at-volume",
    LOW,
    title="No retry budget at volume",
    why="In an outage, every job makes `max_attempts` requests: with five attempts, a service that is down gets "
    "five times its load. A budget limits the retries of all jobs together. The threshold is the same as for "
    "jitter.",
    fix="Give the policy a `budget`: about a tenth of the jobs that start in a busy minute.",
    source="Google SRE Book, Handling Overload (a per-client retry budget of 10 %)",
)
def no_budget_at_volume(case: Case) -> Iterator[Found]:
    for curve in case.of_policies:
        policy = curve.policy
        if policy is None or policy.budget is not None or policy.mode != ENFORCE or policy.max_attempts < 2:
            continue
        jobs, queue = busiest(case, curve)
        if jobs:
            evidence = (
                f"{queue} started {jobs:,.0f} jobs/min in its busiest 15 minutes, and each may run "
                f"{policy.max_attempts} times."
            )
            yield Found(curve.where, evidence)


@rule(
    "budget-group-differs",
    MEDIUM,
    title="Policies of one budget group have different limits",
    why="Policies with the same `budget.group` share one budget, and each retry is counted with the limits of its "
    "own policy: the remaining budget jumps between them, and no limit holds for the group.",
    fix="Give all policies of the group the same `per_minute` and `burst`.",
    source="Redrive: each retry is counted with the limits of its own policy",
)
def budget_group_differs(case: Case) -> Iterator[Found]:
    groups: dict[str, dict[tuple[float, int], list[Curve]]] = {}
    for curve in case.of_policies:
        budget = curve.policy.budget if curve.policy else None
        if budget is not None and budget.group:
            groups.setdefault(budget.group, {}).setdefault((budget.per_minute, budget.burst), []).append(curve)
    for group, ways in groups.items():
        if len(ways) > 1:
            listed = "; ".join(
                f"{per_minute:g}/min, burst {burst} ({_names(ways[per_minute, burst])})"
                for per_minute, burst in sorted(ways)
            )
            for curve in (one for curves in ways.values() for one in curves):
                yield Found(curve.where, f"The group {group}: {listed}.")


def _names(curves: list[Curve]) -> str:
    return ", ".join(sorted(curve.where.policy for curve in curves))


TOO_MANY = 27  # three layers with three attempts each


@rule(
    "retries-multiplied",
    MEDIUM,
    title="Retries multiplied across layers",
    why="A client that retries automatically does so in every attempt of the task: four attempts with a client that "
    "makes three requests are twelve requests for one job, to a service that is down. Retry at one layer: the "
    "one that can wait. Clients are detected in the task's own code and in functions of the same package that "
    "it calls: tenacity, urllib3 and requests, httpx. Severity is high from 27 requests for one job (three "
    "layers of three).",
    fix="Remove the retries from the client, or give the task one attempt.",
    source="AWS Builders’ Library, Timeouts, retries, and backoff with jitter; Google SRE Book, Addressing "
    "Cascading Failures",
)
def retries_multiplied(case: Case) -> Iterator[Found]:
    for known in case.tasks:
        clients = [one for one in known.task.clients if one.attempts > 1]
        attempts = _attempts(known)
        if not clients or attempts < 2:
            continue
        requests = attempts * prod(client.attempts for client in clients)
        evidence = f"{attempts} attempts of the task × {' × '.join(map(_quote_client, clients))}: up to {requests} requests for one job."
        yield Found(known.where, evidence, "", HIGH if requests >= TOO_MANY else None)


def _quote_client(client: ClientRetries) -> str:
    return f"{client.attempts} of {client.name} ({client.library})"


def _attempts(known: Known) -> int:
    """Return the highest number of attempts of any way to retry; 1 if none is limited or there is none."""
    ways = [curve.attempts for curve in known.curves if not known.replaced(curve)]
    if known.enforced is not None and known.enforced.retries:
        ways.append(known.enforced.max_attempts)
    return max((attempts for attempts in ways if attempts is not None), default=1)
