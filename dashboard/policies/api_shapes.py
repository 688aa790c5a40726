"""API shapes of policies: the fields of the document, and those computed beside them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin import policies
from jobs_admin.models import PolicyVersion


class Workers(Schema):
    says: str  # `12 of 14 workers on v7`
    of: int | None  # live workers that the policy is for; null: nobody knows
    current: int | None  # of those, how many run this version
    on: dict[str, int]  # version, or "none" -> workers
    held_back: dict[str, int]  # off, capture, observe -> workers that may do no more than this
    refused: dict[str, str]  # worker -> why it cannot use this version
    uncounted: int | None  # jobs that they started uncounted, while the store did not answer; null: nobody knows
    overrun: int | None  # jobs above a limit, because a worker did not answer for 30 s; null: unknown
    shared_out: (
        int | None
    )  # retries made from workers' shares of a budget, while the store did not answer; null: unknown
    unplaced: (
        int | None
    )  # jobs that no policy decided over, as it was not sure which queue they came from; null: nobody knows
    unkept: int | None  # jobs that would not have been filed as lost, had their worker died; null: nobody knows


class VersionItem(Schema):
    """A version of a policy, with its fields (null: not set).

    If `retries` is false, the fields about retries are null: the task's own code decides.
    """

    name: str
    match: dict[str, str]
    mode: str
    retries: bool
    native: str | None
    max_attempts: int | None
    backoff: dict[str, Any] | None
    cap_s: float | None
    jitter: dict[str, Any] | None
    retry_after: dict[str, Any] | None
    classes: list[dict[str, str]] | None
    budget: dict[str, Any] | None
    poison: dict[str, Any] | None
    concurrency: dict[str, Any] | None
    rate_limit: dict[str, Any] | None
    exhausted: str | None
    file_lost: bool
    expires_at: datetime | None
    note: str
    version: int
    is_published: bool
    published_at: datetime
    published_by: str
    ended_at: datetime | None
    reason: str
    reverts_to: int | None  # the version that is in force again at `expires_at`


class PolicyItem(VersionItem):
    workers: Workers


class Step(Schema):
    attempt: int  # the wait after this attempt
    shortest_s: float
    longest_s: float
    mean_s: float


class Numbers(Schema):
    schedule: list[Step]
    totals: dict[str, float]  # shortest_s, p1_s, p50_s, p99_s, longest_s, mean_s
    survives: dict[str, float]  # surely_s, probably_s
    herd: list[tuple[int, float]]  # (second, starts in the `herd_step_s` seconds from it on)
    herd_step_s: int
    peak: dict[str, float]  # per_second, at_s
    collisions: float


class Finding(Schema):
    id: str
    severity: str  # high, medium, low
    title: str
    evidence: str
    fix: str
    source: str  # where it is known from
    where: str
    quoted: str


class Preview(Numbers):
    jobs: int
    warnings: list[str]  # tasks that get more attempts than they have now; empty where that is not known, too
    findings: list[Finding]  # the worst first
    current: Numbers | None  # of the policy of this name that is in force


class Backtest(Schema):
    """Counts of jobs, except `retries`. `dead`, `well`, `outlive`, `open` and `unjudged` add up to `looked_at`."""

    since: datetime
    looked_at: int
    is_cut: bool
    died_then: int
    retries_then: int
    retries: int
    dead: dict[str, int]
    lost: int
    well: int
    outlive: int
    open: int
    unjudged: int
    untold: list[str]


class Budget(Schema):
    policy: str
    group: str | None  # policies that name it share the budget
    per_minute: float | None  # null: the policy has no budget
    burst: int | None
    remaining: int | None  # where least is left; null: no budget, or nobody knows
    by_source: dict[str, int]


class Observed(Schema):
    """Number of the latest failed attempts that the version in force, in mode observe, would have decided
    differently."""

    policy: str
    version: int
    attempts: int
    is_capped: bool  # there are more than were looked at
    changed: int  # all of the three that follow
    tried_again: int
    given_up: int
    waited_otherwise: int


def version(row: PolicyVersion) -> dict[str, Any]:
    same = ("version", "is_published", "published_at", "published_by", "ended_at", "reason", "reverts_to")
    fields = dict.fromkeys(VersionItem.model_fields) | {"file_lost": False, "retries": True} | row.document
    return fields | {name: getattr(row, name) for name in same}


def policy(row: PolicyVersion, running: policies.InForce) -> dict[str, Any]:
    return version(row) | {"workers": workers(running)}


def workers(running: policies.InForce) -> dict[str, Any]:
    return {
        "says": running.sentence,
        "of": running.worker_count if running.is_known else None,
        "current": running.current if running.is_known else None,
        "on": {str(number or "none"): n for number, n in running.on.items()},
        "held_back": dict(running.held_back),
        "refused": dict(running.refused),
        "uncounted": running.uncounted if running.is_known else None,
        "overrun": running.overrun if running.is_known else None,
        "shared_out": running.shared_out if running.is_known else None,
        "unkept": running.unkept if running.is_known else None,
        "unplaced": running.unplaced if running.is_known else None,
    }


def backtest(found: policies.Backtest) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Backtest.model_fields}


def budget(row: PolicyVersion, left: policies.BudgetLeft | None) -> dict[str, Any]:
    return {
        "policy": row.name,
        "group": (row.document.get("budget") or {}).get("group"),
        "per_minute": left.per_minute if left else None,
        "burst": left.burst if left else None,
        "remaining": left.least if left else None,
        "by_source": left.left if left else {},
    }


def observed(row: PolicyVersion, found: policies.Observed) -> dict[str, Any]:
    counts = ("attempts", "is_capped", "changed", "tried_again", "given_up", "waited_otherwise")
    return {"policy": row.name, "version": row.version, **{name: getattr(found, name) for name in counts}}
