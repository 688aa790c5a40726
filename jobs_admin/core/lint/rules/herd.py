"""Retries that come all together."""

from __future__ import annotations

from collections.abc import Iterator

from jobs_admin.core.lint.case import Case
from jobs_admin.core.lint.curve import ASKED, Curve
from jobs_admin.core.lint.finding import LOW, MEDIUM, Found, rule
from jobs_admin.core.policy import ENFORCE

MANY_A_MINUTE = 100.0


def busiest(case: Case, curve: Curve) -> tuple[float, str]:
    """(jobs a minute, the queue) where this curve's jobs are most; a queue's jobs are shared out among its tasks."""
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
    why="Jobs that fail together are retried together, at every step: 45,000 retries without jitter are "
    "45,000 requests in one second, with full jitter over a minute some 826. The line is 100 jobs a "
    "minute, counted in the busiest minute of the last 24 hours on the job's queue, and shared out among "
    "the tasks that are routed to it.",
    fix="`retry_jitter=True` (Celery's default with `retry_backoff`), or a policy with full or equal jitter.",
    source="seed 000, Adding Jitter; AWS, Exponential Backoff And Jitter",
)
def no_jitter_at_volume(case: Case) -> Iterator[Found]:
    for curve in case.curves:
        jobs, queue = busiest(case, curve)
        if jobs and curve.is_known and curve.retries != 0 and not curve.is_jittered and curve.kind != ASKED:
            yield Found(curve.where, f"{queue} started {jobs:,.0f} jobs in its busiest minute.", curve.quoted)


@rule(
    "no-budget-at-volume",
    LOW,
    title="No retry budget at volume",
    why="Where everything fails, every job makes `max_attempts` requests: with five attempts the service that"
    " is down gets five times its load. A budget bounds retries for all jobs together. The line is the "
    "same as for jitter.",
    fix="Give the policy a `budget`: about a tenth of the jobs that start in a busy minute.",
    source="Google SRE Book, Handling Overload (a per-client retry budget of 10 %); seed 000, Retry Budget Pattern",
)
def no_budget_at_volume(case: Case) -> Iterator[Found]:
    for curve in case.of_policies:
        policy = curve.policy
        if policy is None or policy.budget is not None or policy.mode != ENFORCE or policy.max_attempts < 2:
            continue
        jobs, queue = busiest(case, curve)
        if jobs:
            evidence = (
                f"{queue} started {jobs:,.0f} jobs in its busiest minute, and each may run {policy.max_attempts} times."
            )
            yield Found(curve.where, evidence)
