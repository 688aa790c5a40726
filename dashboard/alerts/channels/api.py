"""The calls for channels and deliveries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Status
from pydantic import BaseModel, ConfigDict

from dashboard.alerts.channels import api_shapes as channel_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Limit, Number, api
from jobs_admin import notices
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER

Wanted = Annotated[int | None, Query(ge=1, lt=2**63)]
# What a channel is answered with beside what may be sent, so that it can be sent back as it came.
_ANSWERED = frozenset(channel_shapes.ChannelMade.model_fields) - {"name", "kind", "url", "to", "events", "secret"}


class Document(BaseModel):  # not ninja's Schema, which loses what it does not know
    """`name`, `kind` webhook|slack|pagerduty|email, `url` or `to`, `events`, `secret`."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in (self.model_extra or {}).items() if name not in _ANSWERED}


@api.get("/channels", response={200: shapes.Listed[channel_shapes.ChannelItem], **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def list_channels(request: HttpRequest) -> Any:
    """Return channels, by name. Only admins of every source see destinations."""
    rows = notices.channels(request.auth)
    return shapes.listed(rows, channel_shapes.channel, next=None, count=len(rows))


@api.post("/channels", response={201: channel_shapes.ChannelMade, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def create_channel(request: HttpRequest, body: Document) -> Any:
    """Create a channel. A webhook without a `secret` gets one, which is returned only here."""
    saved = notices.save_channel(request.auth, body.document())
    return Status(201, channel_shapes.channel(saved.channel) | {"secret": saved.secret})


@api.get("/channels/{channel_id}", response={200: channel_shapes.ChannelItem, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_channel(request: HttpRequest, channel_id: Number) -> Any:
    return channel_shapes.channel(notices.channel(request.auth, channel_id))


@api.put("/channels/{channel_id}", response={200: channel_shapes.ChannelMade, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def change_channel(request: HttpRequest, channel_id: Number, body: Document) -> Any:
    """Change a channel. Omitted fields stay unchanged, including the secret."""
    saved = notices.save_channel(request.auth, body.document(), channel_id)
    return channel_shapes.channel(saved.channel) | {"secret": saved.secret}


@api.delete("/channels/{channel_id}", response={204: None, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def delete_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Delete the channel with its deliveries. 409 while a rule uses the channel."""
    notices.delete_channel(request.auth, channel_id)
    return Status(204, None)


@api.post("/channels/{channel_id}/test", response={201: channel_shapes.DeliveryItem, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def test_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Send a notice of type `ping`, once and immediately. The delivery has the response."""
    return Status(201, channel_shapes.delivery(notices.test(request.auth, channel_id)))


@api.post("/channels/{channel_id}/rotate", response={201: channel_shapes.Secret, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def rotate_channel_secret(request: HttpRequest, channel_id: Number) -> Any:
    """Create a new secret, returned only here. The previous secret also signs until the rotation ends."""
    return Status(201, {"secret": notices.rotate(request.auth, channel_id)})


@api.post(
    "/channels/{channel_id}/end-rotation", response={200: channel_shapes.ChannelItem, **REFUSALS}, tags=["alerts"]
)
@needs(ADMIN)
def end_channel_rotation(request: HttpRequest, channel_id: Number) -> Any:
    """End the rotation: only the latest secret signs from now on."""
    return channel_shapes.channel(notices.end_rotation(request.auth, channel_id))


@api.post("/channels/{channel_id}/enable", response={200: channel_shapes.ChannelItem, **REFUSALS}, tags=["alerts"])
@needs(ADMIN)
def enable_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Enable the channel. Parked deliveries are not sent automatically: resend them."""
    return channel_shapes.channel(notices.enable(request.auth, channel_id))


@api.get("/deliveries", response={200: shapes.Listed[channel_shapes.DeliveryItem], **REFUSALS}, tags=["alerts"])
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
    return shapes.listed(
        page.rows, channel_shapes.delivery, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )


@api.get("/deliveries/{delivery_id}", response={200: channel_shapes.DeliveryDetail, **REFUSALS}, tags=["alerts"])
@needs(VIEWER)
def get_delivery(request: HttpRequest, delivery_id: Number) -> Any:
    return channel_shapes.delivery_detail(notices.delivery(request.auth, delivery_id))


@api.post("/deliveries/{delivery_id}/resend", response={200: channel_shapes.DeliveryItem, **REFUSALS}, tags=["alerts"])
@needs(OPERATOR)
def resend_delivery(request: HttpRequest, delivery_id: Number) -> Any:
    """Send the delivery again, with the same ID."""
    return channel_shapes.delivery(notices.resend(request.auth, delivery_id))
