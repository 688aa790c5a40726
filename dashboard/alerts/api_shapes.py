"""API shapes of alerts, their rules and silences, and runbooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin import alerts
from jobs_admin.models import Alert, AlertEvent, Rule, Runbook, Silence
from jobs_admin.models.access import Viewer


class AlertItem(Schema):
    id: int
    rule: str
    rule_id: int
    metric: str
    severity: str
    state: str  # pending, firing, acknowledged, silenced, resolved
    source: str  # empty: of none in particular
    queue: str  # or the view; empty for the source itself
    value: float
    peak: float
    threshold: float
    opened_at: datetime  # since when it is true
    fired_at: datetime | None
    resolved_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str
    escalated_at: datetime | None
    held_because: str  # why it may neither fire nor end now
    told_with: int | None  # the alert under whose key it is told
    url: str


class AcknowledgedItem(AlertItem):
    changed: list[
        int
    ]  # the alerts that this call acknowledged, or of which it undid that; at most those of a notification


class EventItem(Schema):
    alert: int
    n: int  # from 1, of that alert
    at: datetime
    to: str
    value: float | None
    reason: str
    actor: str
    notice: str | None  # the webhook-id under which it was told


class RisenItem(Schema):
    fingerprint: str
    title: str
    count: int
    url: str


class EarlierItem(Schema):
    id: int
    opened_at: datetime
    resolved_at: datetime | None
    peak: float
    acknowledged_by: str
    replays: list[int]  # that were started for its source while it was open


class AlertDetail(AlertItem):
    failures_q: str  # the search that shows the failures it is about, also later
    failures_url: str
    replay_url: str  # a draft: nothing is started
    runbook_url: str
    events: list[EventItem]  # of all that are told together, the oldest first
    groups: list[RisenItem]
    earlier: list[EarlierItem]


class RuleItem(Schema):
    """The fields that `POST rules` takes, and computed fields."""

    name: str
    metric: str
    source: str
    queue: str
    task: str
    group: str
    tenant: str
    view: int | None
    threshold: float
    clear: float | None
    for_s: int
    keep_firing_s: int
    renotify_s: int | None
    escalate_s: int | None
    no_data: str
    severity: str
    runbook_url: str
    channels: list[str]
    escalate_to: list[str]
    enabled: bool
    id: int
    may_change: bool
    changed_at: datetime
    changed_by: str


class EpisodeItem(Schema):
    source: str
    queue: str
    opened_at: datetime
    fired_at: datetime
    resolved_at: datetime | None  # null: it would still fire
    peak: float


class SeriesItem(Schema):
    source: str
    queue: str
    points: list[tuple[int, float | None]]  # seconds since 1970, value


class RulePreview(Schema):
    since: datetime
    until: datetime
    step_s: int  # of the coarsest series; 0: the history cannot tell, see `untold`
    fired: int
    notices: int  # as if nobody had acknowledged any
    episodes: list[EpisodeItem]  # the newest first
    series: list[SeriesItem]  # of the queues with the highest values
    untold: list[str]


class SilenceItem(Schema):
    id: int
    matchers: dict[str, Any]
    author: str
    comment: str
    starts_at: datetime
    ends_at: datetime
    ended_by: str
    may_end: bool


class RunbookItem(Schema):
    id: int
    task: str
    url: str
    changed_at: datetime
    changed_by: str


_ALERT = (
    "id", "rule_id", "severity", "state", "source", "value", "peak", "threshold", "opened_at", "fired_at", "resolved_at",
    "acknowledged_at", "escalated_at", "held_because",
)  # fmt: skip


def alert(row: Alert) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _ALERT} | {
        "rule": row.rule.name,
        "metric": row.rule.metric,
        "queue": row.subject,
        "acknowledged_by": row.acknowledged_by,
        "told_with": row.told_with_id,
        "url": alerts.alert_page(row.pk),
    }


def acknowledged(done: alerts.Acknowledgement) -> dict[str, Any]:
    return alert(done.alert) | {"changed": done.changed}


def alert_detail(viewer: Viewer, row: Alert, now: datetime) -> dict[str, Any]:
    links = alerts.links(row, now)
    return alert(row) | {
        "failures_q": links.failures_query,
        "failures_url": links.failures_url,
        "replay_url": links.replay_url,
        "runbook_url": row.rule.runbook_url,
        "events": [event(one) for one in alerts.events(viewer, row)],
        "groups": [
            {"fingerprint": one.fingerprint, "title": one.title, "count": one.count, "url": one.url}
            for one in alerts.groups_behind(row)
        ],
        "earlier": [_earlier(one) for one in alerts.earlier(viewer, row)],
    }


def event(row: AlertEvent) -> dict[str, Any]:
    same = ("n", "at", "to", "value", "reason", "actor")
    notice = row.notice.key if row.notice is not None else None
    return {name: getattr(row, name) for name in same} | {"alert": row.alert_id, "notice": notice}


def _earlier(row: Alert) -> dict[str, Any]:
    return {
        "id": row.pk,
        "opened_at": row.opened_at,
        "resolved_at": row.resolved_at,
        "peak": row.peak,
        "acknowledged_by": row.acknowledged_by,
        "replays": [one.pk for one in row.replays],
    }


def rule(viewer: Viewer, row: Rule) -> dict[str, Any]:
    return alerts.document(row) | {
        "id": row.pk,
        "may_change": alerts.may_change(viewer, row),
        "changed_at": row.changed_at,
        "changed_by": row.changed_by,
    }


def preview(found: alerts.Preview) -> dict[str, Any]:
    same = ("since", "until", "step_s", "fired", "notices", "untold")
    return {name: getattr(found, name) for name in same} | {
        "episodes": [
            {
                "source": one.source, "queue": one.subject, "opened_at": one.opened_at, "fired_at": one.fired_at,
                "resolved_at": one.resolved_at, "peak": one.peak,
            }
            for one in found.episodes
        ],
        "series": [
            {"source": one.source, "queue": one.subject, "points": list(zip(one.times, one.values, strict=True))}
            for one in found.series
        ],
    }  # fmt: skip


def silence(viewer: Viewer, row: Silence) -> dict[str, Any]:
    same = ("id", "matchers", "author", "comment", "starts_at", "ends_at", "ended_by")
    return {name: getattr(row, name) for name in same} | {"may_end": alerts.may_end(viewer, row)}


def runbook(row: Runbook) -> dict[str, Any]:
    return {name: getattr(row, name) for name in RunbookItem.model_fields}
