"""Numbers of a policy before it is in force."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from jobs_admin.core.backoff import schedule
from jobs_admin.core.policy import Policy, Problem
from jobs_admin.core.refused import Refused
from jobs_admin.core.retry_times import collisions, herd, survives, totals
from jobs_admin.lint import linting
from jobs_admin.models.access import Viewer

JOBS, MOST_JOBS = 1_000, 1_000_000
DRAFT = "draft"  # what findings call a policy that has no name yet


def preview(viewer: Viewer, policy: Policy, current: Policy | None = None, jobs: int = JOBS) -> dict[str, Any]:
    """The waits of `policy`, what they add up to, what `jobs` that fail together do then, and what is wrong with it;
    beside the numbers of `current`. Raises Refused for a number of jobs out of bounds.
    """
    if not 1 <= jobs <= MOST_JOBS:
        bound = f"1 to {MOST_JOBS:,}"
        message = f"jobs must be {bound}."
        raise Refused("invalid", message, "jobs", problems=[Problem("jobs", message, bound)])
    named = policy if policy.name else replace(policy, name=DRAFT)
    findings = [asdict(one) | {"where": str(one.where)} for one in linting.findings_of(viewer, named)]
    return _numbers(policy, jobs) | {
        "jobs": jobs,
        "current": current and _numbers(current, jobs),
        "warnings": linting.attempts_given(viewer, named),
        "findings": findings,
    }


def _numbers(policy: Policy, jobs: int) -> dict[str, Any]:
    crowd = herd(policy, jobs)
    return {
        "schedule": [asdict(step) for step in schedule(policy)],
        "totals": asdict(totals(policy)),
        "survives": asdict(survives(policy)),
        "herd": [list(point) for point in crowd.points],
        "herd_step_s": crowd.step_s,
        "peak": {"per_second": crowd.peak_per_s, "at_s": crowd.peak_at_s},
        # Pairs of the jobs that start again within the same millisecond.
        "collisions": collisions(policy, jobs) if policy.max_attempts > 1 else 0.0,
    }
