"""The calls for automations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Path, Schema, Status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, Moment, Reason, Text, api, page_of
from jobs_admin import automations
from jobs_admin.core.text import representable
from jobs_admin.models import Automation, AutomationDecision
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer


class AutomationItem(Schema):
    """An automation: the fields that a request sends, its state and its owner.

    `state`: dry_run, awaiting_approval, live, tripped. `why_not`: why it did nothing when it was last checked.
    """

    name: str
    source: str
    q: str
    rule: str | None
    min_jobs: int
    quiet_s: int
    cooldown_s: int
    cap_per_hour: int
    act: dict[str, Any]
    note: str
    expires_at: datetime | None
    version: int
    state: str
    owner: str
    approver: str
    changed_at: datetime
    tripped_at: datetime | None
    why_tripped: str
    checked_at: datetime | None
    why_not: str
    may_change: bool
    url: str


class DecisionItem(Schema):
    """A decision of the diary. `state`: planned, done, refused, failed, cancelled, waited (nothing was to be done)."""

    n: int
    at: datetime
    version: int
    state: str
    jobs: int
    due_at: datetime | None
    replay: int | None
    text: str
    ended_at: datetime | None


class SimulatedAct(Schema):
    at: datetime
    jobs: int


class DryRunResult(Schema):
    """Acts that it would have done since `since`, as if no one else acted on the same jobs.

    `acts`: the latest 100; `count` and `jobs` of all.

    `ready`: jobs that match now, counted up to 10,000. `why_not`: why it would do nothing now; empty if it would act.
    """

    since: datetime
    acts: list[SimulatedAct]
    count: int
    jobs: int
    is_cut: bool
    ready: int
    why_not: str


class Stopped(Schema):
    stopped: list[str]


def automation(viewer: Viewer, one: Automation) -> dict[str, Any]:
    names = ("name", "version", "approver", "changed_at", "tripped_at", "why_tripped", "checked_at", "why_not")
    return {
        **automations.render(one),
        **{name: getattr(one, name) for name in names},
        "state": automations.state(one),
        "owner": one.owner_name,
        "may_change": automations.may_change(viewer, one),
        "url": page_of("redrive:automation-detail", one.name),
    }


def decision(one: AutomationDecision) -> dict[str, Any]:
    names = ("n", "at", "version", "state", "jobs", "due_at", "text", "ended_at")
    return {**{name: getattr(one, name) for name in names}, "replay": one.replay_id}


def dry_run(found: automations.DryRun) -> dict[str, Any]:
    names = ("since", "count", "jobs", "is_cut", "ready", "why_not")
    acts = [{"at": act.at, "jobs": act.jobs} for act in found.acts]
    return {**{name: getattr(found, name) for name in names}, "acts": acts}


Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]
Item = AutomationItem
# What an automation is answered with beside its document, so that it can be sent back as it came.
_ANSWERED = (
    "name", "version", "state", "owner", "approver", "changed_at", "tripped_at", "why_tripped", "checked_at", "why_not",
    "may_change", "url",
)  # fmt: skip
_NO_FIELDS = (*_ANSWERED, "expected_version")


class AutomationDraft(BaseModel):  # not ninja's Schema, which drops unknown fields
    """Fields of an automation. Omitted fields have their defaults."""

    model_config = ConfigDict(extra="allow")

    source: Text = Field("", description="A source, or * for every source.")
    q: Text = Field("", description="Search, without state and times.")
    rule: Text | None = Field(None, description="Name of an alert rule that must have resolved.")
    min_jobs: StrictInt | None = None
    quiet_s: StrictInt | None = None
    cooldown_s: StrictInt | None = None
    cap_per_hour: StrictInt | None = None
    act: dict[str, Any] | str | None = Field(None, description="kind: replay, discard, assign, notify or pause.")
    note: Text = ""
    expires_at: Moment | None = None

    def document(self) -> dict[str, Any]:
        values = self.model_dump(exclude_unset=True)
        return {name: value for name, value in values.items() if name not in _NO_FIELDS}


class NewAutomation(AutomationDraft):
    name: Text = Field(max_length=63)


class ChangedAutomation(AutomationDraft):
    expected_version: StrictInt = Field(ge=1, lt=2**31)  # the version that the edit began from


class Enabled(Reason):
    expected_version: StrictInt | None = Field(None, ge=1, lt=2**31)


class Approved(Reason):
    expected_version: StrictInt = Field(ge=1, lt=2**31)


@api.get("/automations", response={200: shapes.Listed[Item], **REFUSALS}, tags=["automations"])
@needs(VIEWER)
def list_automations(request: HttpRequest) -> Any:
    """Return the automations, by name."""
    found = automations.listing(request.auth)
    return shapes.listed(found, lambda one: automation(request.auth, one), next=None, count=len(found))


@api.post("/automations", response={201: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def create_automation(request: HttpRequest, body: NewAutomation) -> Any:
    """Create an automation in dry run: it does nothing until it is enabled."""
    made = automations.create(request.auth, body.name, body.document())
    return Status(201, automation(request.auth, made))


@api.post("/automations/stop-all", response={200: Stopped, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def stop_automations(request: HttpRequest, body: Reason) -> Any:
    """Return every automation to dry run where the viewer is operator. Started replays continue."""
    return {"stopped": automations.stop_all(request.auth, reason=body.reason)}


@api.post("/automations/dry-run", response={200: DryRunResult, **REFUSALS}, tags=["automations"])
@needs(VIEWER)
def preview_automation(request: HttpRequest, body: AutomationDraft) -> Any:
    """Return what such an automation would have done in the last 7 days, and would do now. Changes nothing."""
    one = automations.check(request.auth, body.document())
    return dry_run(automations.dry_run(request.auth, one, timezone.now()))


@api.get("/automations/{name}", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(VIEWER)
def get_automation(request: HttpRequest, name: Name) -> Any:
    return automation(request.auth, automations.get(request.auth, name))


@api.put("/automations/{name}", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def change_automation(request: HttpRequest, name: Name, body: ChangedAutomation) -> Any:
    """Change an automation; an omitted field has its default. It goes back to dry run."""
    made = automations.change(request.auth, name, body.document(), expected_version=body.expected_version)
    return automation(request.auth, made)


@api.delete("/automations/{name}", response={204: None, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def delete_automation(request: HttpRequest, name: Name) -> Any:
    """Delete an automation in dry run, with its diary."""
    automations.delete(request.auth, name)
    return Status(204, None)


@api.post("/automations/{name}/dry-run", response={200: DryRunResult, **REFUSALS}, tags=["automations"])
@needs(VIEWER)
def dry_run_automation(request: HttpRequest, name: Name) -> Any:
    """Return what it would have done in the last 7 days, and would do now. Changes nothing."""
    one = automations.get(request.auth, name)
    return dry_run(automations.dry_run(request.auth, one, timezone.now()))


@api.get(
    "/automations/{name}/diary", response={200: shapes.Listed[DecisionItem], **REFUSALS},
    tags=["automations"],
)  # fmt: skip
@needs(VIEWER)
def list_automation_decisions(request: HttpRequest, name: Name, after: After = None, limit: Limit = 50) -> Any:
    """Return its decisions, latest first; of older than 500, only what bounds the next action is stored."""
    page = automations.diary(automations.get(request.auth, name), after=after, limit=limit)
    return shapes.listed(page.rows, decision, next=page.next, count=page.count)


@api.post("/automations/{name}/enable", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def enable_automation(request: HttpRequest, name: Name, body: Enabled) -> Any:
    """Let it act, with your rights. One that discards awaits the approval of another operator."""
    made = automations.enable(request.auth, name, expected_version=body.expected_version, reason=body.reason)
    return automation(request.auth, made)


@api.post("/automations/{name}/approve", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def approve_automation(request: HttpRequest, name: Name, body: Approved) -> Any:
    """Approve, as the second person, an automation that discards, at the version that you read."""
    made = automations.approve(request.auth, name, expected_version=body.expected_version, reason=body.reason)
    return automation(request.auth, made)


@api.post("/automations/{name}/disable", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def disable_automation(request: HttpRequest, name: Name, body: Reason) -> Any:
    """Return it to dry run. Started replays continue."""
    return automation(request.auth, automations.disable(request.auth, name, reason=body.reason))


@api.post("/automations/{name}/reset", response={200: Item, **REFUSALS}, tags=["automations"])
@needs(OPERATOR)
def reset_automation(request: HttpRequest, name: Name, body: Reason) -> Any:
    """Make a tripped automation live again."""
    return automation(request.auth, automations.reset(request.auth, name, reason=body.reason))
