"""API shapes of channels and deliveries. A secret is only in the answer to the call that created it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin.notices import ChannelRow, DeliveryRow


class ChannelItem(Schema):
    id: int
    name: str
    kind: str
    url: str  # empty for whoever is not admin of every source; of Slack without its path, which is the secret
    to: list[str]
    events: list[str]
    is_rotating: bool  # two secrets sign
    rotated_at: datetime | None
    disabled_at: datetime | None
    why_disabled: str
    failures: int  # tries that failed in a row
    changed_at: datetime
    changed_by: str


class ChannelMade(ChannelItem):
    secret: str | None  # of a signed webhook, where it was made now: shown this once


class Secret(Schema):
    secret: str


class Try(Schema):
    at: datetime
    status: int | None
    error: str
    took_ms: int | None


class DeliveryItem(Schema):
    id: int
    channel: str
    channel_id: int
    kind: str
    key: str  # the `webhook-id`
    type: str
    source: str
    alert: int | None
    title: str
    state: str  # waiting, sending, delivered, parked
    tries: int
    created_at: datetime
    next_try_at: datetime | None
    tried_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str
    took_ms: int | None


class DeliveryDetail(DeliveryItem):
    request: str  # the body as it was last sent, without secrets
    answer: str  # at most 2 kB; empty for whoever is not admin of every source
    log: list[Try]


def channel(row: ChannelRow) -> dict[str, Any]:
    same = {name: getattr(row, name) for name in ChannelItem.model_fields if name not in ("id", "to", "events")}
    return same | {"id": row.pk, "to": list(row.to), "events": list(row.events)}


def delivery(row: DeliveryRow) -> dict[str, Any]:
    same = {name: getattr(row, name) for name in DeliveryItem.model_fields if name not in ("id", "alert")}
    return same | {"id": row.pk, "alert": row.alert_id}


def delivery_detail(row: DeliveryRow) -> dict[str, Any]:
    return delivery(row) | {"request": row.request, "answer": row.answer, "log": list(row.log)}
