"""The calls for channels and deliveries. A secret is only in the answer to the call that created it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Schema, Status
from pydantic import BaseModel, ConfigDict

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, Number, api
from jobs_admin import notices
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER
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


Wanted = Annotated[int | None, Query(ge=1, lt=2**63)]
# What a channel is answered with beside what may be sent, so that it can be sent back as it came.
_ANSWERED = frozenset(ChannelMade.model_fields) - {"name", "kind", "url", "to", "events", "secret"}


class Document(BaseModel):  # not ninja's Schema, which loses what it does not know
    """`name`, `kind` webhook|slack|pagerduty|email, `url` or `to`, `events`, `secret`."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in (self.model_extra or {}).items() if name not in _ANSWERED}


@api.get("/channels", response={200: shapes.Listed[ChannelItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_channels(request: HttpRequest) -> Any:
    """Return channels, by name. Only admins of every source see destinations."""
    rows = notices.channels(request.auth)
    return shapes.listed(rows, channel, next=None, count=len(rows))


@api.post("/channels", response={201: ChannelMade, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def create_channel(request: HttpRequest, body: Document) -> Any:
    """Create a channel. A webhook without a `secret` gets one, which is returned only here."""
    saved = notices.save_channel(request.auth, body.document())
    return Status(201, channel(saved.channel) | {"secret": saved.secret})


@api.get("/channels/{channel_id}", response={200: ChannelItem, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_channel(request: HttpRequest, channel_id: Number) -> Any:
    return channel(notices.channel(request.auth, channel_id))


@api.put("/channels/{channel_id}", response={200: ChannelMade, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def change_channel(request: HttpRequest, channel_id: Number, body: Document) -> Any:
    """Change a channel. Omitted fields stay unchanged, including the secret."""
    saved = notices.save_channel(request.auth, body.document(), channel_id)
    return channel(saved.channel) | {"secret": saved.secret}


@api.delete("/channels/{channel_id}", response={204: None, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def delete_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Delete the channel with its deliveries. 409 while a rule uses the channel."""
    notices.delete_channel(request.auth, channel_id)
    return Status(204, None)


@api.post("/channels/{channel_id}/test", response={201: DeliveryItem, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def test_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Send a notice of type `ping`, once and immediately. The delivery has the response."""
    return Status(201, delivery(notices.test(request.auth, channel_id)))


@api.post("/channels/{channel_id}/rotate", response={201: Secret, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def rotate_channel_secret(request: HttpRequest, channel_id: Number) -> Any:
    """Create a new secret, returned only here. The previous secret also signs until the rotation ends."""
    return Status(201, {"secret": notices.rotate(request.auth, channel_id)})


@api.post("/channels/{channel_id}/end-rotation", response={200: ChannelItem, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def end_channel_rotation(request: HttpRequest, channel_id: Number) -> Any:
    """End the rotation: only the latest secret signs from now on."""
    return channel(notices.end_rotation(request.auth, channel_id))


@api.post("/channels/{channel_id}/enable", response={200: ChannelItem, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def enable_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Enable the channel. Parked deliveries are not sent automatically: resend them."""
    return channel(notices.enable(request.auth, channel_id))


@api.get("/deliveries", response={200: shapes.Listed[DeliveryItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_deliveries(
    request: HttpRequest,
    channel: Wanted = None,
    alert: Wanted = None,
    state: Literal["", "waiting", "sending", "delivered", "parked"] = "",
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """Return deliveries, latest first: one notice sent to one channel each."""
    page = notices.deliveries(request.auth, channel=channel, alert=alert, state=state, after=after, limit=limit)
    return shapes.listed(page.rows, delivery, next=page.next, count=page.count, count_is_capped=page.count_is_capped)


@api.get("/deliveries/{delivery_id}", response={200: DeliveryDetail, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_delivery(request: HttpRequest, delivery_id: Number) -> Any:
    return delivery_detail(notices.delivery(request.auth, delivery_id))


@api.post("/deliveries/{delivery_id}/resend", response={200: DeliveryItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def resend_delivery(request: HttpRequest, delivery_id: Number) -> Any:
    """Send the delivery again, with the same ID."""
    return delivery(notices.resend(request.auth, delivery_id))
