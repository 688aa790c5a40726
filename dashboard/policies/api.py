"""The calls for policies."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Path, Query, Schema, Status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt

from dashboard.policies.lint.api import Finding  # its calls come first: their addresses are spelt out
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, Moment, Number, Reason, Text, api
from jobs_admin import policies
from jobs_admin.core.text import representable
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer


class Workers(Schema):
    says: str  # `12 of 14 workers on v7`
    of: int | None  # live workers that the policy is for; null: unknown
    current: int | None  # of those, how many run this version
    on: dict[str, int]  # version, or "none" -> workers
    held_back: dict[str, int]  # off, capture, observe -> workers that may do no more than this
    refused: dict[str, str]  # worker -> why it cannot use this version
    uncounted: int | None  # jobs that they started uncounted, while the store did not answer; null: unknown
    overrun: int | None  # jobs above a limit, because a worker did not answer for 30 s; null: unknown
    shared_out: (
        int | None
    )  # retries made from workers' shares of a budget, while the store did not answer; null: unknown
    unplaced: (
        int | None
    )  # jobs that no policy decided over, as it was not sure which queue they came from; null: unknown
    unkept: int | None  # jobs that would not have been filed as lost, had their worker died; null: unknown


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
    breaker: dict[str, Any] | None
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
    remaining: int | None  # where least is left; null: no budget, or unknown
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


Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]
Why = Annotated[str, Query(max_length=500), AfterValidator(representable)]
Expected = Annotated[StrictInt, Field(ge=0, lt=2**31)] | None
# What a policy is answered with beside its own fields, so that it can be sent back as it came.
_ANSWERED = (
    "version", "is_published", "published_at", "published_by", "ended_at", "reverts_to", "workers", "url",
)  # fmt: skip


class Draft(BaseModel):  # not ninja's Schema, which loses what it does not know
    """Fields of a policy, at the top level of the body or under `policy`."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> object:
        fields = {name: value for name, value in (self.model_extra or {}).items() if name not in _ANSWERED}
        return fields["policy"] if set(fields) == {"policy"} else fields


class PreviewedPolicy(Draft):
    jobs: StrictInt = policies.JOBS  # that fail together


class Backtested(Draft):
    since: Moment | None = None


class Published(Draft):
    expected_version: Expected = None  # the version in force that the edit began from; null or 0: none is
    reason: Text = Field("", max_length=500)


class PutBack(Reason):
    expected_version: Expected = None


@api.get("/policies", response={200: shapes.Listed[PolicyItem], **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def list_policies(request: HttpRequest) -> Any:
    """Return the policies in force, by name."""
    found = policies.published(request.auth)
    running = policies.in_force(request.auth, found)
    return shapes.listed(found, lambda row: policy(row, running[row.name]), next=None, count=len(found))


@api.post("/policies/preview", response={200: Preview, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def preview_policy(request: HttpRequest, body: PreviewedPolicy) -> Any:
    """Return the effects of a policy, compared with the version in force. Changes nothing."""
    draft = policies.read(body.document())
    return policies.preview(request.auth, draft, _current(request.auth, draft.name), body.jobs)


@api.post("/policies/backtest", response={200: Backtest, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def backtest_policy(request: HttpRequest, body: Backtested) -> Any:
    """Return the outcomes of recent failures under a policy, by default of the last day. Changes nothing."""
    since = body.since or timezone.now() - timedelta(days=1)
    return backtest(policies.backtest(request.auth, policies.read(body.document()), since))


@api.get("/policies/{name}", response={200: PolicyItem, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy(request: HttpRequest, name: Name) -> Any:
    """Return the version in force, and the workers that have it."""
    return _answer(request.auth, policies.get(request.auth, name))


@api.put(
    "/policies/{name}",
    response={200: PolicyItem, 201: PolicyItem, **REFUSALS},
    tags=["policies"],
)
@needs(OPERATOR)
def publish_policy(request: HttpRequest, name: Name, body: Published) -> Any:
    """Publish a version: workers have it within two seconds. 201 if no policy of this name was in force."""
    made = policies.publish(
        request.auth, name, body.document(), expected_version=body.expected_version, reason=body.reason
    )
    return Status(200 if body.expected_version else 201, _answer(request.auth, made))


@api.delete("/policies/{name}", response={204: None, **REFUSALS}, tags=["policies"])
@needs(OPERATOR)
def withdraw_policy(
    request: HttpRequest,
    name: Name,
    expected_version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    reason: Why = "",
) -> Any:
    """Withdraw the policy. Versions are kept and can be restored."""
    policies.withdraw(request.auth, name, expected_version=expected_version, reason=reason)
    return Status(204, None)


@api.get("/policies/{name}/observed", response={200: Observed, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy_observations(request: HttpRequest, name: Name) -> Any:
    """Return how many decisions the version in force, in mode observe, would have changed."""
    row = policies.get(request.auth, name)
    return observed(row, policies.observed(request.auth, row))


@api.get("/policies/{name}/budget", response={200: Budget, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy_budget(request: HttpRequest, name: Name) -> Any:
    """Return the number of retries left in the budget."""
    found = policies.get(request.auth, name)
    return budget(found, policies.budget(request.auth, found))


@api.get(
    "/policies/{name}/versions",
    response={200: shapes.Listed[VersionItem], **REFUSALS},
    tags=["policies"],
)
@needs(VIEWER)
def list_policy_versions(request: HttpRequest, name: Name, after: After = None, limit: Limit = 50) -> Any:
    """Return all versions that were in force under the name, latest first."""
    page = policies.versions(request.auth, name, after=after, limit=limit)
    return shapes.listed(page.rows, version, next=page.next, count=page.count)


@api.post(
    "/policies/{name}/versions/{version}/put-back",
    response={201: PolicyItem, **REFUSALS},
    summary="Restore Policy",
    tags=["policies"],
)
@needs(OPERATOR)
def restore_policy_version(request: HttpRequest, name: Name, version: Number, body: PutBack) -> Any:
    """Publish the document of this version again, as the next version."""
    made = policies.put_back(request.auth, name, version, expected_version=body.expected_version, reason=body.reason)
    return Status(201, _answer(request.auth, made))


def _current(viewer: Viewer, name: str) -> Any:
    found = policies.readable(one for one in policies.published(viewer) if one.name == name)
    return found[0] if found else None


def _answer(viewer: Viewer, row: PolicyVersion) -> dict[str, Any]:
    return policy(row, policies.in_force(viewer, [row])[row.name])
