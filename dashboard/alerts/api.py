"""The calls for alerts, their rules, silences and runbooks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt

from dashboard.alerts import api_shapes as alert_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Body, Limit, Moment, Number, Text, api
from jobs_admin import alerts
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.models.access import OPERATOR, VIEWER

Wanted = Annotated[str, Query(max_length=200), AfterValidator(representable)]
# What a rule is answered with beside what may be sent, so that it can be sent back as it came; `changed_at` is kept.
_ANSWERED = frozenset(alert_shapes.RuleItem.model_fields) - {*alerts.FIELDS, "changed_at"}


class RuleDocument(BaseModel):  # not ninja's Schema, which loses what it does not know
    """Fields of a rule. If `changed_at` is given and the rule was changed since, the edit is refused."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in (self.model_extra or {}).items() if name not in _ANSWERED}


class RulePreviewed(RuleDocument):
    days: StrictInt = Field(7, ge=1, le=14)

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in super().document().items() if name != "changed_at"}


class Acknowledging(Body):
    """`only_this`: this alert alone; otherwise all firing or silenced alerts of its notification."""

    comment: Text = Field("", max_length=500)
    only_this: StrictBool = False


class NewSilence(Body):
    """Until `ends_at`, or for `for_s` seconds."""

    matchers: dict[str, Any]
    comment: Text = Field(max_length=500)
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    for_s: StrictInt | None = Field(None, ge=1, le=30 * 86_400)


class SaidRunbook(Body):
    task: Text = Field(max_length=255)
    url: Text = Field(max_length=500)


# --- alerts -----------------------------------------------------------------------------------------------------


@api.get("/alerts", response={200: shapes.Listed[alert_shapes.AlertItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_alerts(
    request: HttpRequest,
    state: Wanted = "",
    source: Wanted = "",
    queue: Wanted = "",
    rule: Wanted = "",
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """Return alerts, latest first. `state` is pending, firing, acknowledged, silenced, resolved, or open; `rule` its name or number."""
    page = alerts.listing(request.auth, state=state, source=source, queue=queue, rule=rule, after=after, limit=limit)
    return shapes.listed(
        page.rows, alert_shapes.alert, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )


@api.get("/alerts/{alert_id}", response={200: alert_shapes.AlertDetail, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_alert(request: HttpRequest, alert_id: Number) -> Any:
    """Return one alert with its timeline, the alerts of the same notification, the groups that grew, and earlier
    similar alerts."""
    return alert_shapes.alert_detail(request.auth, alerts.get(request.auth, alert_id), timezone.now())


@api.post("/alerts/{alert_id}/acknowledge", response={200: alert_shapes.AcknowledgedItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def acknowledge_alert(request: HttpRequest, alert_id: Number, body: Acknowledging) -> Any:
    """Acknowledge an alert, or all alerts of its notification: stops reminders and escalation. 409 names the
    operator who acknowledged first."""
    return alert_shapes.acknowledged(alerts.acknowledge(request.auth, alert_id, body.comment, only_this=body.only_this))


@api.post(
    "/alerts/{alert_id}/unacknowledge", response={200: alert_shapes.AcknowledgedItem, **REFUSALS}, tags=["alerts"]
)
@needs(OPERATOR)
def unacknowledge_alert(request: HttpRequest, alert_id: Number) -> Any:
    """Undo your own acknowledgement for all alerts that it covers: reminders resume, and escalation counts from now.

    409: all of them were resolved since, or another operator acknowledged it.
    """
    return alert_shapes.acknowledged(alerts.unacknowledge(request.auth, alert_id))


# --- rules ------------------------------------------------------------------------------------------------------


@api.get("/rules", response={200: shapes.Listed[alert_shapes.RuleItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_alert_rules(request: HttpRequest) -> Any:
    """Return alert rules, by name."""
    rows = alerts.rules(request.auth)
    return shapes.listed(rows, lambda row: alert_shapes.rule(request.auth, row), next=None, count=len(rows))


@api.post("/rules", response={201: alert_shapes.RuleItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def create_alert_rule(request: HttpRequest, body: RuleDocument) -> Any:
    """Create an alert rule. It is evaluated from the next round, within five seconds."""
    return Status(201, alert_shapes.rule(request.auth, alerts.save_rule(request.auth, body.document())))


@api.post("/rules/preview", response={200: alert_shapes.RulePreview, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def preview_alert_rule(request: HttpRequest, body: RulePreviewed) -> Any:
    """Return how often the rule would have fired in the last `days`, on the history of your sources. Changes nothing."""
    found = alerts.preview(request.auth, body.document(), timezone.now(), days=body.days)
    return alert_shapes.preview(found)


@api.get("/rules/{rule_id}", response={200: alert_shapes.RuleItem, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_alert_rule(request: HttpRequest, rule_id: Number) -> Any:
    return alert_shapes.rule(request.auth, alerts.rule(request.auth, rule_id))


@api.put("/rules/{rule_id}", response={200: alert_shapes.RuleItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def change_alert_rule(request: HttpRequest, rule_id: Number, body: RuleDocument) -> Any:
    """Replace the rule. Omitted fields get their defaults. Alerts that the rule no longer covers are closed."""
    return alert_shapes.rule(request.auth, alerts.save_rule(request.auth, body.document(), rule_id))


@api.delete("/rules/{rule_id}", response={204: None, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def delete_alert_rule(request: HttpRequest, rule_id: Number) -> Any:
    """Delete the rule. Its open alerts are closed with a notice; alert history stays."""
    alerts.delete_rule(request.auth, rule_id)
    return Status(204, None)


# --- silences ---------------------------------------------------------------------------------------------------


@api.get("/silences", response={200: shapes.Listed[alert_shapes.SilenceItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_silences(request: HttpRequest, over: bool = False) -> Any:
    """Return active and scheduled silences, the next to end first; with `over`, ended silences, latest first."""
    rows = alerts.silences(request.auth, timezone.now(), over=over)
    return shapes.listed(rows, lambda row: alert_shapes.silence(request.auth, row), next=None, count=len(rows))


@api.post("/silences", response={201: alert_shapes.SilenceItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def create_silence(request: HttpRequest, body: NewSilence) -> Any:
    """Silence the alerts that match every matcher. Matchers: `source`, `queue`, `rule` (globs), `severity`,
    `alert` (a number)."""
    if (body.ends_at is None) == (body.for_s is None):
        raise Refused("invalid", "Give either ends_at or for_s. Nothing was changed.", "ends_at")
    now = timezone.now()
    ends_at = body.ends_at or (body.starts_at or now) + timedelta(seconds=body.for_s or 0)
    made = alerts.silence(
        request.auth, body.matchers, ends_at=ends_at, comment=body.comment, starts_at=body.starts_at, now=now
    )
    return Status(201, alert_shapes.silence(request.auth, made))


@api.delete("/silences/{silence_id}", response={204: None, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def end_silence(request: HttpRequest, silence_id: Number) -> Any:
    """End the silence now. Alerts that are still firing send notifications."""
    alerts.end_silence(request.auth, silence_id)
    return Status(204, None)


# --- runbooks ---------------------------------------------------------------------------------------------------


@api.get("/runbooks", response={200: shapes.Listed[alert_shapes.RunbookItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_runbooks(request: HttpRequest) -> Any:
    """Return the runbooks of tasks, by pattern. The runbook of a group or a rule takes precedence."""
    rows = alerts.runbooks(request.auth)
    return shapes.listed(rows, alert_shapes.runbook, next=None, count=len(rows))


@api.put("/runbooks", response={200: alert_shapes.RunbookItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def save_runbook(request: HttpRequest, body: SaidRunbook) -> Any:
    """Save the runbook of a task pattern. Needs the role operator on every source."""
    return alert_shapes.runbook(alerts.save_runbook(request.auth, body.task, body.url))


@api.delete("/runbooks/{runbook_id}", response={204: None, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def delete_runbook(request: HttpRequest, runbook_id: Number) -> Any:
    alerts.delete_runbook(request.auth, runbook_id)
    return Status(204, None)
