"""The calls for policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Path, Query, Status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt

from dashboard.policies import api_shapes as policy_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, Moment, Number, Reason, Text, api
from jobs_admin import policies
from jobs_admin.core.text import representable
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer

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


@api.get("/policies", response={200: shapes.Listed[policy_shapes.PolicyItem], **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def list_policies(request: HttpRequest) -> Any:
    """Return the policies in force, by name."""
    found = policies.published(request.auth)
    running = policies.in_force(request.auth, found)
    return shapes.listed(found, lambda row: policy_shapes.policy(row, running[row.name]), next=None, count=len(found))


@api.post("/policies/preview", response={200: policy_shapes.Preview, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def preview_policy(request: HttpRequest, body: PreviewedPolicy) -> Any:
    """Return the effects of a policy, compared with the version in force. Changes nothing."""
    draft = policies.read(body.document())
    return policies.preview(request.auth, draft, _current(request.auth, draft.name), body.jobs)


@api.post("/policies/backtest", response={200: policy_shapes.Backtest, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def backtest_policy(request: HttpRequest, body: Backtested) -> Any:
    """Return the outcomes of recent failures under a policy, by default of the last day. Changes nothing."""
    since = body.since or timezone.now() - timedelta(days=1)
    return policy_shapes.backtest(policies.backtest(request.auth, policies.read(body.document()), since))


@api.get("/policies/{name}", response={200: policy_shapes.PolicyItem, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy(request: HttpRequest, name: Name) -> Any:
    """Return the version in force, and the workers that have it."""
    return _answer(request.auth, policies.get(request.auth, name))


@api.put(
    "/policies/{name}",
    response={200: policy_shapes.PolicyItem, 201: policy_shapes.PolicyItem, **REFUSALS},
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


@api.get("/policies/{name}/observed", response={200: policy_shapes.Observed, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy_observations(request: HttpRequest, name: Name) -> Any:
    """Return how many decisions the version in force, in mode observe, would have changed."""
    row = policies.get(request.auth, name)
    return policy_shapes.observed(row, policies.observed(request.auth, row))


@api.get("/policies/{name}/budget", response={200: policy_shapes.Budget, **REFUSALS}, tags=["policies"])
@needs(VIEWER)
def get_policy_budget(request: HttpRequest, name: Name) -> Any:
    """Return the number of retries left in the budget."""
    found = policies.get(request.auth, name)
    return policy_shapes.budget(found, policies.budget(request.auth, found))


@api.get(
    "/policies/{name}/versions",
    response={200: shapes.Listed[policy_shapes.VersionItem], **REFUSALS},
    tags=["policies"],
)
@needs(VIEWER)
def list_policy_versions(request: HttpRequest, name: Name, after: After = None, limit: Limit = 50) -> Any:
    """Return all versions that were in force under the name, latest first."""
    page = policies.versions(request.auth, name, after=after, limit=limit)
    return shapes.listed(page.rows, policy_shapes.version, next=page.next, count=page.count)


@api.post(
    "/policies/{name}/versions/{version}/put-back",
    response={201: policy_shapes.PolicyItem, **REFUSALS},
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
    return policy_shapes.policy(row, policies.in_force(viewer, [row])[row.name])
