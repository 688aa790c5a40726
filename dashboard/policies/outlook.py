"""What the policy that is being edited would do, beside the one in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dashboard.policies import pictures as policy_pictures
from dashboard.policies import pill as policy_pill
from dashboard.policies import words as policy_words
from dashboard.policies.words import curve
from jobs_admin.core.backoff import schedule
from jobs_admin.core.policy import Policy
from jobs_admin.core.retry_herd import herd
from jobs_admin.core.retry_times import totals

DEFAULT_JOBS = 1_000
MOST_JOBS = 1_000_000
_LOOK = {"high": "dead", "medium": "retrying", "low": "discarded"}


@dataclass(frozen=True, slots=True)
class Says:
    """One policy in words."""

    name: str
    attempts: str
    curve: str
    gives_up: str
    outage: str


def outlook(
    policy: Policy, current: Policy | None, jobs: int, findings: Iterable[Any], *, in_force: str
) -> dict[str, Any]:
    """`current`: the policy in force, whose version is called `in_force`."""
    before = current if current is not None and _is_other(policy, current) else None
    steps, old = schedule(policy), schedule(before) if before else []
    crowd, former = herd(policy, jobs), herd(before, jobs) if before else None
    if former and former.step_s != crowd.step_s:
        wide = max(former.step_s, crowd.step_s)
        crowd, former = herd(policy, jobs, wide), herd(before, jobs, wide) if before else None
    return {
        "says": _says(policy, ""),
        "before": _says(before, in_force) if before else None,
        "delays": policy_pictures.delays(steps, old),
        "runs": policy_pictures.runs(steps, old, name=in_force),
        "herd": policy_pictures.herd(crowd, former, jobs),
        "pill": policy_pill.cost(policy, current),
        "budget": policy_words.budget(policy),
        "findings": [(one, _LOOK.get(one.severity, "discarded")) for one in findings],
    }


def _says(policy: Policy, name: str) -> Says:
    if not policy.retries:
        return Says(
            name,
            "The task’s own code decides how often a failed job is retried",
            curve(policy),
            "",
            "Changes no retries.",
        )
    found = totals(policy)
    return Says(
        name, policy_words.attempts(policy.max_attempts), curve(policy), policy_words.gives_up(found),
        policy_words.outage(found),
    )  # fmt: skip


def _is_other(one: Policy, other: Policy) -> bool:
    """Whether they would be drawn differently."""
    names = ("retries", "max_attempts", "backoff", "cap_s", "jitter")
    return any(getattr(one, name) != getattr(other, name) for name in names)
