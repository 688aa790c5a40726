"""Channels and deliveries as text, and disabled channels with time and reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.dateparse import parse_datetime

from dashboard.web.figures import duration, number
from dashboard.web.links import url_of
from jobs_admin.models import Channel
from jobs_admin.models.notice import DeliveryState
from jobs_admin.notices import ChannelRow, DeliveryRow, LastDelivery

KINDS = {"webhook": "Webhook", "slack": "Slack", "pagerduty": "PagerDuty", "email": "E-mail"}
EVENTS = {
    "poison.quarantined": "quarantined jobs",
    "job.escalated": "jobs escalated by their policy",
    "replay.awaiting_approval": "replays awaiting approval",
    "replay.held": "held replays",
    "replay.done": "finished replays",
    "breaker.opened": "opened breakers",
    "breaker.closed": "closed breakers",
    "hold.at_bound": "no room for held jobs",
    "automation.tripped": "tripped automations",
}
STATES = {"waiting": "waiting", "sending": "sending", "delivered": "delivered", "parked": "parked"}
_TONES = {"waiting": "replaying", "sending": "replaying", "delivered": "recovered", "parked": "dead"}


@dataclass(frozen=True, slots=True)
class ChannelLine:
    row: ChannelRow
    url: str
    kind: str
    tone: str  # health, as a state
    health: str
    events: list[str]
    last_at: datetime | None
    last_state: str
    rules: list[str]  # names of the rules that notify it
    deliveries_url: str


def lines(
    rows: Iterable[ChannelRow], last: Mapping[int, LastDelivery], rules_of_channel: Mapping[int, list[str]]
) -> list[ChannelLine]:
    """Return the lines of channels. `rules_of_channel`: number of a channel -> names of the rules that notify it."""
    return [line(row, last.get(row.pk), rules_of_channel.get(row.pk, [])) for row in rows]


def line(row: ChannelRow, last: LastDelivery | None, rules: list[str]) -> ChannelLine:
    tone, health = _health(row)
    return ChannelLine(
        row,
        reverse("redrive:channel-detail", args=[row.pk]),
        KINDS.get(row.kind, row.kind),
        tone,
        health,
        [EVENTS.get(one, one) for one in row.events],
        last.at if last else None,
        STATES.get(last.state, last.state) if last else "",
        rules,
        f"{reverse('redrive:delivery-list')}?channel={row.pk}",
    )


def _health(row: ChannelRow) -> tuple[str, str]:
    if row.is_disabled:
        return "dead", "disabled"
    if row.failures:
        return "retrying", "1 failed try" if row.failures == 1 else f"{number(row.failures)} failed tries in a row"
    return "recovered", "ready"


@dataclass(frozen=True, slots=True)
class Try:
    at: datetime | None
    result: str


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    row: DeliveryRow
    url: str
    title: str
    channel_url: str
    state: str
    tone: str
    result: str  # result of the last attempt
    alert_url: str
    is_over: bool  # no further attempt follows automatically
    tries: list[Try]
    sent: str  # request body; JSON is indented


def delivery(row: DeliveryRow) -> DeliveryLine:
    return DeliveryLine(
        row,
        reverse("redrive:delivery-detail", args=[row.pk]),
        row.title or row.type,
        reverse("redrive:channel-detail", args=[row.channel_id]),
        STATES.get(row.state, row.state),
        _TONES.get(row.state, "discarded"),
        _result(row),
        _alert_url(row.alert_id),
        row.state in (DeliveryState.DELIVERED, DeliveryState.PARKED),
        [_try(one) for one in row.log],
        _indented(row.request),
    )


def _indented(text: str) -> str:
    """Return JSON with one field per line; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _result(row: DeliveryRow) -> str:
    if row.state == DeliveryState.SENDING:
        return "sending now"
    if row.tried_at is None:
        return "no tries yet"
    return _try_result(row.status, "" if row.state == DeliveryState.DELIVERED else row.error, row.took_ms)


def _try_result(status: Any, error: Any, took_ms: Any) -> str:
    text = ": ".join(str(one) for one in (f"HTTP {status}" if status else "", error or "") if one) or "accepted"
    return f"{text.rstrip('.')}, after {duration(took_ms / 1000)}" if isinstance(took_ms, (int, float)) else text


def _try(one: Mapping[str, Any]) -> Try:
    return Try(
        parse_datetime(str(one.get("at", ""))),
        _try_result(one.get("status"), one.get("error"), one.get("took_ms")),
    )


def _alert_url(pk: int | None) -> str:
    """Return the URL of the alert; "" if the notice is about none."""
    try:
        return reverse("redrive:alert-detail", args=[pk]) if pk else ""
    except NoReverseMatch:
        return ""


MOST_DISABLED = 3  # names listed by `disabled_channels`


@dataclass(frozen=True, slots=True)
class DisabledChannel:
    name: str
    since: datetime | None
    why: str  # continues a sentence after a colon; "" for a viewer who may not know the channel's address
    url: str


@dataclass(frozen=True, slots=True)
class DisabledChannels:
    lines: list[DisabledChannel]
    more: int
    all_url: str


def disabled_channels(channels: Sequence[Channel], *, sees: bool) -> DisabledChannels:
    """Return the disabled channels. `sees`: whether the viewer may read the responses of their endpoints."""
    shown = [
        DisabledChannel(
            one.name,
            one.disabled_at,
            _as_clause(one.why_disabled) if sees else "",
            url_of("redrive:channel-detail", one.pk),
        )
        for one in channels[:MOST_DISABLED]
    ]
    return DisabledChannels(shown, max(0, len(channels) - MOST_DISABLED), url_of("redrive:channel-list"))


def _as_clause(reason: str) -> str:
    """Return a sentence as a clause: `The endpoint answered 410 (gone).` becomes `the endpoint answered 410 (gone)`."""
    reason = reason.strip().rstrip(".")
    return reason[:1].lower() + reason[1:] if reason[:3] in ("It ", "The") else reason
